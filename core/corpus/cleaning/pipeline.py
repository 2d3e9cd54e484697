"""Cleans a corpus part by part; searches for duplicates and frequent lines between the passes.

Three passes over parts in files: normalise, filter, write. Whatever the number of workers, parts
and their order are the same, and so are the results.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from core.config import CleanConfig
from core.corpus.cleaning.blocks import Hashes, Places
from core.corpus.cleaning.duplicates import DuplicateGroups
from core.corpus.cleaning.lines import count_lines, frequent_lines, least_documents
from core.corpus.cleaning.parts import (
    REFERENCE,
    TRAIN,
    VALIDATION,
    Batch,
    Kinds,
    read_batch,
    split_parts,
    write_batch,
)
from core.corpus.cleaning.report import Report, Tally, steps_in_use
from core.corpus.cleaning.steps import filter_texts, near_keys, normalize_texts, text_keys
from core.events import Reporter
from core.parts.task_map import TaskMap

SPLIT_FOLDERS = {"train": TRAIN, "validation": VALIDATION}
# Higher levels take twice the time for a few percent.
_GZIP_LEVEL, _GZIP_WINDOW = 4, 31
_NO_HASHES = np.zeros(0, np.uint64)
_NO_TALLY = Tally()


@dataclass(frozen=True)
class Repeats:
    """Documents of a part that repeat others.

    Attributes:
        places: Within the part, ascending, (repeats,).
        kinds, numbers: The documents that they repeat, (repeats,).
    """

    places: Places
    kinds: Kinds
    numbers: Places


@dataclass(frozen=True)
class PartTask:
    """A part of the corpus, and its documents to leave out."""

    folder: Path
    number: int
    repeats: Repeats | None = None

    @property
    def texts(self) -> Path:
        return self.folder / f"texts-{self.number:06d}.npz"

    @property
    def keys(self) -> Path:
        return self.folder / f"keys-{self.number:06d}.npy"

    @property
    def lines(self) -> Path:
        return self.folder / f"lines-{self.number:06d}.npy"

    def read(self, step: str, tally: Tally) -> Batch:
        """Reads the documents that repeat no others.

        Args:
            step: Counts the others.
        """
        batch = read_batch(self.texts)
        if self.repeats is None or not len(self.repeats.places):
            return batch
        if not batch.is_reference:
            _count_repeats(batch, self.repeats, step, tally)
        keep = np.ones(len(batch), bool)
        keep[self.repeats.places] = False
        return batch.take(keep)


def _count_repeats(batch: Batch, repeats: Repeats, step: str, tally: Tally) -> None:
    for place, kind, number in zip(
        repeats.places.tolist(), repeats.kinds.tolist(), repeats.numbers.tolist(), strict=True
    ):
        relation = _relation(kind, int(batch.kinds[place]))
        explanation = f"Repeats document {number + 1:,} {relation}"
        tally.remove(step, relation, int(batch.numbers[place]), batch.texts[place], explanation)


def _relation(kept: int, removed: int) -> str:
    """Names what a removed document repeats."""
    if kept == REFERENCE:
        return "of another corpus"
    return (
        "of the held-out ones" if kept == VALIDATION and removed == TRAIN else "of the same split"
    )


@dataclass(frozen=True)
class PartResult:
    """Result of a pass over a part.

    Attributes:
        numbers, kinds: Documents that are left, (documents,).
        kept: Documents and bytes that were written.
    """

    numbers: Places
    kinds: Kinds
    tally: Tally
    kept: Counter[str] = field(default_factory=Counter)


class Cleaning:
    """Cleans documents into a folder.

    Args:
        folder: Receives a folder per split, and temporary files.
    """

    def __init__(self, config: CleanConfig, folder: Path, run: TaskMap, reporter: Reporter) -> None:
        self._config = config
        self._output = folder
        self._parts = folder / "parts"
        self._run = run
        self._reporter = reporter
        self._tally = Tally()
        self._count = 0

    def clean(self, documents: Iterable[tuple[int, str]], total: int | None) -> Report:
        """Cleans (kind, text) pairs; those of other corpora come first.

        Args:
            total: Number of documents, for progress.
        """
        config = self._config
        self._parts.mkdir()
        read: Counter[str] = Counter()
        spooled = self._spooled(documents, total, read)
        found = self._pass(partial(normalize_part, config), spooled)
        repeats = self._repeats(found, 1 if config.exact_duplicates else 0)
        frequent = self._frequent_lines(repeats)
        tasks = self._tasks(repeats)
        found = self._pass(partial(filter_part, config, frequent), tasks, "filtering")
        repeats = self._repeats(found, config.minhash_bands + 1 if config.near_duplicates else 0)
        kept = self._written(repeats)
        return Report(read, kept, self._tally, steps_in_use(config))

    def _spooled(
        self, documents: Iterable[tuple[int, str]], total: int | None, read: Counter[str]
    ) -> Iterator[PartTask]:
        for batch in split_parts(documents):
            task = PartTask(self._parts, self._count)
            write_batch(task.texts, batch)
            if not batch.is_reference:
                read["documents"] += len(batch)
                read["bytes"] += sum(len(text.encode()) for text in batch.texts)
            self._count += 1
            self._reporter.progress(read["documents"], total, "documents", "normalising")
            yield task

    def _written(self, repeats: list[Repeats]) -> Counter[str]:
        for split in SPLIT_FOLDERS:
            (self._output / split).mkdir()
        kept: Counter[str] = Counter()
        for result in self._pass(
            partial(write_part, self._output), self._tasks(repeats), "writing"
        ):
            kept += result.kept
        for split in SPLIT_FOLDERS:
            if not any((self._output / split).iterdir()):
                (self._output / split).rmdir()
        return kept

    def _tasks(self, repeats: list[Repeats]) -> Iterator[PartTask]:
        for number, found in enumerate(repeats):
            yield PartTask(self._parts, number, found)

    def _pass(
        self, function: Callable[[PartTask], PartResult], tasks: Iterable[PartTask], note: str = ""
    ) -> list[PartResult]:
        """Applies a function to all parts and adds up their counts."""
        results = []
        for number, result in enumerate(self._run(function, tasks), start=1):
            self._tally.add(result.tally)
            results.append(replace(result, tally=_NO_TALLY))
            if note:
                self._reporter.progress(number, self._count, "parts", note)
        return results

    def _repeats(self, found: list[PartResult], columns: int) -> list[Repeats]:
        """Finds the documents of each part that repeat others."""
        kinds = np.concatenate([np.zeros(0, np.uint8), *(one.kinds for one in found)])
        numbers = np.concatenate([np.zeros(0, np.int64), *(one.numbers for one in found)])
        groups = DuplicateGroups(kinds)
        for column in range(columns):
            self._reporter.raise_if_stopped()
            self._reporter.progress(column, columns, "columns", "comparing documents")
            groups.join_equal(partial(self._column, column))
        firsts = groups.firsts()
        repeats = []
        stop = 0
        for part in found:
            start, stop = stop, stop + len(part.kinds)
            places = np.flatnonzero(firsts[start:stop] != np.arange(start, stop))
            kept = firsts[start + places]
            repeats.append(Repeats(places, kinds[kept], numbers[kept]))
        return repeats

    def _column(self, column: int) -> Iterator[Hashes]:
        for number in range(self._count):
            keys = np.load(PartTask(self._parts, number).keys, mmap_mode="r", allow_pickle=False)
            yield np.array(keys[column])

    def _frequent_lines(self, repeats: list[Repeats]) -> Hashes:
        """Returns hashes of lines that occur in many documents, ascending."""
        if not self._config.boilerplate_lines:
            return _NO_HASHES
        documents = lines = 0
        for number, result in enumerate(self._run(lines_of_part, self._tasks(repeats)), start=1):
            documents, lines = documents + result.documents, lines + result.lines
            self._reporter.progress(number, self._count, "parts", "counting lines")
        least = least_documents(self._config, documents)
        paths = [PartTask(self._parts, number).lines for number in range(self._count)]
        return frequent_lines(paths, lines, least)


@dataclass(frozen=True)
class PartLines:
    """Number of a part's documents, and of its distinct lines."""

    documents: int
    lines: int


def normalize_part(config: CleanConfig, task: PartTask) -> PartResult:
    """Normalises a part and hashes its documents."""
    tally = Tally()
    batch = normalize_texts(task.read("", tally), config, tally)
    write_batch(task.texts, batch)
    np.save(task.keys, text_keys(batch.texts)[None])
    return PartResult(batch.numbers, batch.kinds, tally)


def lines_of_part(task: PartTask) -> PartLines:
    """Counts the documents with each line of a part."""
    batch = task.read("", Tally())
    texts = [] if batch.is_reference else batch.texts
    hashes, counts = count_lines(texts)
    np.save(task.lines, np.stack([hashes, counts.astype(np.uint64)]))
    return PartLines(len(texts), len(hashes))


def filter_part(config: CleanConfig, frequent: Hashes, task: PartTask) -> PartResult:
    """Filters a part and hashes its documents for near duplicates."""
    tally = Tally()
    batch = filter_texts(task.read("exact_duplicates", tally), config, frequent, tally)
    write_batch(task.texts, batch)
    if config.near_duplicates:
        np.save(task.keys, near_keys(batch.texts, config))
    return PartResult(batch.numbers, batch.kinds, tally)


def write_part(output: Path, task: PartTask) -> PartResult:
    """Writes a part's documents as compressed JSON lines."""
    tally = Tally()
    batch = task.read("near_duplicates", tally)
    kept: Counter[str] = Counter()
    for split, kind in SPLIT_FOLDERS.items():
        texts = [batch.texts[place] for place in np.flatnonzero(batch.kinds == kind).tolist()]
        if texts:
            _write_lines(output / split / f"part-{task.number:06d}.jsonl.gz", texts)
            kept[f"{split}_documents"] = len(texts)
            kept[f"{split}_bytes"] = sum(len(text.encode()) for text in texts)
    task.texts.unlink()
    return PartResult(batch.numbers, batch.kinds, tally, kept)


def _write_lines(path: Path, texts: Sequence[str]) -> None:
    lines = b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    path.write_bytes(packer.compress(lines) + packer.flush())
