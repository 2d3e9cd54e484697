"""Tests of runs on a real Slurm: limits of time, lost nodes, several nodes, stops, a full disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from core import FinetuneConfig, Workspace
from core.config.sweep import SweepConfig
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import request_stop, resume_run, submit
from core.sweeps.client import create_sweep, start_sweep
from core.targets.machines import list_machines
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.runs.support import processes_with, wait_for, wait_until_ended
from tests.core.training.test_trainer import make_inputs
from tests.targets.slurm_cluster import Cluster, running_cluster
from tests.targets.ssh_server import running_ssh_server
from tests.targets.test_following import weights
from tests.targets.test_launching import config, phases, row_of
from tests.targets.test_stages import BAD, GOOD, figures

pytestmark = [pytest.mark.slow(40), pytest.mark.long]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def surroundings(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    # Jobs don't get it, and it changes the last bits of a local run.
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def address(shared: Path, more: str = "", host: str = "localhost") -> str:
    return f"slurm://{host}?time=00:30:00&python={sys.executable}&folder={shared}{more}"


def step(shared: Path, run_id: str) -> int:
    """Returns the newest step that the machine itself has reported."""
    events = shared / f"runs/{run_id}-1-0/runs/{run_id}/events.jsonl"
    progress = [
        event
        for event in (read_events(events)[0] if events.exists() else [])
        if event["kind"] == "progress"
    ]
    steps = [event["done"] for event in progress if event["unit"] == "steps"]
    return int(max(steps, default=0))


def mirror(shared: Path, run_id: str) -> RunMirror:
    return RunMirror(open_store(f"file://{shared}/mirror"), run_id)


def freeze(shared: Path) -> psutil.Process:
    """Stops the run's process: it gets no further, and handles signals only when it goes on."""
    (identity,) = processes_with(f"core.runs.execute\0{shared}".encode())
    os.kill(identity.pid, signal.SIGSTOP)
    return psutil.Process(identity.pid)


def is_asked_to_save(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def reach_limit(cluster: Cluster, job: dict[str, str], process: psutil.Process) -> None:
    """Brings a job near its limit of time for as long as its frozen process gets the signal."""
    task = "_".join(filter(None, map(job.get, ("ArrayJobId", "ArrayTaskId")))) or job["JobId"]
    hours, minutes, _ = map(int, job["RunTime"].split(":"))
    # It is at once within the lead of the signal, and not yet beyond its end.
    limit = f"TimeLimit={60 * hours + minutes + 2}"
    cluster.ask("scontrol", "update", f"JobId={task}", limit)
    wait_for(lambda: is_asked_to_save(process), 60)
    cluster.ask("scontrol", "update", f"JobId={task}", "TimeLimit=30")


def kill_node(cluster: Cluster, job: dict[str, str]) -> None:
    """Kills a job's node as a loss of power would: its daemon, and all that it has started."""
    cluster.processes[job["NodeList"]].kill()
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "slurmstepd" and f"[{job['JobId']}." in str(
            process.info["cmdline"]
        ):
            for child in [process, *process.children(recursive=True)]:
                child.kill()


@pytest.mark.slow(180)
def test_run_through_two_limits_of_time_equals_an_uninterrupted_run(
    cluster: Cluster, home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_ssh_server(tmp_path / "ssh", SLURM_CONF=cluster.config) as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        shared = tmp_path / "ssh/home/shared"
        where = address(Path("~/shared"), host=server.address.removeprefix("ssh://"))
        run_id = submit(home, "train", config(where, "cluster", max_hours=1.0))
        for limit in (1, 2):
            wait_for(lambda: step(shared, run_id) > 0)
            process = freeze(shared)
            assert mirror(shared, run_id).look().newest == limit
            reach_limit(cluster, cluster.job(f"{run_id}-1"), process)
            process.resume()
            wait_for(lambda limit=limit: mirror(shared, run_id).look().newest > limit)
        row = wait_until_ended(home, run_id)
        assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 3)
        assert row.remote["launch"] == 1
        assert cluster.job(f"{run_id}-1")["Restarts"] == "2"
        script = (shared / f"launches/{run_id}-1/job.sh").read_text()
        assert "#SBATCH --signal=B:USR1@120\n" in script and "#SBATCH --requeue\n" in script
        # The key of the run is in no file of the cluster.
        search = subprocess.run(
            ["grep", "-rl", "STUDIO_RUN_KEY=", shared / "launches"], check=False
        )
        assert search.returncode == 1
        seen = phases(home, run_id)
        assert any(re.match(r"training \(job \d+ on n\d until ", phase) for phase in seen), seen
        assert any(re.match(r"waiting for capacity \(job \d+", phase) for phase in seen), seen
        wait_for(lambda: list_machines(home) == [])  # Slurm still completes the job.
    local = submit(home, "train", config("", "local"))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "cluster")


def test_run_goes_on_on_another_node_when_its_node_dies(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    run_id = submit(home, "train", config(address(shared), "cluster"))
    wait_for(lambda: mirror(shared, run_id).find_checkpoints(mirror(shared, run_id).look()))
    freeze(shared)
    job = cluster.job(f"{run_id}-1")
    kill_node(cluster, job)
    wait_for(lambda: mirror(shared, run_id).look().newest == 2)
    assert mirror(shared, run_id).read_claim(2).continues is not None
    row = wait_until_ended(home, run_id)
    assert (row.state, row.error, row.remote["launch"]) == ("done", None, 1)
    assert cluster.job(f"{run_id}-1")["NodeList"] != job["NodeList"]
    cluster.start_node(job["NodeList"])


def test_two_nodes_train_together_and_are_stopped(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    where = address(shared, "&nodes=2")
    run_id = submit(home, "train", config(where, "cluster", num_train_steps=10**6))
    wait_for(lambda: (row := row_of(home, run_id)).done > 0 and row.unit == "steps")
    events = read_events(RunFolder.of(home, run_id).events)[0]
    (resolved,) = [event for event in events if event["kind"] == "resolved"]
    assert resolved["settings"]["num_processes"] == 2
    # Both hosts are asked to save, and start again from the claim of this start.
    cluster.ask("scancel", "--signal=USR1", "--batch", cluster.job(f"{run_id}-1")["JobId"])
    wait_for(lambda: mirror(shared, run_id).look().newest == 2)
    assert mirror(shared, run_id).read_claim(2).continues is not None
    wait_for(lambda: row_of(home, run_id).remote.get("incarnation") == 2)
    request_stop(home, run_id)
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "saved", None)


def test_jobs_wait_for_nodes_and_are_cancelled_here_or_there(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    run_id = submit(home, "train", config(address(shared), "running", num_train_steps=10**6))
    wait_for(lambda: step(shared, run_id) > 0)
    waiting = submit(home, "train", config(address(shared, "&nodes=4"), "waiting"))
    wait_for(lambda: "Resources" in str(row_of(home, waiting).remote.get("phase")))
    assert {machine.run_id for machine in list_machines(home)} == {run_id, waiting}
    # By hand, at the cluster: it isn't submitted again.
    cluster.ask("scancel", cluster.job(f"{waiting}-1")["JobId"])
    row = wait_until_ended(home, waiting)
    assert (row.state, row.reason, row.remote["launch"]) == ("stopped", "cancelled", 1)
    # Stopped while it waits once more, with its last checkpoint.
    cluster.ask("scontrol", "requeuehold", cluster.job(f"{run_id}-1")["JobId"])
    wait_for(lambda: "held" in str(row_of(home, run_id).remote.get("phase")))
    request_stop(home, run_id)
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "saved", None)
    assert cluster.job(f"{run_id}-1")["JobState"] == "CANCELLED"
    assert mirror(shared, run_id).find_checkpoints(mirror(shared, run_id).look())
    wait_for(lambda: list_machines(home) == [])


def test_full_shared_disk_is_told_and_the_run_goes_on_with_room(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    with small_disk(shared):
        run_id = submit(home, "train", config(address(shared), "cluster", num_train_steps=20_000))
        wait_for(lambda: mirror(shared, run_id).find_checkpoints(mirror(shared, run_id).look()))
        process = freeze(shared)
        fill(shared / "filling")
        process.resume()
        wait_for(lambda: "no room in the folder" in str(row_of(home, run_id).remote.get("phase")))
        (shared / "filling").unlink()
        row = wait_until_ended(home, run_id)
        if row.state == "failed":
            # It had to save before there was room.
            assert row.reason == "disk_full"
            resume_run(home, run_id)
            row = wait_until_ended(home, run_id)
        assert (row.state, row.error) == ("done", None)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a disk of 64 MB; skips the test where that isn't allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.thorough
def test_fine_tuning_takes_one_node_and_gives_the_figures_of_a_local_run(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    with home.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, make_tokenizer(home, "byte_level_bpe"))
    (tmp_path / "train.csv").write_text("text,label\n" + f"{GOOD},yes\n{BAD},no\n" * 40)
    rows = []
    for target in ("", address(tmp_path / "shared"), address(tmp_path / "shared", "&nodes=2")):
        tuning = FinetuneConfig(
            model="words", train_path=str(tmp_path / "train.csv"), learning_rates="1e-3",
            num_train_epochs=1, engine="jax", device="cpu", target=target,
        )  # fmt: skip
        rows.append(wait_until_ended(home, submit(home, "finetune", tuning)))
    assert [row.state for row in rows] == ["done", "done", "failed"]
    assert figures(rows[0]) == figures(rows[1])
    assert "one host" in rows[2].error["problem"]
    assert list_machines(home) == []


@pytest.mark.slow(120)
def test_sweep_becomes_an_array_whose_trials_are_runs_of_their_own(
    cluster: Cluster, home: Workspace, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    trial = config(address(shared), "", num_train_steps=5000)
    base = trial.model_dump(exclude_unset=True, exclude={"name"})
    sweep = SweepConfig(
        name="rates", base=base, options={"learning_rate": [1e-4, 1e-3, 1e-2]}, method="grid"
    )
    folder = create_sweep(home, sweep)
    start_sweep(home, folder)
    wait_for(lambda: len(folder.read_trials()) == 3)
    runs = [trial.run for trial in folder.read_trials()]
    wait_for(lambda: all(cluster.job(f"{run}-1") for run in runs))
    jobs = [cluster.job(f"{run}-1") for run in runs]
    tasks = {(job.get("ArrayJobId"), job.get("ArrayTaskId")) for job in jobs}
    assert len(tasks) == 3 and len({number for number, _ in tasks}) < 3
    # The task with the array's own number saves and starts again, as before its limit of time.
    run = next(
        run for run, job in zip(runs, jobs, strict=True) if job["JobId"] == job.get("ArrayJobId")
    )
    wait_for(lambda: step(shared, run) > 0)
    process = freeze(shared / f"runs/{run}")
    reach_limit(cluster, cluster.job(f"{run}-1"), process)
    process.resume()
    wait_for(lambda: folder.read_state().state != "running")
    trials = folder.read_trials()
    assert [(trial.state, trial.error) for trial in trials] == [("done", None)] * 3
    restarts = {run: row_of(home, run).remote["incarnation"] for run in runs}
    assert restarts == {**dict.fromkeys(runs, 1), run: 2}
    assert len({trial.value for trial in trials}) == 3
    assert {row_of(home, run).remote["launch"] for run in runs} == {1}
    wait_for(lambda: list_machines(home) == [])
