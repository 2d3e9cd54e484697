"""Helpers for tests of real runs: waiting, finding processes, stopping workers."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.config.train import TrainConfig
from core.records.events import FolderReporter, read_events
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs.start import is_worker_running
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

WAIT_SECONDS = 300.0


def begin_run(workspace: Workspace, run_id: str) -> tuple[RunFolder, FolderReporter]:
    """Creates the folder and reporter of a training that has only started."""
    folder = RunFolder.of(workspace, run_id)
    config = TrainConfig(shards="rows").model_dump(mode="json")
    folder.write_record(RunRecord(id=run_id, stage="train", config=config))
    reporter = FolderReporter(folder.path, echo=False)
    reporter.event("started", stage="train", process={"pid": 1})
    return folder, reporter


def wait_for(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Waits until the condition holds; fails after the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def delete_folder(folder: Path) -> None:
    """Deletes a folder to which other processes may still write.

    A file created between the listing and the removal of its folder makes
    `shutil.rmtree` fail; users would repeat the command.
    """

    def is_deleted() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(is_deleted, 20)


def wait_until_ended(workspace: Workspace, run_id: str, seconds: float = WAIT_SECONDS) -> RunRow:
    """Waits until a run has ended and returns it."""
    store = Store.open(workspace)
    wait_for(lambda: (row := store.get_run(run_id)) and row.has_ended, seconds)
    return store.find_run(run_id)


def stop_worker(workspace: Workspace) -> None:
    """Kills the workspace's worker, as a crash would."""
    for identity in worker_identities(workspace):
        with suppress(ProcessLookupError):  # It may end by itself.
            os.kill(identity.pid, signal.SIGKILL)
    wait_for(lambda: not is_worker_running(workspace))


def worker_identities(workspace: Workspace) -> list[ProcessIdentity]:
    """Finds the running workers of a workspace."""
    wanted = b"\0core.runs.worker\0--workspace\0" + str(workspace.root).encode() + b"\0"
    return processes_with(wanted)


def processes_with(words: bytes) -> list[ProcessIdentity]:
    """Finds the running processes whose command line contains these bytes."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = [pid for pid in pids if words in command_line(pid)]
    return [identity for pid in found if (identity := ProcessIdentity.of(pid))]


def command_line(pid: int) -> bytes:
    """Reads a process's command line, with NUL-terminated arguments."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def metrics_in_events(workspace: Workspace, run_id: str) -> list[tuple[str, int, float]]:
    """Reads a run's metrics from its events; values after a resumption replace earlier ones."""
    found: list[tuple[str, int, float]] = []
    for event in read_events(RunFolder.of(workspace, run_id).events)[0]:
        if event["kind"] == "resumed":
            found = [one for one in found if one[1] <= event["step"]]
        if event["kind"] == "metrics":
            found += [(name, event["step"], value) for name, value in event["values"].items()]
    return sorted(found)


def metrics_in_table(workspace: Workspace, run_id: str) -> list[tuple[str, int, float]]:
    """Reads a run's metrics from the database."""
    store = Store.open(workspace)
    rows = store.metrics_since(run_id, limit=1_000_000)
    store.close()
    return sorted((row.name, row.step, row.value) for row in rows)
