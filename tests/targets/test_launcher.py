"""Tests that a run is launched once, ends once, and leaves no machine behind."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig, Workspace
from core.errors import ConfigError, StudioError
from core.records.events import EventLog, read_events, read_phases
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs import client
from core.runs.worker import Worker
from core.targets import blobs, phases
from core.targets import follower as follower_module
from core.targets import launcher as launcher_module
from core.targets import target as target_module
from core.targets.errors import TargetError, UnavailableError
from core.targets.follower import Follower
from core.targets.launcher import REMOTE_FILE, RemoteState
from core.targets.machines import delete_machine, list_machines
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.schema import Exit
from core.targets.target import Job, Status
from core.workspace.manifests import Manifest, describe_files, write_manifest
from core.workspace.places import WorkspaceMovedError, guarding_workspaces, register_root
from tests.targets import fake_target
from tests.targets.fake_target import ADDRESS, FakeTarget, Place

RUN = "train-20260101-000000-abcd"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(root=f"file://{tmp_path}/mirror")
    monkeypatch.setattr(fake_target, "PLACE", found)
    reference = f"{FakeTarget.__module__}:{FakeTarget.__qualname__}"
    monkeypatch.setitem(target_module._TARGETS, "ssh", reference)
    monkeypatch.setattr(follower_module, "SECONDS_PER_ROUND", 0.001)
    monkeypatch.setattr(follower_module, "_MOST_RETRY_SECONDS", 0.002)
    monkeypatch.setattr(launcher_module, "POLL_SECONDS", 0.0)
    yield found


def new_run(tmp_path: Path, name: str = "home", **fields: Any) -> tuple[Workspace, RunFolder]:
    workspace = Workspace(tmp_path / name)
    values = {"shards": "owner/rows", "target": ADDRESS, "name": "model", **fields}
    config = TrainConfig(**values).model_dump(mode="json")
    folder = RunFolder.of(workspace, RUN)
    folder.write_record(RunRecord(id=RUN, stage="train", config=config, created=1.0))
    return workspace, folder


def follow(workspace: Workspace, folder: RunFolder) -> dict[str, Any]:
    """Follows a run until it has ended; returns its last event of that kind."""
    Follower(folder, workspace).follow()
    return finished(folder)[-1]


def finished(folder: RunFolder) -> list[dict[str, Any]]:
    return [one for one in read_events(folder.events)[0] if one["kind"] == "finished"]


def resume(folder: RunFolder, **changes: Any) -> None:
    """Does what the worker does for a run that is to go on."""
    record = folder.read_record()
    folder.archive_attempt(folder.count_attempts())
    values = {**vars(record), "config": {**record.config, **changes}}
    folder.write_record(RunRecord(**values))


def mirror_of(place: Place) -> RunMirror:
    return RunMirror(open_store(place.root), RUN)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"n": 1, "t": 5.0, "kind": kind, **fields}


def train(place: Place, made: Path, job: Job, content: bytes = b"weights") -> None:
    """Writes all that a machine writes for a run, and ends the machine."""
    mirror = mirror_of(place)
    claim = mirror.claim(None, launch=job.launch)
    made.mkdir(parents=True, exist_ok=True)
    (made / "model.safetensors").write_bytes(content)
    files = describe_files(made)
    write_manifest(made, Manifest("model", "model", "0" * 16, files=files))
    mirror.upload_artifact(made, claim.incarnation)
    events = [
        event("metrics", step=10, values={"loss": 1.5}),
        event("artifact", artifact={"kind": "model", "name": "model"}),
        event("finished", state="done", results={}),
    ]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in events)
    mirror.create_segment(claim.incarnation, 0, lines)
    mirror.write_exit(claim.incarnation, Exit(code=0, time=time.time()))
    place.states[job.name] = Status("ended", "exit status 0")


def test_run_that_ends_while_its_state_is_asked_for_is_not_launched_again(
    place: Place, tmp_path: Path
) -> None:
    place.work = lambda job: train(place, tmp_path / "made", job)
    workspace, folder = new_run(tmp_path)
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1]
    assert (workspace.folder("model") / "model").is_dir()


class Killed(BaseException):
    """The end of the follower's process."""


def test_follower_killed_anywhere_launches_once_and_leaves_no_machine(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0]

    def step(_: str = "") -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def stepping(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def with_steps(*arguments: Any, **named: Any) -> Any:
            step()
            found = method(*arguments, **named)
            step()
            return found

        monkeypatch.setattr(owner, name, with_steps)

    for owner, name in (
        (RemoteState, "write"),
        (EventLog, "_append"),
        (RunFolder, "write_exit"),
        (RunMirror, "write_spec"),
        (RunMirror, "download_artifact"),
    ):
        stepping(owner, name)
    kills = 0
    while True:
        kills += 1
        place.root = f"file://{tmp_path}/mirror-{kills}"
        place.jobs, place.states, place.at_call = [], {}, step
        place.work = partial(train, place, tmp_path / "made")
        workspace, folder = new_run(tmp_path, f"home-{kills}")
        left[0] = kills
        try:
            Follower(folder, workspace).follow()
            break
        except Killed:
            left[0] = 0
        assert follow(workspace, folder)["state"] == "done", kills
        assert [job.launch for job in place.jobs] == [1], kills
        assert not list_unended(place), kills
        assert [one.manifest.run for one in workspace.list("model")] == [RUN], kills
        exit = folder.read_exit()
        assert exit is not None and exit["code"] == 0, kills
    assert kills > 20


def list_unended(place: Place) -> list[str]:
    return [id for id, status in place.states.items() if status.state != "ended"]


@pytest.mark.parametrize(
    ("status", "output", "error"),
    [
        (Status("waiting", "no quota"), "", "has given no machine"),
        (Status("running"), "", "starting the machine took more than 0 minutes"),
        (Status("running"), "studio: installing\nno route", "installing took more than 0 minutes"),
    ],
)
def test_machine_that_stays_in_a_phase_for_too_long_is_given_up(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: Status,
    output: str,
    error: str,
) -> None:
    monkeypatch.setattr(phases, "_LIMITS", dict.fromkeys(phases._LIMITS, 0.0))
    monkeypatch.setattr(follower_module, "limit_of", lambda phase: None)
    place.output = output
    place.work = lambda job: None
    place.at_call = lambda name: (
        place.states.update({place.jobs[-1].name: status}) if name == "launched" else None
    )
    workspace, folder = new_run(tmp_path)
    last = follow(workspace, folder)
    assert last["state"] == "failed" and error in str(last["error"])
    assert not list_unended(place)


def test_restarted_follower_counts_a_phase_from_its_reported_beginning(
    place: Place, tmp_path: Path
) -> None:
    looks = iter(range(10))

    def kill_at_the_third_look(name: str) -> None:
        if name == "state" and next(looks) == 2:
            raise Killed

    place.output, place.at_call = "studio: installing", kill_at_the_third_look
    workspace, folder = new_run(tmp_path)
    with pytest.raises(Killed):
        Follower(folder, workspace).follow()
    assert not place.cancelled
    since = read_phases(folder.events)[-1]["since"]
    text = folder.events.read_text().replace(f'"since":{since}', f'"since":{since - 7200}')
    folder.events.write_text(text)
    assert read_phases(folder.events)[-1]["since"] == since - 7200

    place.at_call = lambda name: None
    place.work = lambda job: train(place, tmp_path / "made", job) if job.launch == 2 else None
    assert follow(workspace, folder)["state"] == "done"
    details = [launch.detail for launch in RemoteState.read(folder).launches]
    assert details[0] == "installing took more than 60 minutes"


def test_changing_reason_of_a_wait_keeps_its_time(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = iter(["first in line", "second in line"])

    def change(name: str) -> None:
        if name == "state" and place.jobs:
            reason = next(reasons, "")
            place.states[place.jobs[-1].name] = (
                Status("waiting", reason) if reason else Status("running")
            )

    place.work, place.at_call = lambda job: train(place, tmp_path / "made", job), change
    workspace, folder = new_run(tmp_path)
    assert follow(workspace, folder)["state"] == "done"
    found = [one for one in read_phases(folder.events) if "capacity" in one["phase"]]
    assert len({one["phase"] for one in found}) == 3
    assert len({one["since"] for one in found}) == 1


def test_run_that_was_given_up_can_be_resumed(place: Place, tmp_path: Path) -> None:
    def fail(job: Job) -> None:
        place.states[job.name] = Status("ended", "no network")

    place.work = fail
    workspace, folder = new_run(tmp_path)
    last = follow(workspace, folder)
    assert (last["state"], last["reason"]) == ("failed", "target")
    assert "3 machines in a row" in last["error"]["problem"]
    place.work = lambda job: train(place, tmp_path / "made", job)
    resume(folder)
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1, 2, 3, 4]


def test_extended_run_fetches_its_new_artifact(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path)
    for content in (b"weights", b"better weights"):
        place.work = partial(train, place, tmp_path / "made", content=content)
        assert follow(workspace, folder)["state"] == "done"
        resume(folder)
    found = {(one.path / "model.safetensors").read_bytes() for one in workspace.list("model")}
    assert found == {b"weights", b"better weights"}


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0])
def test_short_limit_is_a_limit(seconds: float) -> None:
    job = Job(RUN, 1, "gs://bucket/folder", "0" * 64, seconds=seconds)
    assert job.arguments[-2:] == ["--seconds", "1"]


def test_job_without_a_limit_has_none() -> None:
    assert "--seconds" not in Job(RUN, 1, "gs://bucket/folder", "0" * 64).arguments


DAMAGED = ["", "{", "[]", "null", '{"launches": 5}', '{"launches": [{"x": 1}]}', "[" * 100_000,
           f'{{"launches": [{{"number": 1, "asked": {10**400}}}]}}']  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_state_launches_nothing_and_says_how_to_find_the_machine(
    place: Place, tmp_path: Path, text: str
) -> None:
    workspace, folder = new_run(tmp_path)
    (folder.path / REMOTE_FILE).write_text(text)
    with pytest.raises(StudioError, match="can't be read") as caught:
        Follower(folder, workspace)
    assert "studio targets" in caught.value.fix
    assert not place.jobs


def test_machine_stays_listed_after_its_run_was_deleted(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path)
    worker = Worker(workspace)
    worker._submit(vars(folder.read_record()))
    place.states[f"{RUN}-1"] = Status("running")
    worker.store.update_run(RUN, state="failed")
    worker._delete({"run": RUN})
    worker.store.close()
    assert [one.id for one in list_machines(workspace)] == [f"{RUN}-1"]


@pytest.mark.parametrize("clock", [0.0, 5.0, 1e11])
def test_wrong_clock_of_a_machine_neither_frees_nor_uses_up_the_limit(
    place: Place, tmp_path: Path, clock: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, folder = new_run(tmp_path, max_hours=1.0)
    following = Follower(folder, workspace)
    following._round()
    launcher = following._launcher
    assert launcher is not None and launcher.state.current is not None
    current = launcher.state.current
    current.asked -= 700
    current.billed_from = time.time() - 600
    mirror = mirror_of(place)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock)
        mirror.claim(None, launch=1)
    launcher.end_machine()
    assert 590 < launcher.state.seconds < 620


def test_refusal_of_a_target_is_the_error_of_the_run(place: Place, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        if name == "find":
            raise TargetError("Your account is locked", expected="an open account", received="403")

    place.at_call = refuse
    workspace, folder = new_run(tmp_path)
    last = follow(workspace, folder)
    assert last["error"]["problem"] == "Your account is locked"
    assert folder.read_exit() is not None


def test_full_disk_is_waited_for(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.work = lambda job: train(place, tmp_path / "made", job)
    workspace, folder = new_run(tmp_path)
    write, failures = RemoteState.write, [OSError(28, "No space left on device")] * 3

    def write_later(state: RemoteState, folder: RunFolder) -> None:
        if failures:
            raise failures.pop()
        write(state, folder)

    monkeypatch.setattr(RemoteState, "write", write_later)
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1]


def test_machine_is_deleted_before_a_stopped_run_ends(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path)
    following = Follower(folder, workspace)
    following._round()
    assert list_unended(place)
    failures = [UnavailableError("no answer")] * 3

    def fail(name: str) -> None:
        if name == "cancel" and failures:
            raise failures.pop()

    place.at_call = fail
    folder.request_stop("abort")
    following.follow()
    assert finished(folder)[-1]["reason"] == "aborted"
    assert not place.states and not failures


def test_run_ends_at_its_limit_without_another_machine(place: Place, tmp_path: Path) -> None:
    def end(job: Job) -> None:
        place.states[job.name] = Status("ended", "timeout")

    place.work = end
    workspace, folder = new_run(tmp_path, max_hours=1.0)
    following = Follower(folder, workspace)
    following._round()
    launcher = following._launcher
    assert launcher is not None and launcher.state.current is not None
    launcher.state.current.billed_from = time.time() - 3700
    following.follow()
    assert finished(folder)[-1]["reason"] == "limit"
    resume(folder)
    last = follow(workspace, folder)
    assert (last["state"], last["error"]["field"]) == ("failed", "max_hours")
    resume(folder, max_hours=2.0)
    place.work = lambda job: train(place, tmp_path / "made", job)
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1, 2]
    assert 3400 < (place.jobs[1].seconds or 0) < 3600


@pytest.mark.parametrize(("price", "limit"), [(0.0, None), (2.0, 1800.0)])
def test_limit_of_costs_depends_on_the_price(
    place: Place, tmp_path: Path, price: float, limit: float | None
) -> None:
    place.price = price
    workspace, folder = new_run(tmp_path, max_cost=1.0)
    Follower(folder, workspace)._round()
    assert place.jobs[0].seconds == limit


def test_limit_of_costs_needs_a_price(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path, max_cost=1.0)
    last = follow(workspace, folder)
    assert (last["error"]["field"], place.jobs) == ("price_per_hour", [])


def test_deleting_a_machine_stops_its_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, folder = new_run(tmp_path)
    worker = Worker(workspace)
    worker._submit(vars(folder.read_record()))
    worker.store.update_run(RUN, state="running")
    worker.store.close()
    following = Follower(folder, workspace)
    following._round()
    stop = partial(folder.request_stop, "abort")
    monkeypatch.setattr(client, "request_stop", lambda workspace, run_id, mode: stop())
    assert delete_machine(workspace, f"{RUN}-1").run_id == RUN
    following.follow()
    assert [job.launch for job in place.jobs] == [1]
    assert (place.states, finished(folder)[-1]["reason"]) == ({}, "aborted")


def test_targets_that_fail_hide_no_machine(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path)
    worker = Worker(workspace)
    record = folder.read_record()
    worker._submit(vars(record))
    config = {**record.config, "target": "ssh://other"}
    worker._submit({**vars(record), "id": "train-20260101-000000-ffff", "config": config})
    worker.store.close()
    place.states[f"{RUN}-1"] = Status("running")
    failures = [ZeroDivisionError("what"), TargetError("no login")]

    def fail(name: str) -> None:
        if failures:
            raise failures.pop()

    place.at_call = fail
    errors = [one.error for one in list_machines(workspace)]
    assert errors[0] and errors[1]
    place.at_call = lambda name: None
    assert [one.id for one in list_machines(workspace)] == [f"{RUN}-1"]


def test_model_of_another_machine_is_copied_to_the_output_folder(
    place: Place, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    place.work = lambda job: train(place, tmp_path / "made", job)
    workspace, folder = new_run(tmp_path, output=str(output))
    assert follow(workspace, folder)["state"] == "done"
    assert (output / "model.safetensors").read_bytes() == b"weights"
    (output / "manifest.json").unlink()
    another, folder = new_run(tmp_path, "another", output=str(output))
    last = follow(another, folder)
    assert (last["state"], last["error"]["field"]) == ("failed", "output")
    assert len(place.jobs) == 1, "nothing was launched"


def test_phase_from_a_machine_is_short_and_has_no_control_characters(
    place: Place, tmp_path: Path
) -> None:
    place.output = "studio: \x1b[2Jinstalling" + "x" * 1000
    workspace, folder = new_run(tmp_path)
    following = Follower(folder, workspace)
    following._round()
    following._round()
    phase = [one["phase"] for one in read_events(folder.events)[0] if one["kind"] == "remote"][-1]
    assert phase.isprintable() and "installing" in phase and len(phase) <= 100


def test_moved_workspace_keeps_its_machine(place: Place, tmp_path: Path) -> None:
    place.work = lambda job: None
    workspace, folder = new_run(tmp_path)
    with guarding_workspaces():
        register_root(workspace.root)
        following = Follower(folder, workspace)
        following._round()
        workspace.root.rename(tmp_path / "moved")
        with pytest.raises(WorkspaceMovedError):
            following.follow()
    assert list_unended(place) and not place.cancelled
    place.work = lambda job: train(place, tmp_path / "made", job)
    moved = Workspace(tmp_path / "moved")
    assert follow(moved, RunFolder.of(moved, RUN))["state"] == "done"
    assert [job.launch for job in place.jobs] == [1]


def test_stop_while_waiting_for_another_machine_keeps_it_from_beginning(
    place: Place, tmp_path: Path
) -> None:
    def lose(job: Job) -> None:
        if job.launch == 1:
            mirror_of(place).claim(None, launch=1)
            place.states[job.name] = Status("ended", "preempted")

    place.work = lose
    workspace, folder = new_run(tmp_path)
    following = Follower(folder, workspace)
    while len(place.jobs) < 2:
        following._round()
    folder.request_stop("save")
    following.follow()
    stop = mirror_of(place).read_stop()
    assert stop is not None and stop.up_to_incarnation == 2
    assert not place.states.get(f"{RUN}-2")


def test_artifact_that_does_not_fit_is_waited_for(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.work = lambda job: train(place, tmp_path / "made", job)
    usage, full = shutil.disk_usage, [True] * 3

    def little(path: Any) -> Any:
        found = usage(path)
        return found._replace(free=0) if full and full.pop() else found

    monkeypatch.setattr(shutil, "disk_usage", little)
    workspace, folder = new_run(tmp_path)
    assert follow(workspace, folder)["state"] == "done"
    assert [one.manifest.run for one in workspace.list("model")] == [RUN]


def test_machine_that_could_not_be_deleted_is_deleted_when_the_run_is_resumed(
    place: Place, tmp_path: Path
) -> None:
    def lose(name: str) -> None:
        if name == "cancel":
            raise UnavailableError("no answer")

    workspace, folder = new_run(tmp_path)
    following = Follower(folder, workspace)
    following._round()
    place.at_call = lose
    mirror = mirror_of(place)
    mirror.claim(None, launch=1)
    mirror.create_segment(1, 0, b"no events\n")
    following.follow()
    assert finished(folder)[-1]["reason"] == "mirror"
    assert list_unended(place) == [f"{RUN}-1"]
    resume(folder)
    place.at_call = lambda name: None
    place.work = partial(train, place, tmp_path / "made")
    place.root = f"file://{tmp_path}/another"
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1, 2]
    assert not place.states.get(f"{RUN}-1") and not list_unended(place)


def test_follower_that_failed_finds_its_machine_again(place: Place, tmp_path: Path) -> None:
    workspace, folder = new_run(tmp_path)
    Follower(folder, workspace)._round()
    folder.write_processes(run=ProcessIdentity.of_this())
    resume(folder)
    place.work = partial(train, place, tmp_path / "made")
    assert follow(workspace, folder)["state"] == "done"
    assert [job.launch for job in place.jobs] == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"mirror": "s3://key:secret-of-mine@bucket/folder"},
        {"shards": "https://host/rows?password=secret-of-mine"},
        {"hub_model_id": "hf_0123456789abcdefghij"},
    ],
    ids=str,
)
def test_settings_with_a_secret_are_refused_without_showing_it(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    config = TrainConfig(**{"target": ADDRESS, "shards": "owner/rows", **fields})
    with pytest.raises(StudioError, match="password or a token") as caught:
        client.submit(Workspace(tmp_path / "home"), "train", config)
    assert "secret-of-mine" not in str(caught.value)
    assert "hf_0123" not in str(caught.value)


def test_relative_paths_are_those_of_the_folder_in_which_the_run_was_started(
    place: Place, tmp_path: Path
) -> None:
    started_in = tmp_path / "project"
    started_in.mkdir()
    (started_in / "config.json").write_text("{}")
    workspace, folder = new_run(tmp_path, model_config_path="config.json")
    folder.write_record(replace(folder.read_record(), cwd=str(started_in)))
    Follower(folder, workspace)._round()
    assert [one.field for one in mirror_of(place).read_spec().inputs] == ["model_config_path"]
    assert len(place.jobs) == 1


def test_too_many_files_are_refused_before_any_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MOST_FILES", 1)
    missing = {name: Path(name) for name in ("a.txt", "b.txt")}
    with pytest.raises(ConfigError, match="one archive") as raised:
        blobs.Inputs().add_files("train_path", missing)
    assert raised.value.field == "train_path"
