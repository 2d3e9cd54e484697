"""Merges files of counted words, and samples rare words if there are too many.

The result depends on the counts alone, not on the number or the order of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from core.corpus.part_steps import OpenPool
from core.records.events import Reporter
from core.tokenizer.count_files import BUCKETS, count_in_file, read_buckets, write_counts
from core.tokenizer.words import is_drawn

_WORDS_PER_GIB = 750_000
_CHARACTERS_PER_GIB = 25_000_000
# Other draws follow when a smaller sample is taken.
_DRAW = 1


@dataclass(frozen=True)
class CountLimits:
    """The most distinct words, and characters in them, that training keeps in memory."""

    words: int
    characters: int

    @classmethod
    def of(cls, memory_gb: float) -> CountLimits:
        return cls(
            max(1, round(memory_gb * _WORDS_PER_GIB)),
            max(1, round(memory_gb * _CHARACTERS_PER_GIB)),
        )

    def hold(self, words: float, characters: float) -> bool:
        return words <= self.words and characters <= self.characters


@dataclass
class BucketSummary:
    """Counts that decide the sample, of one bucket or several.

    Attributes:
        words, characters: Numbers by count.
        alphabet: All distinct characters.
    """

    words: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    alphabet: set[str] = field(default_factory=set)

    def add(self, other: BucketSummary) -> None:
        self.words.update(other.words)
        self.characters.update(other.characters)
        self.alphabet |= other.alphabet


def merge_counts(
    paths: Sequence[Path],
    folder: Path,
    limits: CountLimits,
    open_pool: OpenPool,
    reporter: Reporter,
) -> dict[str, int]:
    """Sums the counts of files; above the limits, samples words in proportion to their count.

    Args:
        folder: For files of merged buckets; must exist.
        open_pool: For many words.
    """
    sizes = [count_in_file(path) for path in paths]
    if limits.hold(sum(words for words, _ in sizes), sum(size for _, size in sizes)):
        return _merged(paths, range(BUCKETS))
    total = BucketSummary()
    with open_pool() as run:
        summaries = run(partial(_merge_bucket, paths, folder), range(BUCKETS))
        for done, summary in enumerate(summaries, start=1):
            total.add(summary)
            reporter.progress(done, BUCKETS, "buckets", "adding up words")
    level = find_level(total, limits)
    words: dict[str, int] = {}
    for bucket in range(BUCKETS):
        merged = read_buckets(_bucket_file(folder, bucket), [bucket])
        words.update((word, max(count, level)) for word, count in merged
                     if is_drawn(word, count, level, _DRAW))  # fmt: skip
    missing = total.alphabet.difference(*words) if words else total.alphabet
    return words | dict.fromkeys(sorted(missing), 1)


def find_level(summary: BucketSummary, limits: CountLimits) -> int:
    """Finds the count below which words must be sampled to keep the limits; 1: none."""
    level = 1
    while not limits.hold(_expected(summary.words, level), _expected(summary.characters, level)):
        level += max(1, level // 8)
    return level


def _expected(numbers: Mapping[int, int], level: int) -> float:
    # Sorted, as sums of floats depend on the order.
    return sum(number * min(1.0, count / level) for count, number in sorted(numbers.items()))


def _merge_bucket(paths: Sequence[Path], folder: Path, bucket: int) -> BucketSummary:
    merged = _merged(paths, [bucket])
    write_counts(_bucket_file(folder, bucket), merged)
    summary = BucketSummary(alphabet=set().union(*merged))
    for word, count in merged.items():
        summary.words[count] += 1
        summary.characters[count] += len(word)
    return summary


def _merged(paths: Sequence[Path], buckets: Iterable[int]) -> dict[str, int]:
    words: dict[str, int] = {}
    for path in paths:
        for word, count in read_buckets(path, buckets):
            words[word] = words.get(word, 0) + count
    return words


def _bucket_file(folder: Path, bucket: int) -> Path:
    return folder / f"bucket-{bucket:03d}.words"
