"""A task on one part: its files, and its result that an interrupted cleaning finds again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import file_digest
from pathlib import Path

import numpy as np
import orjson

from core.corpus.cleaning.blocks import Flags, Hashes, Places
from core.corpus.cleaning.parts import (
    REFERENCE,
    TRAIN,
    VALIDATION,
    Batch,
    Kinds,
    read_batch,
    reading_part,
)
from core.corpus.cleaning.report import Tally
from core.errors import CorpusError, StudioError
from core.workspace.atomic import writing_whole_file

SPLIT_FOLDERS = {"train": TRAIN, "validation": VALIDATION}
SPOOLED, NORMALIZED, LINES, FILTERED, WRITTEN = (
    "spooled", "normalized", "lines", "filtered", "written"
)  # fmt: skip
# Steps that read a step's texts; after the last of them, the texts are removed.
_LAST_READERS = {NORMALIZED: FILTERED, FILTERED: WRITTEN}


@dataclass(frozen=True)
class Repeats:
    """Documents of a part that repeat others.

    Attributes:
        places: Within the part, ascending, (repeats,).
        kinds, numbers: The documents that they repeat, (repeats,).
        elsewhere: Whether these are of another named source, (repeats,).
    """

    places: Places
    kinds: Kinds
    numbers: Places
    elsewhere: Flags


@dataclass(frozen=True)
class PartResult:
    """Result of a step on a part.

    Attributes:
        numbers, kinds: Documents that are left, (documents,).
        counts: Documents, lines and bytes.
    """

    numbers: Places
    kinds: Kinds
    tally: Tally
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class PartTask:
    """A part of the corpus, and its documents to leave out.

    Attributes:
        folder: Receives the files of all parts.
        source: Names the corpus in errors.
        spooled: File of the documents before the first step, if a worker has read them.
        member: Name of its source; empty without named sources.
        first: Added to the numbers in that file, which count from the begin of what was read.
    """

    folder: Path
    number: int
    source: str
    repeats: Repeats | None = None
    spooled: Path | None = None
    first: int = 0
    member: str = ""

    def texts(self, step: str) -> Path:
        if step == SPOOLED and self.spooled:
            return self.spooled
        return self.folder / f"{step}-{self.number:06d}.npz"

    def keys(self, step: str) -> Path:
        """Returns the file of the hashes that a step found."""
        return self.folder / f"{step}-{self.number:06d}.npy"

    def result(self, step: str) -> Path:
        return self.folder / f"{step}-{self.number:06d}.result.npz"

    def output(self, split: str) -> Path:
        return self.folder / split / self.member / f"part-{self.number:06d}.jsonl.gz"

    def files(self, step: str) -> list[Path]:
        """Returns the files that a step can write."""
        if step == WRITTEN:
            return [self.output(split) for split in SPLIT_FOLDERS]
        return [self.texts(step), self.keys(step)]

    def read(self, source: str, step: str, tally: Tally) -> Batch:
        """Reads the documents that repeat no others.

        Args:
            source: Step whose texts are read.
            step: Counts the others.
        """
        batch = read_batch(self.texts(source))
        if source == SPOOLED and self.first:
            batch = replace(batch, numbers=batch.numbers + self.first)
        if self.repeats is None or not len(self.repeats.places):
            return batch
        if not batch.is_reference:
            _count_repeats(batch, self.repeats, step, tally)
        keep = np.ones(len(batch), bool)
        keep[self.repeats.places] = False
        return batch.take(keep)

    def write_keys(self, step: str, keys: Hashes) -> None:
        with writing_whole_file(self.keys(step)) as draft, draft.open("wb") as file:
            np.save(file, keys, allow_pickle=False)

    def read_keys(self, step: str) -> Hashes:
        """Maps the hashes that a step found; raises DamagedPartError."""
        with reading_part(self.keys(step)):
            return np.load(self.keys(step), mmap_mode="r", allow_pickle=False)


def run_once(step: str, work: Callable[[PartTask], PartResult], task: PartTask) -> PartResult:
    """Works on a part, unless an earlier attempt has finished it.

    Attempts write the same bytes, each to a draft of its own. So a task can run again after a
    crash, and beside one on a node that is only believed to be lost.

    Raises:
        DamagedPartError: The part's files are missing or damaged.
        CorpusError: The part can't be worked on; it names source and documents.
    """
    saved = _read_result(task, step)
    if saved is not None:
        return saved
    try:
        result = work(task)
    except (StudioError, OSError, MemoryError):
        raise
    except Exception as error:
        raise _failure(task, error) from error
    _write_result(task, step, result)
    return result


def _failure(task: PartTask, error: Exception) -> CorpusError:
    known = (SPOOLED, NORMALIZED, FILTERED)
    source = next((step for step in known if task.texts(step).exists()), None)
    whole = replace(task, repeats=None)
    numbers = whole.read(source, "", Tally()).numbers if source else np.zeros(0, np.int64)
    documents = f"documents {numbers[0] + 1:,} to {numbers[-1] + 1:,}" if len(numbers) else "empty"
    return CorpusError(
        f"Part {task.number + 1:,} of {task.source} ({documents}) can't be cleaned",
        expected="text that all steps can work on",
        received=f"{type(error).__name__}: {error}",
        fix="please report this error; without these documents, cleaning continues",
        field="corpus",
    )


def _write_result(task: PartTask, step: str, result: PartResult) -> None:
    values = {
        "tally": result.tally.to_dict(),
        "counts": result.counts,
        "files": {str(path.relative_to(task.folder)): _hash(path) for path in task.files(step)
                  if path.exists()},
    }  # fmt: skip
    data = np.frombuffer(orjson.dumps(values), np.uint8)
    with writing_whole_file(task.result(step)) as draft, draft.open("wb") as file:
        np.savez(file, numbers=result.numbers, kinds=result.kinds, values=data)


def _read_result(task: PartTask, step: str) -> PartResult | None:
    """Returns the result of an earlier attempt if its files are intact."""
    path = task.result(step)
    if not path.exists():
        return None
    with reading_part(path), np.load(path, allow_pickle=False) as arrays:
        values = orjson.loads(arrays["values"].tobytes())
        if not all(_is_intact(task, step, *file) for file in values["files"].items()):
            return None
        tally, counts = Tally.from_dict(values["tally"]), Counter(values["counts"])
        return PartResult(arrays["numbers"], arrays["kinds"], tally, counts)


def _is_intact(task: PartTask, step: str, name: str, expected: str) -> bool:
    path = task.folder / name
    if path.exists():
        return _hash(path) == expected
    reader = _LAST_READERS.get(step)
    return path == task.texts(step) and reader is not None and task.result(reader).exists()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _count_repeats(batch: Batch, repeats: Repeats, step: str, tally: Tally) -> None:
    for place, kind, number, elsewhere in zip(
        repeats.places.tolist(), repeats.kinds.tolist(), repeats.numbers.tolist(),
        repeats.elsewhere.tolist(), strict=True,
    ):  # fmt: skip
        relation = _relation(kind, int(batch.kinds[place]), elsewhere)
        explanation = f"Repeats document {number + 1:,} {relation}"
        tally.remove(step, relation, int(batch.numbers[place]), batch.texts[place], explanation)


def _relation(kept_kind: int, removed_kind: int, elsewhere: bool) -> str:
    """Names what a removed document repeats."""
    if kept_kind == REFERENCE:
        return "of another corpus"
    if elsewhere:
        return "of another source"
    return (
        "of the held-out ones"
        if kept_kind == VALIDATION and removed_kind == TRAIN
        else "of the same split"
    )
