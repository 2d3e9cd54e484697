"""Locks between processes; the system releases those of a process that is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import StudioError
from core.workspace.places import make_folder


def lock_folder(folder: Path) -> int | None:
    """Takes a folder's lock; returns its descriptor, or None if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Takes a lock between processes; yields whether it is held, which is always so with `wait`."""
    make_folder(path.parent)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Holds a lock while the block runs; raises StudioError if another process holds it.

    `what` names the kind of process in the error, as in "app".
    """
    with file_lock(path, wait=False) as held:
        if not held:
            raise StudioError(
                f"Another {what} works on this workspace",
                expected=f"one {what} for {path.parent}",
                received=f"a second one, while the first holds {path.name}",
                fix="use the one that runs, stop it first, or name another --workspace",
            )
        yield
