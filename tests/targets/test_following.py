"""Tests that a run with a mirror is followed from another workspace, whatever is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from core import TrainConfig, Workspace
from core.errors import RunError
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import follow_run, request_stop, resume_run, submit
from core.store import Store
from core.workspace.keys import import_key, make_keys
from core.workspace.manifests import hash_file
from tests.core.runs.support import (
    metrics_in_events,
    metrics_in_table,
    processes_with,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs
from tests.targets.homes import kill_followers
from tests.targets.ssh_server import running_ssh_server

pytestmark = [pytest.mark.slow(60), pytest.mark.long]
STEPS = 12000


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "machine")
    shutil.copytree(make_inputs(tmp_path / "inputs").root, workspace.root)
    yield workspace
    stop_worker(workspace)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "home")
    yield workspace
    stop_worker(workspace)
    kill_followers(workspace)


def config(mirror: str, name: str) -> TrainConfig:
    return TrainConfig(
        preset="custom", shards="rows", engine="jax", device="cpu", hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_train_steps=STEPS, mirror=mirror, name=name,
        per_replica_batch_size=8, eval_steps=1500, save_steps=500, logging_steps=20,
    )  # fmt: skip


def last_step(workspace: Workspace, run_id: str) -> int:
    store = Store.open(workspace)
    try:
        row = store.get_run(run_id)
        return int(row.done) if row else 0
    finally:
        store.close()


def weights(workspace: Workspace, name: str) -> str:
    return hash_file(workspace.folder("model") / name / "model.safetensors")


def test_followed_run_equals_the_original_after_a_stop_a_resume_and_kills(
    machine: Workspace, home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        run_id = submit(machine, "train", config(f"file://{tmp_path}/mirror", "model"))
        mirror = f"{server.address}{tmp_path}/mirror/runs/{run_id}"
        wait_for(lambda: Path(tmp_path, "mirror/runs", run_id, "claims").exists())
        follow_run(home, mirror)
        wait_for(lambda: last_step(home, run_id) > 0)

        # Follower, worker and the ssh server's connections die; the run doesn't notice.
        stop_worker(home)
        kill_followers(home)
        for one in psutil.Process(server.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        before = last_step(home, run_id)
        follow_run(home, mirror)
        request_stop(home, run_id)
        wait_for(lambda: last_step(home, run_id) >= before)
        assert wait_until_ended(machine, run_id).reason == "saved"
        row = wait_until_ended(home, run_id)
        assert (row.state, row.reason, row.error) == ("stopped", "saved", None)
        assert row.remote["incarnation"] == 1
        with pytest.raises(RunError, match="has ended"):
            follow_run(home, mirror)
        with pytest.raises(RunError, match="executed on another machine"):
            resume_run(home, run_id)

        resume_run(machine, run_id)
        wait_for(lambda: Path(tmp_path, "mirror/runs", run_id, "claims/000002.json").exists())
        follow_run(home, mirror)
        assert wait_until_ended(machine, run_id).state == "done"
        row = wait_until_ended(home, run_id)
        assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 2)

    numbers = [event["n"] for event in read_events(RunFolder.of(home, run_id).events)[0]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert metrics_in_table(home, run_id) == metrics_in_table(machine, run_id)
    assert metrics_in_events(home, run_id) == metrics_in_events(machine, run_id)
    assert weights(home, "model") == weights(machine, "model")
    assert (RunFolder.of(home, run_id).path / "checkpoints" / f"step-{STEPS:08d}").is_dir()
    assert RunFolder.of(home, run_id).log_tail(5)

    uninterrupted = submit(machine, "train", config("", "whole"))
    assert wait_until_ended(machine, uninterrupted).state == "done"
    assert weights(machine, "whole") == weights(home, "model")


@pytest.mark.thorough
def test_run_goes_on_in_another_workspace_from_its_mirror(
    machine: Workspace, home: Workspace, tmp_path: Path
) -> None:
    import_key(home.root, make_keys(machine.root).format())
    run_id = submit(machine, "train", config(f"file://{tmp_path}/mirror", "model"))
    checkpoints = tmp_path / "mirror/runs" / run_id / "incarnations/000001/checkpoints"
    wait_for(lambda: list(checkpoints.glob("*/manifest.json")))
    request_stop(machine, run_id)
    wait_until_ended(machine, run_id)
    wait_for(lambda: (checkpoints.parent / "exit.json").exists())

    assert not (home.folder("shards") / "rows").exists()
    assert resume_run(home, f"file://{tmp_path}/mirror/runs/{run_id}") == run_id
    row = wait_until_ended(home, run_id)
    assert (row.state, row.error, row.remote) == ("done", None, {})
    steps = [step for name, step, _ in metrics_in_events(home, run_id) if name == "loss"]
    assert steps == sorted(set(steps)) and steps[0] == 20
    assert metrics_in_table(home, run_id) == metrics_in_events(home, run_id)

    uninterrupted = submit(machine, "train", config("", "whole"))
    assert wait_until_ended(machine, uninterrupted).state == "done"
    assert weights(machine, "whole") == weights(home, "model")


def processes_of(workspace: Workspace) -> list[psutil.Process]:
    """Finds the supervisors and runs of a workspace."""
    found = processes_with(str(workspace.runs).encode())
    return [psutil.Process(one.pid) for one in found]


def complete_objects(incarnation: Path) -> dict[Path, bytes]:
    """Reads what a reader of the mirror takes into account: a folder counts with its manifest."""
    found = {path: path.read_bytes() for path in incarnation.rglob("*") if path.is_file()}
    whole = {path.parent for path in found if path.name == "manifest.json"}
    return {
        path: data
        for path, data in found.items()
        if path.parent in whole or "checkpoints" not in path.parts
    }


@pytest.mark.thorough
def test_frozen_run_that_was_taken_over_changes_nothing_when_it_wakes(
    machine: Workspace, home: Workspace, tmp_path: Path
) -> None:
    run_id = submit(machine, "train", config(f"file://{tmp_path}/mirror", "model"))
    own = tmp_path / "mirror/runs" / run_id / "incarnations/000001"
    wait_for(lambda: list(own.glob("checkpoints/*/manifest.json")))
    stop_worker(machine)
    frozen = processes_of(machine)
    for one in frozen:
        one.suspend()
    before = complete_objects(own)

    import_key(home.root, make_keys(machine.root).format())
    resume_run(home, f"file://{tmp_path}/mirror/runs/{run_id}")
    wait_for(lambda: (own.parents[1] / "claims/000002.json").exists())
    for one in frozen:
        one.resume()
    assert wait_until_ended(home, run_id).state == "done"
    wait_for(lambda: not any(one.is_running() for one in frozen))
    assert complete_objects(own) == before

    uninterrupted = submit(machine, "train", config("", "whole"))
    assert wait_until_ended(machine, uninterrupted).state == "done"
    assert weights(machine, "whole") == weights(home, "model")
