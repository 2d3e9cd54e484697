"""Pools: each run is given to the first free member, and survives the loss of one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from core import TrainConfig, Workspace
from core.cli.main import main
from core.config.targets import place_of_target
from core.errors import ConfigError
from core.records.events import read_events
from core.records.folder import EXIT_UNUSABLE, RunFolder, RunRecord
from core.runs import worker as worker_module
from core.runs.pools import choose_member
from core.runs.worker import Worker, _Refusal
from core.store import ACTIVE_STATES, RunRow, Store
from core.sweeps.client import create_sweep, parse_sweep, start_sweep
from core.sweeps.driver import Driver
from core.sweeps.folder import SweepFolder
from core.targets import follower, launcher
from core.targets import target as target_module
from core.targets.errors import TargetError, UnavailableError
from core.targets.follower import Follower
from core.targets.launcher import RemoteState
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.saved import save_machine
from core.targets.schema import Exit
from core.targets.signing import run_keys
from core.targets.ssh_target import SshTarget
from core.targets.target import Job, Machine, MirrorRoot, Status
from tests.core.runs.support import processes_with, wait_for
from tests.core.training.test_trainer import make_inputs
from tests.targets import fake_target
from tests.targets.fake_target import FakeTarget, Place
from tests.targets.homes import copied_workspace
from tests.targets.ssh_server import SshServer, running_ssh_server

POOL = "ssh://a ssh://b?gpu=0 ssh://b?gpu=1"
A, B0, B1 = POOL.split()


def row(name: str, target: str, **config: str) -> RunRow:
    return RunRow(id=name, config={"target": POOL, **config}, remote={"target": target})


def test_run_gets_the_first_free_member() -> None:
    queued = row("q", POOL)
    assert choose_member(queued, [], {}) == (A, "")
    assert choose_member(queued, [row("x", A)], {}) == (B0, "")
    assert choose_member(queued, [row("x", A)], {B0: ""}) == (B1, "")
    busy = [row("x", A), row("y", B1)]
    assert choose_member(queued, busy, {B0: "The disk is full."}) == (
        "",
        "a runs x, b?gpu=0 can't be used now (The disk is full.), b?gpu=1 runs y",
    )


def test_run_goes_on_where_its_checkpoints_are_unless_all_members_reach_them() -> None:
    busy = [row("x", A)]
    assert choose_member(row("q", A), busy, {}) == ("", "a runs x")
    assert choose_member(row("q", A), [], {A: ""}) == ("", "a can't be used now")
    assert choose_member(row("q", A, mirror="hf://buckets/me/studio"), busy, {}) == (B0, "")


@pytest.mark.parametrize("gpu", ["x", "0;id", "0,", ",0", "-1", "0 1", "12345"])
def test_gpu_that_is_no_number_is_refused(gpu: str) -> None:
    with pytest.raises(ConfigError, match="gpu=0"):
        SshTarget(f"ssh://host?gpu={gpu}")


def test_pool_is_added_listed_and_removed_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Answers like a machine.
    monkeypatch.setenv("STUDIO_SSH_COMMAND", "echo box #")
    place = ["--workspace", str(tmp_path)]
    assert main(["pool", "add", "lab", *POOL.split(), *place]) == 0
    assert "a: box" in capsys.readouterr().out
    assert main(["pool", "list", *place]) == 0
    assert POOL in capsys.readouterr().out
    assert main(["pool", "remove", "lab", *place]) == 0
    assert place_of_target(POOL) == "a, b?gpu=0, b?gpu=1"
    assert main(["pool", "add", "lab", A, "nowhere", *place]) == 2


class Member(FakeTarget):
    """A machine that keeps the mirror itself; those in `down` can't be reached."""

    creates_machines = False
    carries_secrets = True
    down: ClassVar[set[str]] = set()

    def check(self) -> str:
        if self.address in self.down:
            raise UnavailableError("no answer")
        return super().check()

    def cancel(self, machine: Machine) -> None:
        self.check()
        super().cancel(machine)

    def mirror_root(self, asked: str) -> MirrorRoot:
        root = asked or f"{fake_target.PLACE.root}/{place_of_target(self.address)}"
        return MirrorRoot(root, root)

    def state(self, machine: Machine) -> Status:
        self.check()
        return super().state(machine)

    def list_machines(self) -> list[Machine]:
        own = self.mirror_root("").there
        jobs = [job.name for job in fake_target.PLACE.jobs if job.mirror == own]
        return [machine for machine in super().list_machines() if machine.id in jobs]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(root=f"file://{tmp_path}/mirrors")
    monkeypatch.setattr(fake_target, "PLACE", place)
    monkeypatch.setattr(Member, "down", set())
    reference = f"{Member.__module__}:{Member.__qualname__}"
    monkeypatch.setitem(target_module._TARGETS, "ssh", reference)
    for module, name, seconds in (
        (follower, "SECONDS_PER_ROUND", 0.001),
        (follower, "_MOST_RETRY_SECONDS", 0.002),
        (follower, "SILENT_AFTER_SECONDS", 0.0),
        (launcher, "POLL_SECONDS", 0.0),
        (launcher, "LOST_AFTER_SECONDS", 0.0),
        (launcher, "_MOST_LOST_SECONDS", 0.0),
    ):
        monkeypatch.setattr(module, name, seconds)
    return place


def follow(workspace: Workspace, member: str, name: str = "train-1", **config: str) -> int:
    """Does what the worker does for a run that gets a member; returns the follower's exit code."""
    folder = RunFolder.of(workspace, name)
    values = TrainConfig(shards="owner/rows", target=POOL, name=name, **config)
    folder.write_record(
        RunRecord(id=name, stage="train", config=values.model_dump(mode="json"), machine=member)
    )
    return Follower(folder, workspace).follow()


def mirror_of(workspace: Workspace, job: Job) -> RunMirror:
    keys = run_keys(workspace.root, job.run_id)
    return RunMirror(open_store(job.mirror), job.run_id, keys, signed_from=1)


def begin(workspace: Workspace, job: Job) -> None:
    """Claims the run and reports a step, as a machine does; then it can't be reached."""
    mirror = mirror_of(workspace, job)
    if not mirror.look().newest:
        claim = mirror.claim(None, launch=job.launch)
        report(mirror, claim.incarnation, {"kind": "metrics", "step": 10, "values": {"loss": 1.5}})
    Member.down.add(A)


def fail(workspace: Workspace, job: Job) -> None:
    mirror = mirror_of(workspace, job)
    claim = mirror.claim(None, launch=job.launch)
    report(mirror, claim.incarnation, {"kind": "finished", "state": "failed", "reason": "test"})
    mirror.write_exit(claim.incarnation, Exit(code=1, time=time.time()))


def report(mirror: RunMirror, incarnation: int, event: dict[str, Any]) -> None:
    line = json.dumps({"n": 1, "t": 5.0, **event}).encode() + b"\n"
    mirror.create_segment(incarnation, 0, line)


def test_lost_member_is_left_and_the_run_starts_over_on_another(
    place: Place, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "home")
    place.work = partial(begin, workspace)
    assert follow(workspace, A) == EXIT_UNUSABLE
    folder = RunFolder.of(workspace, "train-1")
    [left] = RemoteState.read(folder).launches
    assert left.is_left and left.ended
    assert folder.read_exit() is None

    place.work = partial(fail, workspace)
    assert follow(workspace, B0) == 0
    events, _ = read_events(folder.events)
    kinds = [one["kind"] for one in events if one["kind"] in ("metrics", "resumed", "finished")]
    assert kinds == ["metrics", "resumed", "finished"]
    assert [job.mirror for job in place.jobs] == [f"{place.root}/a", f"{place.root}/b?gpu=0"]
    assert "train-1-1" not in place.cancelled

    # The next run on the lost member ends what was left there.
    Member.down.clear()
    assert follow(workspace, A, "train-2") == 0
    assert "train-1-1" in place.cancelled


def test_run_goes_on_in_a_mirror_that_all_members_reach(place: Place, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home")
    mirror = f"file://{tmp_path}/shared"
    place.work = partial(begin, workspace)
    assert follow(workspace, A, mirror=mirror) == EXIT_UNUSABLE
    place.work = partial(fail, workspace)
    assert follow(workspace, B0, mirror=mirror) == 0
    events, _ = read_events(RunFolder.of(workspace, "train-1").events)
    places = [one["from"] for one in events if one["kind"] in ("metrics", "resumed", "finished")]
    assert places == [[1, 0, 0], [2, 0, -1], [2, 0, 0]]


def test_member_is_waited_for_while_no_other_one_answers(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "home")
    folder = RunFolder.of(workspace, "train-1")
    rounds = iter(range(20))

    def work(job: Job) -> None:
        begin(workspace, job)
        Member.down.update(POOL.split())

    def pause(_: Follower, __: float) -> None:
        if next(rounds, None) is None:
            folder.request_stop("abort")

    place.work = work
    monkeypatch.setattr(follower, "_ABORT_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(Follower, "_pause", pause)
    assert follow(workspace, A) == 0
    [finished] = [one for one in read_events(folder.events)[0] if one["kind"] == "finished"]
    assert finished["reason"] == "aborted"


def test_member_that_fails_its_check_is_passed_over_at_once(place: Place, tmp_path: Path) -> None:
    Member.down.update(POOL.split())
    workspace = Workspace(tmp_path / "home")
    assert follow(workspace, A) == EXIT_UNUSABLE
    assert not place.jobs


def test_member_with_the_checkpoints_is_waited_for_before_the_run_starts_over(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "home")
    folder = RunFolder.of(workspace, "train-1")
    place.work = partial(fail, workspace)
    assert follow(workspace, A) == 0
    state = RemoteState.read(folder)
    state.launches[0].seen = state.launches[0].billed_from + 3600
    state.write(folder)
    folder.archive_attempt(0)
    Member.down.add(A)
    monkeypatch.setattr(launcher, "_MOST_LOST_SECONDS", 0.3)
    began = time.monotonic()
    assert follow(workspace, A) == EXIT_UNUSABLE
    assert time.monotonic() - began >= 0.3
    assert follow(workspace, B0) == 0
    warnings = [one["message"] for one in read_events(folder.events)[0] if one["kind"] == "warning"]
    assert warnings[-1].startswith("The run starts over on b?gpu=0")


def test_what_a_left_member_still_does_is_ended_with_the_run(place: Place, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home")
    place.work = partial(begin, workspace)
    assert follow(workspace, A) == EXIT_UNUSABLE
    Member.down.clear()
    place.work = partial(fail, workspace)
    assert follow(workspace, B0) == 0
    assert "train-1-1" in place.cancelled


def test_mirror_that_refuses_a_ready_member_fails_the_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise TargetError("The token may not write.")

    monkeypatch.setattr(launcher, "open_store", refuse)
    workspace = Workspace(tmp_path / "home")
    assert follow(workspace, A, mirror="hf://buckets/me/studio") == 0
    [finished] = [
        one
        for one in read_events(RunFolder.of(workspace, "train-1").events)[0]
        if one["kind"] == "finished"
    ]
    assert finished["error"]["problem"] == "The token may not write."


def submitted(workspace: Workspace, worker: Worker) -> RunRow:
    values = TrainConfig(shards="owner/rows", target=POOL, name="train-1")
    record = RunRecord(id="train-1", stage="train", config=values.model_dump(mode="json"))
    worker._submit(asdict(record))
    return worker.store.find_run("train-1")


def test_damaged_machines_hide_only_the_name_of_the_pool(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    worker = Worker(workspace)
    row = submitted(workspace, worker)
    (workspace.root / "machines.json").write_text("{")
    worker._refusals = {one: _Refusal(0.0, time.monotonic(), "") for one in POOL.split()}
    worker._start_queued()
    row = worker.store.find_run(row.id)
    assert (row.state, row.note[:30]) == ("queued", "waiting for a free machine: a ")


def test_run_that_all_members_refuse_for_long_fails_with_the_error(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    worker = Worker(workspace)
    row = submitted(workspace, worker)
    folder = RunFolder.of(workspace, row.id)
    folder.write_record(replace(folder.read_record(), machine=A))
    folder.follower_log.write_text("The token may not write.\n")
    worker._skip_member(row, folder)
    assert worker.store.find_run(row.id).state == "queued"
    for member in POOL.split():
        now = time.monotonic()
        worker._refusals[member] = _Refusal(now - 3700, now, "")
    folder.write_record(replace(folder.read_record(), machine=A))
    worker._skip_member(row, folder)
    row = worker.store.find_run(row.id)
    assert row.state == "failed" and row.error is not None
    assert row.error["received"] == "The token may not write."


def test_stop_of_a_queued_run_ends_what_it_left_on_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(
        worker_module, "_start_process", lambda folder, **_: started.append(folder.read_record())
    )
    workspace = Workspace(tmp_path)
    worker = Worker(workspace)
    row = submitted(workspace, worker)
    worker.store.update_run(row.id, remote={**row.remote, "launch": 1})
    worker._stop({"run": row.id})
    assert worker.store.find_run(row.id).state == "stopping"
    assert [record.target for record in started] == [A]


# Real servers.

TRIALS = 12
STEPS = 2000
SWEEP = f"""
name = "rates"
method = "random"
pruner = "none"
max_runs = {TRIALS}
parallel = 5
[base]
preset = "custom"
shards = "rows"
engine = "jax"
device = "cpu"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_train_steps = {STEPS}
per_replica_batch_size = 8
eval_steps = {STEPS // 2}
save_steps = 200
logging_steps = 20
target = "lab"
[options.learning_rate]
min = 1e-4
max = 0.1
log = true
"""


def test_sweep_keeps_all_members_at_work(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    text = SWEEP.replace("parallel = 5\n", "").replace('"lab"', f'"{POOL}"')
    assert Driver(workspace, create_sweep(workspace, parse_sweep(text)))._parallel() == 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


@pytest.fixture
def home(inputs: Path, tmp_path: Path) -> Iterator[Workspace]:
    with copied_workspace(inputs, tmp_path / "home") as workspace:
        yield workspace
        for driver in processes_with(b"core.sweeps.driver\0--workspace\0" + bytes(workspace.root)):
            os.kill(driver.pid, signal.SIGKILL)


class Lab:
    """Three ssh servers with home folders of their own.

    Attributes:
        members: Their addresses; the first one has a GPU's number.
    """

    def __init__(self, folder: Path, servers: list[SshServer]) -> None:
        self.folder = folder
        self.servers = servers
        query = f"python={sys.executable}"
        first, *others = (server.address for server in servers)
        self.members = [f"{first}?gpu=0&{query}", *(f"{one}?{query}" for one in others)]

    def processes(self, number: int) -> list[psutil.Process]:
        home = str(self.folder / str(number) / "home")
        return [one for one in psutil.process_iter() if environment_of(one).get("HOME") == home]

    def programs(self, number: int) -> list[psutil.Process]:
        """Finds the processes of a server's home that compute."""
        return [one for one in self.processes(number) if "core.runs.execute" in words_of(one)]

    def has_steps(self, number: int) -> bool:
        """Returns whether a run on a server has made its first steps."""
        home = self.folder / str(number) / "home" / ".pretrain-studio"
        events = home.glob("runs/*/runs/*/events.jsonl")
        return any(b'"loss":' in path.read_bytes() for path in events)

    def cut_off(self, number: int) -> None:
        """Ends a server and its connections, but not what it has started."""
        server = psutil.Process(self.servers[number].process.pid)
        server.suspend()  # It accepts no other one meanwhile.
        connections = [one for one in server.children(recursive=True) if "sshd" in one.name()]
        for one in [*connections, server]:
            one.kill()

    def kill(self, number: int) -> None:
        self.cut_off(number)
        for one in self.processes(number):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def words_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    folder = tmp_path / "ssh"
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running_ssh_server(folder / str(number))) for number in range(3)
        ]
        known = "".join(server.known_hosts.read_text() for server in servers)
        (folder / "known_hosts").write_text(known)
        keys = "".join(f"  IdentityFile {folder}/{number}/user_key\n" for number in range(3))
        (folder / "config").write_text(
            f"Host *\n{keys}  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
            "  GlobalKnownHostsFile /dev/null\n"
        )
        monkeypatch.setenv("STUDIO_SSH_COMMAND", f"ssh -F {folder}/config")
        lab = Lab(folder, servers)
        yield lab
        for number in range(3):
            lab.kill(number)


@pytest.mark.slow(400)
@pytest.mark.long
def test_trials_survive_the_loss_of_a_member_and_each_ends_once(home: Workspace, lab: Lab) -> None:
    save_machine(home, " ".join(lab.members), "lab")
    folder = create_sweep(home, parse_sweep(SWEEP))
    start_sweep(home, folder)
    store = Store.open(home)
    last = lab.members[2]

    def on(member: str) -> list[RunRow]:
        rows = store.list_runs(states=ACTIVE_STATES)
        return [one for one in rows if one.remote["target"] == member]

    def gpus(number: int) -> set[str | None]:
        programs = lab.programs(number)
        return {environment_of(one).get("CUDA_VISIBLE_DEVICES") for one in programs}

    wait_for(lambda: "0" in gpus(0))
    wait_for(lambda: gpus(1))
    assert "0" not in gpus(1)
    # It is suspended at once, so that it can't end before it is lost.
    wait_for(lambda: lab.has_steps(2))
    for one in lab.programs(2):
        one.suspend()
    wait_for(lambda: any(one.unit == "steps" and one.done for one in on(last)))
    [lost] = on(last)
    assert lost.done < STEPS
    [waiting, *_] = store.list_runs(states=("queued",))
    assert waiting.why.startswith("waiting for a free machine of lab: 127.0.0.1:"), waiting.why
    lab.kill(2)

    idle_since: dict[str, float] = {}
    longest_idle = 0.0
    while SweepFolder.find(home, "rates").read_state().state == "running":
        now = time.monotonic()
        rows = store.list_runs(limit=100)
        used = {one.remote["target"] for one in rows if one.state in ACTIVE_STATES}
        waits = any(one.state == "queued" for one in rows)
        for member in lab.members[:2]:
            if member in used or not waits:
                idle_since.pop(member, None)
            else:
                longest_idle = max(longest_idle, now - idle_since.setdefault(member, now))
        time.sleep(0.2)
    assert longest_idle < 10

    trials = folder.read_trials()
    assert [(one.state, one.error) for one in trials] == [("done", None)] * TRIALS
    assert len(home.list("model")) == TRIALS
    rows = store.list_runs(limit=100)
    assert sorted(one.id for one in rows) == sorted(one.run for one in trials)
    for one in rows:
        events, _ = read_events(RunFolder.of(home, one.id).events)
        assert [event["state"] for event in events if event["kind"] == "finished"] == ["done"]
        steps = [one.step for one in store.metrics_since(one.id, names=["loss"])]
        assert steps == sorted(set(steps))
    ended_on = {one.remote["target"] for one in rows}
    assert set(lab.members[:2]) <= ended_on
    [moved] = [one for one in rows if one.id == lost.id]
    assert moved.remote["target"] != last
    assert moved.remote["launch"] == 2
