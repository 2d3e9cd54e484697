"""Documents and their counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from core.corpus.holdout import document_hash


class Document(NamedTuple):
    """A non-blank document, also in UTF-8, with the 64-bit hash of that."""

    text: str
    data: bytes
    hash: int


@dataclass
class Tally:
    """Document counts."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    longest_characters: int = 0

    def add(self, document: Document) -> None:
        characters = len(document.text)
        self.documents += 1
        self.bytes += len(document.data)
        self.characters += characters
        if characters > self.longest_characters:
            self.longest_characters = characters


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.documents += tally.documents
        total.bytes += tally.bytes
        total.characters += tally.characters
        total.longest_characters = max(total.longest_characters, tally.longest_characters)
    return total


def as_document(text: str) -> Document:
    """Normalises line ends, and replaces lone surrogates."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        data = text.encode("utf-8")
    return Document(text, data, document_hash(data))
