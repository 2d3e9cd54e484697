"""Writes files and folders atomically for other processes."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.workspace.locks import lock_folder
from core.workspace.places import (
    apply_umask,
    apply_umask_below,
    check_not_moved,
    make_folder,
)

_DRAFT_SUFFIX = ".draft"
_TOMBSTONE_SUFFIX = ".deleted"
# Drafts are locked shortly after creation.
_LOCKED_AFTER_SECONDS = 60


class DraftFolder:
    """A locked draft of a folder; its creation removes abandoned drafts."""

    def __init__(self, parent: Path, name: str, *, sweep: str = "") -> None:
        make_folder(parent)
        _remove_abandoned_drafts(parent, glob.escape(sweep) or "*")
        self.path = parent / f".{name}.{secrets.token_hex(4)}{_DRAFT_SUFFIX}"
        self.path.mkdir()
        self._lock = lock_folder(self.path)

    def remove(self) -> None:
        """Removes the draft and releases its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def commit_folder(draft: Path, final: Path) -> None:
    """Syncs a folder and renames it to `final`."""
    check_not_moved(final)
    for path in draft.rglob("*"):
        sync(path)
    sync(draft)
    apply_umask_below(draft)
    draft.rename(final)
    sync(final.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Removes a folder atomically; later calls remove remains."""
    check_not_moved(folder)
    remove_tombstones(folder.parent)
    tombstone = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{_TOMBSTONE_SUFFIX}")
    folder.rename(tombstone)
    shutil.rmtree(tombstone, ignore_errors=True)


def remove_tombstones(shelf: Path) -> None:
    for folder in shelf.glob(f".*{_TOMBSTONE_SUFFIX}"):
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_drafts(shelf: Path, pattern: str) -> None:
    for folder in shelf.glob(f".{pattern}.*{_DRAFT_SUFFIX}"):
        with suppress(OSError):  # Another process removed or committed it.
            if time.time() - folder.stat().st_mtime < _LOCKED_AFTER_SECONDS:
                continue
            lock = lock_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


@contextmanager
def writing_whole_file(path: Path) -> Iterator[Path]:
    """Yields a draft that atomically replaces `path`, which errors name instead of the draft."""
    check_not_moved(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.draft")
    try:
        yield draft
        sync(draft)
        apply_umask(draft)
        draft.replace(path)
    except OSError as error:
        if str(error.filename) == str(draft):
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file atomically, following links."""
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
        return
    path = path.resolve()
    with writing_whole_file(path) as draft:
        draft.write_text(text, "utf-8")
    sync(path.parent)
