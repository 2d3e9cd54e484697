"""A target that can't be reached is told in the log, and a stop ends the run at once."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.processes.children import module_command
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.targets import follower
from core.targets.follower import Follower
from tests.core.runs.support import wait_for
from tests.ports import free_port

RUN = "train-20260101-000000-abcd"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def write_run(tmp_path: Path, **values: str) -> tuple[Workspace, RunFolder]:
    workspace = Workspace(tmp_path / "workspace")
    config = TrainConfig(shards="owner/rows", **values)
    folder = RunFolder.of(workspace, RUN)
    record = RunRecord(id=RUN, stage="train", config=config.model_dump(mode="json"), created=1.0)
    folder.write_record(record)
    return workspace, folder


def events_of(folder: RunFolder, kind: str) -> list[dict[str, object]]:
    return [one for one in read_events(folder.events)[0] if one["kind"] == kind]


@pytest.mark.slow(4)
def test_stop_ends_a_run_whose_target_never_answers(tmp_path: Path, silent_port: int) -> None:
    _, folder = write_run(tmp_path, target=f"ssh://127.0.0.1:{silent_port}")
    process = subprocess.Popen(module_command("core.targets.follower", folder.path))
    try:
        wait_for(lambda: events_of(folder, "remote"), 60)
        folder.request_stop("save", "user")
        assert process.wait(40) == 0
    finally:
        process.kill()
    [finished] = events_of(folder, "finished")
    assert finished["state"] == "stopped"


@pytest.mark.slow(4)
def test_error_of_a_target_is_in_the_log_and_a_stop_ends_the_pause(tmp_path: Path) -> None:
    _, folder = write_run(tmp_path, target=f"ssh://127.0.0.1:{free_port()}")
    process = subprocess.Popen(module_command("core.targets.follower", folder.path))
    try:
        wait_for(lambda: folder.log.exists() and folder.log.read_text(), 60)
        assert "refused" in folder.log.read_text()
        assert "refused" in str(events_of(folder, "warning"))
        folder.request_stop("abort", "user")
        assert process.wait(40) == 0
    finally:
        process.kill()
    assert [one["reason"] for one in events_of(folder, "finished")] == ["aborted"]


def test_target_that_cannot_be_reached_for_long_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, folder = write_run(tmp_path, target=f"ssh://127.0.0.1:{free_port()}")
    monkeypatch.setattr(follower, "MOST_UNREACHABLE_SECONDS", 0.0)
    Follower(folder, workspace).follow()
    [finished] = events_of(folder, "finished")
    assert finished["state"] == "failed" and "refused" in str(finished["error"])
