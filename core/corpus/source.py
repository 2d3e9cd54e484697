"""The interface of sources of documents, and of the parts that they can be read in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Split = Literal["train", "validation"]


class Source(Protocol):
    """A source of documents.

    Attributes:
        identity: JSON that changes with the documents.
    """

    @property
    def has_validation(self) -> bool: ...
    @property
    def identity(self) -> Any: ...
    def columns(self) -> tuple[list[str], str]:
        """Returns the columns, and the text column."""

    def documents(self, split: Split) -> Iterator[str]:
        """Yields a split's documents, blank ones too, always in the same order."""

    def parts(self, split: Split, target_bytes: int) -> Iterator[SourcePart]:
        """Cuts a split into parts, whose documents in order are those of `documents`."""


@dataclass(frozen=True)
class SourcePart:
    """A part of a source's split, small enough to be sent to another process.

    Attributes:
        source: Has the part's documents in this split only.
        shown: Names the files and ranges.
        bytes: About how much there is to read; 0 if unknown.
    """

    source: Source
    shown: str
    bytes: int
