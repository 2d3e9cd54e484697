"""Workspaces and ssh machines of tests that launch runs; nothing of them outlives the test."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from core import Workspace
from core.runs.start import is_worker_running
from tests.core.runs.support import processes_with, stop_worker
from tests.targets.ssh_server import SshServer, running_ssh_server


@contextmanager
def copied_workspace(inputs: Path, folder: Path) -> Iterator[Workspace]:
    """Copies a workspace with inputs to `folder`, and stops its processes at the end."""
    workspace = Workspace(folder)
    shutil.copytree(inputs, workspace.root)
    with stopped_at_the_end(workspace):
        yield workspace


@contextmanager
def stopped_at_the_end(workspace: Workspace) -> Iterator[None]:
    yield
    if is_worker_running(workspace):
        stop_worker(workspace)
    kill_followers(workspace)


@contextmanager
def ssh_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """Runs an ssh server below `folder`, and kills what was started through it."""
    with running_ssh_server(folder / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        yield server
        for one in machine_processes(folder):
            with suppress(psutil.NoSuchProcess):
                one.kill()


def kill_followers(workspace: Workspace) -> None:
    for one in processes_with(b"core.targets.follower\0" + str(workspace.root).encode()):
        with suppress(ProcessLookupError):  # It may end by itself.
            os.kill(one.pid, signal.SIGKILL)


def machine_processes(folder: Path) -> list[psutil.Process]:
    """Finds the processes that the ssh server's home has started, outermost first."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("HOME") == str(folder / "ssh" / "home"):
                found.append(one)
        except psutil.Error:
            continue
    return [one for one in found if one.name() not in ("sshd", "sh", "bash")]
