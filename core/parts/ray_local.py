"""Starts a Ray that only this user on this machine can reach."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from core.processes.environment import for_parts

_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
# Ray makes sockets in its folder; Linux limits their paths to 107 bytes.
_LONGEST_FOLDER = 20
_ENDED_WITHIN_SECONDS = 10.0


def private_settings() -> dict[str, str]:
    """Returns environment variables that must be set before Ray is imported.

    The first is undocumented: without it Ray listens on all addresses.
    """
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        _TOKEN_PATH: str(_token_file()),
    }


@contextmanager
def hiding_secrets(*, needs_credentials: bool) -> Iterator[None]:
    """Hides this process's secrets from the processes that Ray starts in the meantime."""
    allowed = for_parts(os.environ, has_credentials=needs_credentials)
    hidden = {
        name: value
        for name, value in os.environ.items()
        if name not in allowed and name not in private_settings()
    }
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM that `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler: Any = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Yields a folder for Ray's sockets and logs that other users can't read.

    No process that this one has started for the folder outlives it: `ray.shutdown` doesn't know
    those of a start that was interrupted.
    """
    outer = Path(tempfile.mkdtemp(prefix="ray-", dir=_temporary_folder()))
    # Ray opens the folder itself to everybody.
    folder = outer / "r"
    folder.mkdir()
    try:
        yield folder
    finally:
        _end_processes(folder)
        shutil.rmtree(outer, ignore_errors=True)


def _end_processes(folder: Path) -> None:
    """Kills the processes below this one whose command lines name a folder."""
    ended = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in part for part in process.cmdline()):
                process.kill()
                ended.append(process)
    psutil.wait_procs(ended, timeout=_ENDED_WITHIN_SECONDS)


@lru_cache(maxsize=1)
def _token_file() -> Path:
    """Writes a token for this process, since Ray reads the file only once."""
    folder = Path(tempfile.mkdtemp(prefix="ray-token-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _temporary_folder() -> str:
    chosen = tempfile.gettempdir()
    return chosen if len(os.fsencode(chosen)) <= _LONGEST_FOLDER else "/tmp"
