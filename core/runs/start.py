"""Starts the worker and other processes that outlive their starter."""

from __future__ import annotations

import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from core.network.outbound import TYPED_HOSTS_VARIABLE
from core.processes.children import module_command, with_module_paths
from core.processes.environment import for_supervisors
from core.runs.slots import default_slots
from core.workspace.locks import file_lock
from core.workspace.places import user_umask
from core.workspace.workspace import Workspace

_LOCK_FILE = "worker.lock"
_LOG_FILE = "worker.log"

_children: list[subprocess.Popen[bytes]] = []


def child_environment() -> dict[str, str]:
    """Returns the environment of the worker and of supervisors."""
    environment = with_module_paths(for_supervisors(os.environ))
    # They must not reach hosts typed by another submitter.
    environment.pop(TYPED_HOSTS_VARIABLE, None)
    return environment


def worker_lock(workspace: Workspace) -> AbstractContextManager[bool]:
    """Tries to take the worker lock; yields True if held."""
    return file_lock(workspace.root / _LOCK_FILE, wait=False)


def is_worker_running(workspace: Workspace) -> bool:
    with worker_lock(workspace) as free:
        return not free


def worker_log(workspace: Workspace) -> Path:
    return workspace.root / _LOG_FILE


def start_worker(workspace: Workspace) -> subprocess.Popen[bytes]:
    """Starts a worker in its own session; raises ConfigError."""
    slots = default_slots()
    workspace.make_root()
    arguments = ["core.runs.worker", "--workspace", str(workspace.root), "--slots", str(slots)]
    return start_in_own_session(arguments, worker_log(workspace))


def start_in_own_session(module_arguments: list[str], log_file: Path) -> subprocess.Popen[bytes]:
    """Starts `python -m ...`, which outlives its parent."""
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            module_command(*module_arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=child_environment(),
            umask=user_umask(),
        )
    _reap_when_ended(process)
    return process


def _reap_when_ended(process: subprocess.Popen[bytes]) -> None:
    """Avoids zombies."""
    _children[:] = [child for child in _children if child.poll() is None]
    _children.append(process)
