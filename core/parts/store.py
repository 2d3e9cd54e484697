"""Keeps results of parts in files, so that a stopped stage goes on after the finished parts.

A part's result is written to an attempt's folder, its record last, and appears with one rename. The
folder's name has the hash of everything that decides the results, the list of parts included.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import RunError, StudioError
from core.foreign_files import parse_bounded_json, read_regular
from core.messages.system_errors import is_disk_full
from core.workspace.atomic import remove_folder, sync
from core.workspace.locks import file_lock
from core.workspace.places import make_folder

RECORD_FILE = "part.json"
_MOST_RECORD_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class PartResult:
    """A finished part.

    Attributes:
        values: JSON that the part's function returned.
    """

    folder: Path
    values: dict[str, Any]


@dataclass(frozen=True)
class PartStore:
    """Results of one step over the parts of a corpus.

    Args:
        folder: This recipe's own.
        recipe: Hash of everything that decides the results.
    """

    folder: Path
    recipe: str

    def read(self, number: int) -> PartResult | None:
        """Returns a finished part; None if it is missing, damaged or of another recipe."""
        folder = self._final(number)
        try:
            record = parse_bounded_json(read_regular(folder / RECORD_FILE, _MOST_RECORD_BYTES))
            is_own = record["recipe"] == self.recipe and record["number"] == number
            files = record["files"]
            is_whole = is_own and files == _hash_files(folder)
            return PartResult(folder, dict(record["values"])) if is_whole else None
        except (StudioError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    @contextmanager
    def writing(self, number: int) -> Iterator[Path]:
        """Yields an attempt's folder, which is removed unless `finish` is called."""
        make_folder(self.folder)
        os.utime(self.folder)
        attempt = self.folder / f".{number:06d}.{secrets.token_hex(4)}.attempt"
        attempt.mkdir()
        try:
            yield attempt
        except OSError as error:
            raise part_not_written(attempt.parent, error) from error
        finally:
            shutil.rmtree(attempt, ignore_errors=True)

    def finish(self, number: int, attempt: Path, values: dict[str, Any]) -> PartResult:
        """Records an attempt; a result that another process has finished meanwhile stays."""
        record = {
            "recipe": self.recipe, "number": number, "files": _hash_files(attempt),
            "values": values,
        }  # fmt: skip
        path = attempt / RECORD_FILE
        path.write_text(json.dumps(record), "utf-8")
        for written in (*attempt.rglob("*"), attempt):
            sync(written)
        final = self._final(number)
        if self.read(number) is None:
            shutil.rmtree(final, ignore_errors=True)
            try:
                os.rename(attempt, final)
            except OSError:
                if self.read(number) is None:
                    raise
        return PartResult(final, values)

    def finished(self) -> Iterator[tuple[int, PartResult]]:
        """Yields the finished parts with their numbers."""
        for folder in sorted(self.folder.glob("[0-9]*")):
            if folder.name.isdecimal() and (result := self.read(int(folder.name))):
                yield int(folder.name), result

    def forget(self, number: int) -> None:
        """Removes a finished part, so that it is done again."""
        shutil.rmtree(self._final(number), ignore_errors=True)

    def finished_numbers(self) -> set[int]:
        """Returns the numbers of finished parts without verifying them."""
        names = (path.parent.name for path in self.folder.glob(f"[0-9]*/{RECORD_FILE}"))
        return {int(name) for name in names if name.isdecimal()}

    def remove(self) -> None:
        """Removes all parts at once, even if the process is killed meanwhile."""
        if self.folder.is_dir():
            remove_folder(self.folder)

    def _final(self, number: int) -> Path:
        return self.folder / f"{number:06d}"


@contextmanager
def open_own_store(cache: Path, step: str, recipe: str) -> Iterator[PartStore]:
    """Opens the store of a recipe, or a temporary one while another process uses it.

    For steps whose results later serve for different things. Takes the arguments of `open_store`.
    """
    with ExitStack() as stack:
        try:
            store = stack.enter_context(open_store(cache, step, recipe))
        except RunError:
            other = f"{step}-{secrets.token_hex(4)}"
            store = stack.enter_context(open_store(cache, other, recipe))
            stack.callback(store.remove)
        yield store


@contextmanager
def open_store(cache: Path, step: str, recipe: str) -> Iterator[PartStore]:
    """Opens the store of a recipe, for one process at a time.

    Args:
        cache: Folder of all stores.
        step: Such as `shards`.

    Raises:
        RunError: Another process works on the same parts.
    """
    folder = cache / f"{step}-{recipe}"
    lock = cache / f"{folder.name}.lock"
    with file_lock(lock, wait=False) as held:
        if not held:
            raise RunError(
                "The same work is being done by another process",
                expected="one run with these settings at a time",
                received=f"a second one; the first works in {folder}",
                fix="wait for the other run, or stop it",
            )
        _remove_old(cache)
        _remove_attempts(folder)
        try:
            yield PartStore(folder, recipe)
        finally:
            with suppress(OSError):  # It has finished parts.
                folder.rmdir()
            if not folder.exists():
                lock.unlink(missing_ok=True)


def _remove_old(cache: Path) -> None:
    """Removes finished parts that nobody has continued for a month."""
    for folder in cache.glob("*-*"):
        with suppress(FileNotFoundError):  # Another process has just finished.
            if time.time() - folder.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _remove_attempts(folder: Path) -> None:
    """Removes what killed processes left; nobody else writes while the lock is held."""
    for attempt in folder.glob(".*.attempt"):
        shutil.rmtree(attempt, ignore_errors=True)


def _hash_files(folder: Path) -> dict[str, list[Any]]:
    """Returns size and SHA-256 of each file but the record."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.name != RECORD_FILE and not path.is_dir():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    digest.update(block)
            hashes[str(path.relative_to(folder))] = [path.stat().st_size, digest.hexdigest()]
    return hashes


def part_not_written(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"A part can't be written below {folder}",
        expected="a file system with room for the finished parts",
        received=error.strerror or str(error),
        fix="free some space, then start the same command again: the finished parts are kept",
        knows_cause=is_disk_full(error),
    )
