"""Tests that processes do not recreate a moved or deleted workspace at its old path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.errors import RunError, StudioError
from core.records.events import read_last_events
from core.records.folder import RunFolder
from core.runs.client import ensure_worker, rebuild_database, resume_run, submit
from core.runs.start import child_environment, is_worker_running, start_in_own_session
from core.runs.worker import EXIT_MOVED
from core.store import Store
from core.workspace.atomic import write_atomically
from core.workspace.locks import file_lock
from core.workspace.places import WorkspaceMovedError, guarding_workspaces, make_folder
from tests.core.runs.support import (
    begin_run,
    delete_folder,
    processes_with,
    stop_worker,
    wait_for,
    wait_until_ended,
    worker_identities,
)
from tests.core.training.test_trainer import make_inputs
from tests.ports import free_port


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "old")
    workspace.make_root()
    yield workspace
    for root in (workspace.root, tmp_path / "new"):
        if worker_identities(Workspace(root)):
            stop_worker(Workspace(root))


def _move(workspace: Workspace) -> Workspace:
    moved = workspace.root.with_name("new")
    workspace.root.rename(moved)
    return Workspace(moved)


@pytest.mark.parametrize("replaced", [False, True])
def test_moved_workspace_is_not_recreated_at_its_old_path(
    workspace: Workspace, replaced: bool
) -> None:
    with guarding_workspaces():
        store = Store.open(workspace)
        workspace.make_root()
        _move(workspace)
        if replaced:
            workspace.root.mkdir()
        with pytest.raises(WorkspaceMovedError, match=r"now at .*/new"):
            make_folder(workspace.runs / "x")
        with pytest.raises(WorkspaceMovedError), workspace.new_artifact("tokenizer", "x"):
            pass
        with pytest.raises(WorkspaceMovedError), file_lock(workspace.root / "x.lock"):
            pass
        with pytest.raises(WorkspaceMovedError):
            write_atomically(workspace.root / "x.json", "{}")
        with pytest.raises(WorkspaceMovedError):
            store.add_request("look", {})
        with pytest.raises(WorkspaceMovedError):
            Store.open(workspace)
        assert not workspace.root.exists() or not list(workspace.root.iterdir())
        store.close()


def test_deleted_workspace_is_not_recreated(workspace: Workspace) -> None:
    with guarding_workspaces():
        workspace.make_root()
        shutil.rmtree(workspace.root)
        workspace.root.mkdir()
        with pytest.raises(WorkspaceMovedError, match="it was deleted"):
            make_folder(workspace.runs)
        assert not list(workspace.root.iterdir())


def test_workspace_moved_before_its_guard_ended_stays_at_its_new_path(workspace: Workspace) -> None:
    """Threads of an app that ends may still write."""
    with guarding_workspaces():
        workspace.make_root()
        _move(workspace)
    with pytest.raises(WorkspaceMovedError, match=r"now at .*/new"):
        make_folder(workspace.root)
    assert not workspace.root.exists()


def test_workspace_moved_during_a_check_is_not_recreated(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def is_dir_then_move(path: Path) -> bool:
        found = is_dir(path)
        if path == workspace.root and found:
            _move(workspace)
        return found

    with guarding_workspaces():
        workspace.make_root()
        monkeypatch.setattr(Path, "is_dir", is_dir_then_move)
        with suppress(WorkspaceMovedError):
            make_folder(workspace.root)
        monkeypatch.undo()
        assert not workspace.root.exists()


def test_worker_does_not_create_a_workspace(workspace: Workspace) -> None:
    """It may have been moved while its worker started."""
    _move(workspace)
    log = workspace.root.with_name("log")
    worker = start_in_own_session(["core.runs.worker", "--workspace", str(workspace.root)], log)
    assert worker.wait(100) == EXIT_MOVED
    assert "there is no workspace" in log.read_text()
    assert not workspace.root.exists()


def test_worker_of_a_moved_workspace_ends_and_a_new_worker_serves_the_new_path(
    workspace: Workspace,
) -> None:
    worker = ensure_worker(workspace)
    assert worker is not None
    wait_for(lambda: is_worker_running(workspace))
    moved = _move(workspace)
    wait_for(lambda: worker.poll() is not None, 20)
    assert not workspace.root.exists()
    assert "was moved" in (moved.root / "worker.log").read_text()
    assert rebuild_database(moved) == 0
    begin_run(moved, "train-1")[1].close()
    assert rebuild_database(moved) == 1
    assert is_worker_running(moved)
    assert not workspace.root.exists()


def test_worker_of_a_deleted_workspace_ends(workspace: Workspace) -> None:
    worker = ensure_worker(workspace)
    assert worker is not None
    wait_for(lambda: is_worker_running(workspace))
    delete_folder(workspace.root)
    wait_for(lambda: worker.poll() is not None, 20)
    assert not workspace.root.exists()


def test_resume_without_a_readable_run_folder_is_refused_with_advice(workspace: Workspace) -> None:
    folder, reporter = begin_run(workspace, "train-1")
    reporter.event("finished", state="failed", reason="error", error=None)
    reporter.close()
    rebuild_database(workspace)
    wait_until_ended(workspace, "train-1")
    shutil.rmtree(folder.path)
    with pytest.raises(RunError, match="folder of the run train-1 is missing") as caught:
        resume_run(workspace, "train-1")
    assert "old workspace" in caught.value.fix
    assert "delete" not in caught.value.fix
    folder.path.mkdir()
    (folder.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json can't be read") as caught:
        resume_run(workspace, "train-1")
    assert "delete" not in str(caught.value) and "RunRecord" not in str(caught.value)


@pytest.mark.long
@pytest.mark.slow(40)
def test_run_of_a_moved_workspace_ends_and_resumes_at_the_new_path(
    workspace: Workspace, tmp_path: Path
) -> None:
    shutil.rmtree(workspace.root)
    shutil.copytree(make_inputs(tmp_path / "inputs").root, workspace.root)
    config = TrainConfig(
        preset="custom", shards="rows", engine="jax", device="cpu", hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_train_steps=1000,
        per_replica_batch_size=8, eval_steps=500, save_steps=20, logging_steps=10,
    )  # fmt: skip
    run_id = submit(workspace, "train", config)
    folder = RunFolder.of(workspace, run_id)
    wait_for(lambda: list(folder.path.glob("checkpoints/step-*")))
    process = folder.read_process("run")
    assert process is not None
    moved = _move(workspace)
    wait_for(lambda: not process.is_alive(), 30)
    wait_for(lambda: not processes_with(str(workspace.root).encode()), 30)
    assert not workspace.root.exists()
    finished = [
        event
        for event in read_last_events(RunFolder.of(moved, run_id).events)
        if event["kind"] == "finished"
    ]
    assert finished[-1]["reason"] == "workspace_moved"
    resume_run(moved, run_id)
    store = Store.open(moved)
    wait_for(lambda: (row := store.get_run(run_id)) and row.state == "running")
    wait_for(
        lambda: any(
            e["kind"] == "resumed" for e in read_last_events(RunFolder.of(moved, run_id).events)
        )
    )
    RunFolder.of(moved, run_id).request_stop("abort")
    wait_until_ended(moved, run_id)
    assert not workspace.root.exists()


@pytest.mark.slow(10)
@pytest.mark.long
@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_app_of_a_moved_workspace_ends_with_an_explanation(
    workspace: Workspace, handler: str
) -> None:
    """Also as a shell's background job, which ignores SIGINT."""
    start = (
        f"import signal, runpy; signal.signal(signal.SIGINT, signal.{handler}); "
        "runpy.run_path('app.py', run_name='__main__')"
    )
    app = subprocess.Popen(
        [
            sys.executable,
            "-c",
            start,
            "--workspace",
            str(workspace.root),
            "--port",
            str(free_port()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment() | {"PYTHONUNBUFFERED": "1"},
    )
    assert app.stdout is not None
    for line in app.stdout:
        if "Stop it with" in line:
            break
    moved = _move(workspace)
    said, _ = app.communicate(timeout=100)
    assert app.returncode == 1
    assert f"it is now at {moved.root}" in said
    assert not workspace.root.exists()


def test_command_at_the_new_path_does_not_wait_for_the_old_worker(workspace: Workspace) -> None:
    """The old worker still holds the lock when the command runs."""
    ensure_worker(workspace)
    wait_for(lambda: is_worker_running(workspace))
    moved = _move(workspace)
    listed = subprocess.run(
        [sys.executable, "-m", "core", "runs", "rebuild", "--workspace", str(moved.root)],
        env=child_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert not workspace.root.exists()
    with pytest.raises(StudioError):
        resume_run(moved, "nothing")
    assert os.listdir(moved.root)
