"""Keeps the parts of a cleaning that is interrupted, for the next attempt with the same recipe."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from core.corpus.cleaning.parts import reading_part
from core.parts.store import RECORD_FILE
from core.workspace.atomic import write_atomically
from core.workspace.locks import lock_folder
from core.workspace.places import make_folder

_SPOOL_FILE = "spool.json"
# Written last, when a part is read, and when a step has worked on it.
_FINISHED = (RECORD_FILE, "*.result.npz")
# Then nobody continues any more.
_ABANDONED_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class Spool:
    """The documents that were read.

    Attributes:
        batches: File, number to add to those of its documents, their number, bytes, and the name
            of their source.
        documents, bytes: Without those of other corpora.
        facts: Facts about the source that are known once it is read.
    """

    batches: list[tuple[str, int, int, int, str]]
    documents: int
    bytes: int
    facts: dict[str, Any] = field(default_factory=dict)

    def with_batch(
        self, name: str, first: int, documents: int, size_bytes: int, member: str = ""
    ) -> Spool:
        return Spool(
            [*self.batches, (name, first, documents, size_bytes, member)],
            self.documents + documents,
            self.bytes + size_bytes,
        )


class WorkFolder:
    """A locked folder with the parts of one recipe."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock
        self.has_begun = any(path.iterdir())

    def read_spool(self) -> Spool | None:
        """Returns what an attempt has read completely; raises DamagedPartError."""
        path = self.path / _SPOOL_FILE
        if not path.exists():
            return None
        with reading_part(path):
            return Spool(**orjson.loads(path.read_bytes()))

    def write_spool(self, spool: Spool) -> None:
        write_atomically(self.path / _SPOOL_FILE, orjson.dumps(asdict(spool)).decode())

    def count_finished(self) -> int:
        """Counts finished parts of all steps, without verifying them."""
        return sum(1 for name in _FINISHED for _ in self.path.rglob(name))

    def clear(self, but: str = "") -> None:
        """Removes what earlier attempts have left.

        Args:
            but: Name of a folder to keep.
        """
        for path in self.path.iterdir():
            if path.name == but:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)


@contextmanager
def open_work_folder(shelf: Path, recipe: str) -> Iterator[WorkFolder]:
    """Yields the folder of a recipe, or another one while a cleaning uses it."""
    make_folder(shelf)
    _remove_abandoned(shelf)
    path = shelf / recipe
    path.mkdir(exist_ok=True)
    lock = lock_folder(path)
    is_own = lock is not None and path.exists()
    if not is_own:
        path = shelf / f"{recipe}-{secrets.token_hex(4)}"
        path.mkdir()
        lock = lock_folder(path)
    work = WorkFolder(path, lock)
    try:
        yield work
    finally:
        if not is_own:
            work.remove()
        work.release()


def _remove_abandoned(shelf: Path) -> None:
    for folder in shelf.iterdir():
        if time.time() - folder.stat().st_mtime < _ABANDONED_SECONDS:
            continue
        if (lock := lock_folder(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
