"""Counts the words of documents within a limit of memory, as a tokenizer splits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.tokenizer.count_files import write_counts
from core.tokenizer.roles import parts_between, without_lone_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# In CPython, with the entry of the dictionary.
_BYTES_PER_WORD = 200
_BYTES_PER_CHARACTER = 2
_GIB = 2**30


class WordCounter(Protocol):
    """Splits documents in two steps: the slower one sees each distinct run of text once.

    It can be sent to another process.
    """

    def runs(self, text: str) -> Iterable[str]:
        """Splits a document into runs of text, quickly."""

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        """Counts the words of counted runs."""


class WordTally:
    """Counts words of documents, and moves the counts to files when they fill the memory.

    Args:
        folder: For the files; must exist.
        memory_gb: In GiB, about.
    """

    def __init__(self, counter: WordCounter, folder: Path, memory_gb: float) -> None:
        self._counter = counter
        self._folder = folder
        # Splitting runs and sorting words need as much again.
        self._most_bytes = memory_gb * _GIB / 3
        self._runs: Counter[str] = Counter()
        self._characters = 0  # at most
        self._files = 0

    def add(self, text: str) -> None:
        self._runs.update(self._counter.runs(text))
        self._characters += len(text)
        if self._bytes() > self._most_bytes:
            self._characters = sum(map(len, self._runs))
            # Just below the limit it would be summed up again and again.
            if self._bytes() > self._most_bytes / 2:
                self._write()

    def close(self) -> int:
        """Writes what remains, and returns the number of files."""
        if self._runs:
            self._write()
        return self._files

    def _bytes(self) -> int:
        return len(self._runs) * _BYTES_PER_WORD + self._characters * _BYTES_PER_CHARACTER

    def _write(self) -> None:
        write_counts(self._folder / counts_file(self._files), self._counter.words_of(self._runs))
        self._files += 1
        self._runs = Counter()
        self._characters = 0


def counts_file(number: int) -> str:
    return f"{number:05d}.words"


def normalised_runs(text: str, special_tokens: Sequence[str], backend: Tokenizer) -> list[str]:
    """Splits a normalised document at whitespace, as the tokenizer's pre-tokenizer does first.

    Args:
        special_tokens: Left out of documents.
    """
    parts = parts_between(special_tokens, without_lone_surrogates(text))
    normalise = backend.normalizer.normalize_str
    return [run for part in parts for run in normalise(part).split()]


def split_runs(runs: Mapping[str, int], backend: Tokenizer) -> Counter[str]:
    """Counts words of runs with a tokenizer's pre-tokenizer."""
    split = backend.pre_tokenizer.pre_tokenize_str
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word, _ in split(run):
            words[word] += count
    return words
