"""Numbered parts of a corpus, which processes read independently of each other.

Whether a document is held out depends on its text alone, so all parts in order hold the documents
and the splits of the corpus.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from core.config.base import fingerprint_of
from core.corpus.documents import Document, Tally, as_document
from core.corpus.files import FilesSource
from core.corpus.report import ReadingReport
from core.corpus.source import Source, SourcePart, Split
from core.errors import ConfigError, CorpusError, StudioError
from core.parts.pool import count_workers

PART_BYTES = 64 << 20
SPLITS: tuple[Split, ...] = ("train", "validation")
# More text than a part is divided into at least so many, so that all processes get work.
_FEWEST_PARTS = 8


def bytes_of_parts(part_mb: float) -> int:
    return round(part_mb * 2**20)


def plan_parts(plan: Callable[[int], list[CorpusPart]], part_mb: float) -> list[CorpusPart]:
    """Plans parts of a size, or smaller ones if there would be few.

    The parts don't depend on the number of processes.
    """
    most = bytes_of_parts(part_mb)
    parts = plan(most)
    total = _known_bytes(parts)
    return plan(total // _FEWEST_PARTS) if most < total < most * _FEWEST_PARTS else parts


def count_useful(workers: int | None, part_mb: float, parts: Sequence[CorpusPart]) -> int:
    """Returns the number of processes; little text isn't worth starting any."""
    if workers is None and 0 < _known_bytes(parts) <= bytes_of_parts(part_mb):
        return 1
    return min(count_workers(workers), len(parts))


def _known_bytes(parts: Sequence[CorpusPart]) -> int:
    """Sums the bytes of all parts; 0 if those of a part are unknown."""
    sizes = [part.bytes for part in parts]
    return sum(sizes) if all(sizes) else 0


def files_of(source: Source, split: Split) -> Sequence[Source]:
    """Returns a source for each file of a part, whose documents in order are the part's."""
    return source.apart(split) if isinstance(source, FilesSource) else [source]


@dataclass
class PartCounts:
    """Counts of what a part contains.

    Attributes:
        splits: Counts by split, dropped documents included.
        dropped_documents, dropped_bytes: Held-out documents that overlap with others.
        report: How its files were read.
        source: Name of its source; empty without named sources.
    """

    splits: dict[Split, Tally] = field(default_factory=lambda: {split: Tally() for split in SPLITS})
    blank_skipped: int = 0
    dropped_documents: int = 0
    dropped_bytes: int = 0
    report: ReadingReport | None = None
    source: str = ""

    @property
    def documents(self) -> int:
        return sum(tally.documents for tally in self.splits.values())

    def kept(self, split: Split) -> tuple[int, int]:
        """Returns the number of documents and bytes that were not dropped."""
        tally = self.splits[split]
        if split == "train":
            return tally.documents, tally.bytes
        return tally.documents - self.dropped_documents, tally.bytes - self.dropped_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "splits": {split: asdict(tally) for split, tally in self.splits.items()},
            "blank_skipped": self.blank_skipped,
            "dropped_documents": self.dropped_documents,
            "dropped_bytes": self.dropped_bytes,
            "report": None if self.report is None else self.report.to_json(),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PartCounts:
        report = values["report"]
        return cls(
            {split: Tally(**values["splits"][split]) for split in SPLITS},
            int(values["blank_skipped"]),
            int(values["dropped_documents"]),
            int(values["dropped_bytes"]),
            None if report is None else ReadingReport.from_json(report),
            str(values["source"]),
        )


@dataclass(frozen=True)
class CorpusPart:
    """A part of a corpus.

    Attributes:
        number: From 0, in the order of the documents.
        split: The source's split that it belongs to.
        threshold: Documents with a lower hash are held out.
        dropped: Hashes of held-out documents to leave out, sorted, uint64 (n,).
        limit: Most documents to read; None: all.
        source: Name of its source; empty without named sources.
    """

    number: int
    part: SourcePart
    split: Split
    threshold: int
    dropped: npt.NDArray[np.uint64]
    limit: int | None = None
    source: str = ""

    @property
    def bytes(self) -> int:
        return self.part.bytes

    def recipe(self) -> list[Any]:
        """Returns JSON of everything that decides the documents, but their text."""
        dropped = fingerprint_of(self.dropped.tolist()) if len(self.dropped) else ""
        return [self.describe(), self.bytes, self.split, str(self.threshold), dropped, self.limit]

    def without_failing(self) -> tuple[CorpusPart | None, list[StudioError]]:
        """Reads the files of a part apart, up to its limit.

        Returns:
            The part without the files that can't be read, or None if nothing is left; and their
            errors.
        """
        failing: dict[int, StudioError] = {}
        files = files_of(self.part.source, self.split)
        if len(files) == 1 or not isinstance(self.part.source, FilesSource):
            return None, []
        left = sys.maxsize if self.limit is None else self.limit
        for place, source in enumerate(files):
            documents = 0
            try:
                for text in source.documents(self.split):
                    documents += bool(text) and not text.isspace()
                    if documents >= left:
                        break
                left -= documents
            except (ConfigError, CorpusError) as error:
                if error.is_passing:
                    raise
                failing[place] = error
            if left <= 0:
                break
        errors = list(failing.values())
        if len(failing) == len(files):
            return None, errors
        rest = self.part.source.without(self.split, failing)
        return replace(self, part=replace(self.part, source=rest)), errors

    def describe(self) -> str:
        """Names the source and the range."""
        return f"{self.part.shown} of the source {self.source}" if self.source else self.part.shown

    def documents(self, counts: PartCounts) -> Iterator[tuple[Split, Document]]:
        """Yields (split, document) pairs, and counts them."""
        counts.source = self.source
        dropped = frozenset(self.dropped.tolist())
        for text in self.part.source.documents(self.split):
            if not text or text.isspace():
                counts.blank_skipped += 1
                continue
            document = as_document(text)
            held_out = self.split == "validation" or document.hash < self.threshold
            split: Split = "validation" if held_out else "train"
            counts.splits[split].add(document)
            if split == "train" or document.hash not in dropped:
                yield split, document
            else:
                counts.dropped_documents += 1
                counts.dropped_bytes += len(document.data)
            if self.limit is not None and counts.documents == self.limit:
                break
        counts.report = getattr(self.part.source, "report", None)
