"""Locks between processes, released when a process is killed.

`filelock.FileLock` would re-create a moved workspace's folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import StudioError
from core.workspace.places import make_folder

_POLL_SECONDS = 0.01


def lock_folder(folder: Path) -> int | None:
    """Locks a folder; returns a descriptor, or None if taken."""
    from filelock import lock_descriptor

    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # The file system has no locks.
        if lock_descriptor(descriptor, blocking=False):
            return descriptor
    os.close(descriptor)
    return None


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Takes a lock; yields whether it is held."""
    from filelock import lock_descriptor

    make_folder(path.parent)
    with path.open("a") as file:
        yield lock_descriptor(file.fileno(), blocking=wait, poll_interval=_POLL_SECONDS)


@contextmanager
def single_instance(path: Path, what: str) -> Iterator[None]:
    """Holds a lock or raises StudioError, naming `what`."""
    with file_lock(path, wait=False) as held:
        if not held:
            raise StudioError(
                f"Another {what} is using this workspace",
                expected=f"one {what} for {path.parent}",
                received=f"a second one, while the first one holds the lock {path.name}",
                fix=f"use the running {what}, stop it first, or choose another --workspace",
            )
        yield
