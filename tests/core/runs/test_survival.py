"""Tests that a training survives other processes and each of its metrics is stored once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.records.events import read_events, read_last_events
from core.records.folder import RunFolder
from core.records.process import ProcessIdentity
from core.runs.client import submit
from core.runs.start import child_environment, is_worker_running
from core.store import Store
from tests.core.runs.support import (
    metrics_in_events,
    metrics_in_table,
    processes_with,
    stop_worker,
    wait_for,
    wait_until_ended,
    worker_identities,
)
from tests.core.training.test_trainer import make_inputs
from tests.ui.browser import running_app, visiting

pytestmark = pytest.mark.slow(40)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def workspace(inputs: Workspace, tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    shutil.copytree(inputs.root, workspace.root)
    yield workspace
    stop_worker(workspace)


def start_training(workspace: Workspace, steps: int) -> tuple[str, ProcessIdentity]:
    """Queues a tiny training and waits until it trains; returns its id and process."""
    config = TrainConfig(
        preset="custom", shards="rows", engine="tensorflow", device="cpu", hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_train_steps=steps,
        per_replica_batch_size=8, eval_steps=steps // 2, save_steps=steps // 4, logging_steps=2,
    )  # fmt: skip
    run_id = submit(workspace, "train", config)
    wait_for(lambda: step_of(workspace, run_id) > 4)
    identity = RunFolder.of(workspace, run_id).read_process("run")
    assert identity is not None
    return run_id, identity


def step_of(workspace: Workspace, run_id: str) -> int:
    """Reads the last step that a run has reported."""
    events = read_last_events(RunFolder.of(workspace, run_id).events)
    return max((event["step"] for event in events if event["kind"] == "metrics"), default=0)


def see_it_go_on(workspace: Workspace, run_id: str, process: ProcessIdentity) -> None:
    before = step_of(workspace, run_id)
    wait_for(lambda: step_of(workspace, run_id) > before + 20)
    assert process.is_alive()


def list_runs(workspace: Workspace) -> None:
    """Lists runs on the command line, which also restarts the worker."""
    subprocess.run(
        [sys.executable, "-m", "core", "runs", "list", "--workspace", str(workspace.root)],
        env=child_environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert is_worker_running(workspace)


def app_identities(workspace: Workspace) -> list[ProcessIdentity]:
    return [
        identity
        for identity in processes_with(b"\0--workspace\0" + str(workspace.root).encode())
        if b"app.py" in Path(f"/proc/{identity.pid}/cmdline").read_bytes()
    ]


def kill(*identities: ProcessIdentity) -> None:
    assert identities
    for identity in identities:
        assert identity.is_alive()
        os.kill(identity.pid, signal.SIGKILL)
    for identity in identities:
        wait_for(lambda one=identity: not one.is_alive())


def see_all_metrics_once(workspace: Workspace, run_id: str, steps: int) -> None:
    measured = metrics_in_events(workspace, run_id)
    assert [step for name, step, _ in measured if name == "loss"] == list(range(2, steps + 1, 2))
    assert metrics_in_table(workspace, run_id) == measured


@pytest.mark.long
def test_training_survives_killed_app_and_worker(workspace: Workspace) -> None:
    """Kills the app, then the worker, then both at once."""
    steps = 16_000
    with running_app(workspace.root):
        run_id, process = start_training(workspace, steps)
        kill(*app_identities(workspace))
        see_it_go_on(workspace, run_id, process)
    kill(*worker_identities(workspace))
    see_it_go_on(workspace, run_id, process)
    taken_in = len(metrics_in_table(workspace, run_id))
    list_runs(workspace)
    wait_for(lambda: len(metrics_in_table(workspace, run_id)) > taken_in)
    with running_app(workspace.root):
        assert process.is_alive()
        kill(*app_identities(workspace), *worker_identities(workspace))
        see_it_go_on(workspace, run_id, process)
        assert not is_worker_running(workspace)
    wait_for(lambda: RunFolder.of(workspace, run_id).read_exit())
    store = Store.open(workspace)
    assert store.find_run(run_id).state == "running"
    list_runs(workspace)
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.attempt, row.exit_code) == ("done", 1, 0)
    see_all_metrics_once(workspace, run_id, steps)


@pytest.mark.thorough
def test_training_survives_a_closed_browser(workspace: Workspace) -> None:
    steps = 3000
    with running_app(workspace.root) as url:
        with visiting(url) as visit:
            run_id, process = start_training(workspace, steps)
            visitor = visit()
            visitor.open("Runs")
            visitor.page.get_by_role("button", name=run_id).wait_for()
            assert process.is_alive()
        see_it_go_on(workspace, run_id, process)
        row = wait_until_ended(workspace, run_id)
    assert (row.state, row.attempt) == ("done", 1)
    see_all_metrics_once(workspace, run_id, steps)


@pytest.mark.long
def test_terminated_training_resumes_when_a_worker_starts(
    workspace: Workspace,
) -> None:
    steps = 600
    run_id, process = start_training(workspace, steps)
    kill(*worker_identities(workspace))
    folder = RunFolder.of(workspace, run_id)
    supervisor = folder.read_process("supervisor")
    assert supervisor is not None and process.is_alive()
    os.kill(supervisor.pid, signal.SIGTERM)
    wait_for(folder.read_exit, 30)
    events = read_events(folder.events)[0]
    assert (events[-1]["kind"], events[-1]["reason"]) == ("finished", "preempted")
    saved = max(event["step"] for event in events if event["kind"] == "checkpoint")
    assert 0 < saved < steps
    list_runs(workspace)
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.attempt, row.done) == ("done", 2, steps)
    events = read_events(folder.events)[0]
    assert [event["step"] for event in events if event["kind"] == "resumed"] == [saved]
    see_all_metrics_once(workspace, run_id, steps)
