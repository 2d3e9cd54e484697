"""Numbered parts of a corpus, which processes read independently of each other.

Whether a document is held out depends on its text alone, so all parts in order hold the documents
and the splits of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from core.corpus.documents import Document, Tally, as_document
from core.corpus.report import ReadingReport
from core.corpus.source import SourcePart, Split

PART_BYTES = 64 << 20
SPLITS: tuple[Split, ...] = ("train", "validation")


def bytes_of_parts(part_mb: float) -> int:
    return round(part_mb * 2**20)


@dataclass
class PartCounts:
    """Counts of what a part contains.

    Attributes:
        splits: Counts by split, dropped documents included.
        dropped_documents, dropped_bytes: Held-out documents that overlap with others.
        report: How its files were read.
        source: Name of its source; empty without named sources.
    """

    splits: dict[Split, Tally] = field(default_factory=lambda: {one: Tally() for one in SPLITS})
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
            if counts.documents == self.limit:
                break
        counts.report = getattr(self.part.source, "report", None)
