"""Notices that a workspace's folder was moved, deleted or replaced while a process uses it.

A process remembers the folder itself, by an open descriptor, and compares it with what lies at its
path before it makes a folder, writes a file or asks the database. So nothing is written to a place
that the workspace has left, and the place isn't made anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import StudioError

_DELETED = " (deleted)"
# Whether this process remembers the folders of the workspaces that it uses, and these.
_guards = 0
_remembered: dict[Path, int] = {}


class WorkspaceMovedError(StudioError):
    """The workspace isn't where it was when this process began to use it."""

    reason = "workspace_moved"


@contextmanager
def guarding_places() -> Iterator[None]:
    """Remembers, while the block runs, the folder of each workspace that this process uses."""
    global _guards
    _guards += 1
    try:
        yield
    finally:
        _guards -= 1
        if not _guards:
            _forget_all()


def remember_place(root: Path) -> None:
    """Remembers a workspace's folder, if it is there and this process guards such places."""
    if not _guards or root in _remembered:
        return
    with suppress(OSError):
        _remembered[root] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def check_in_place(path: Path) -> None:
    """Refuses to go on where the workspace that a path lies in has been moved or deleted.

    Raises:
        WorkspaceMovedError: It isn't there any more, or another folder has its place.
    """
    for root, descriptor in _remembered.items():
        if _is_below(path, root) and not _is_same(root, descriptor):
            raise _moved(root, descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder with those above it, unless that would re-create a workspace that is gone.

    Raises:
        WorkspaceMovedError: The workspace that this process uses was moved or deleted.
    """
    check_in_place(path)
    path.mkdir(parents=True, exist_ok=True)


def _is_below(path: Path, root: Path) -> bool:
    # What is below it by its real path stays so when the folder is gone: a link above it stays.
    return path.is_relative_to(root) or path.is_relative_to(os.path.realpath(root))


def _is_same(root: Path, descriptor: int) -> bool:
    held = os.fstat(descriptor)
    try:
        found = os.stat(root)
    except OSError:
        return False
    return (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino) and held.st_nlink > 0


def _moved(root: Path, descriptor: int) -> WorkspaceMovedError:
    place = _new_place(descriptor)
    return WorkspaceMovedError(
        f"The workspace {root} was moved or deleted while it was in use",
        expected="the folder that was there when this process started",
        received=f"it is at {place} now" if place else "it is gone",
        fix=f"start again with --workspace {place}; a run goes on from its last checkpoint with: "
        f"python -m core runs resume ID --workspace {place}"
        if place
        else f"bring the folder back to {root}, or start again with another --workspace",
    )


def _new_place(descriptor: int) -> str:
    """Returns where a folder lies now; empty where it was deleted, or the system doesn't tell."""
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        is_there = os.fstat(descriptor).st_nlink > 0 and os.path.isdir(place)
    except OSError:
        return ""
    return place if is_there and not place.endswith(_DELETED) else ""


def _forget_all() -> None:
    for descriptor in _remembered.values():
        with suppress(OSError):
            os.close(descriptor)
    _remembered.clear()
