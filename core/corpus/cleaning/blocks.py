"""Measures many documents at once: their characters, words and lines as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from core.corpus.cleaning.characters import (
    LINE_END,
    SPACE,
    WORD,
    character_classes,
)

# Larger blocks leave the processor's cache.
_BLOCK_CHARACTERS = 1 << 19
# A block of short documents is hashed in one piece.
_HASHED_ITEMS = 1 << 20
_NEWLINE, _FULL_STOP = ord("\n"), ord(".")
# Odd, hence invertible modulo 2**64.
_CHARACTER_BASE = 0x9E3779B97F4A7C15
_ITEM_BASE = 0xC2B2AE3D27D4EB4F

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ranges:
    """Words or lines.

    Attributes:
        starts, stops: Places in characters, (ranges,).
        owners: Documents, ascending, (ranges,).
    """

    starts: Places
    stops: Places
    owners: Places

    @cached_property
    def lengths(self) -> Places:
        return self.stops - self.starts


class RangeHasher:
    """Hashes ranges of a sequence, independent of their place.

    A long sequence is hashed in pieces, so that memory doesn't grow with it.

    Source: Rabin and Karp, sum of value[start + k] * base**k modulo 2**64.
    """

    def __init__(self, values: npt.NDArray[np.unsignedinteger], base: int) -> None:
        self._values = values
        self._base = base
        self._only_piece = _Piece(values, base) if len(values) <= _HASHED_ITEMS else None

    def __call__(self, starts: Places, stops: Places) -> Hashes:
        """Hashes ranges whose starts and stops ascend."""
        if self._only_piece:
            return mix(self._only_piece.sums_of(starts, stops))
        sums = np.zeros(len(starts), np.uint64)
        for begin in range(0, len(self._values), _HASHED_ITEMS):
            end = min(begin + _HASHED_ITEMS, len(self._values))
            # The ranges that begin before, within and after the piece.
            first, inner, last = (
                np.searchsorted(stops, begin, "right"), *np.searchsorted(starts, [begin, end])
            )  # fmt: skip
            piece = _Piece(self._values[begin:end], self._base)
            own_starts = np.maximum(starts[first:last], begin) - begin
            piece_sums = piece.sums_of(own_starts, np.minimum(stops[first:last], end) - begin)
            before = [
                pow(self._base, begin - start, 1 << 64) for start in starts[first:inner].tolist()
            ]
            piece_sums[: len(before)] *= np.array(before, np.uint64)
            sums[first:last] += piece_sums
        return mix(sums)


class _Piece:
    """Sums of a sequence up to each place, and the inverse powers of the base."""

    def __init__(self, values: npt.NDArray[np.unsignedinteger], base: int) -> None:
        self._sums = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(values * _powers(base, len(values)), out=self._sums[1:])
        self._inverses = _powers(pow(base, -1, 1 << 64), len(values) + 1)

    def sums_of(self, starts: Places, stops: Places) -> Hashes:
        return (self._sums[stops] - self._sums[starts]) * self._inverses[starts]


def mix(hashes: Hashes) -> Hashes:
    """Breaks the algebraic relation between hashes."""
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(29))


def character_hasher(codes: npt.NDArray[np.uint32]) -> RangeHasher:
    return RangeHasher(codes, _CHARACTER_BASE)


def item_hasher(hashes: Hashes) -> RangeHasher:
    return RangeHasher(hashes, _ITEM_BASE)


def _powers(base: int, count: int) -> Hashes:
    return _powers_up_to(base, 1 << count.bit_length())[:count]


@lru_cache(maxsize=16)
def _powers_up_to(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def hash_words(words: Sequence[str]) -> Hashes:
    """Hashes words as `Block.hasher` does."""
    block = Block(words)
    return block.hasher(block.starts, block.stops)


def block_ranges(texts: Sequence[str]) -> Iterator[slice]:
    """Yields slices of about half a million characters."""
    start = size = 0
    for number, text in enumerate(texts):
        if size and size + len(text) > _BLOCK_CHARACTERS:
            yield slice(start, number)
            start, size = number, 0
        size += len(text)
    if start < len(texts):
        yield slice(start, len(texts))


class Block:
    """Documents side by side.

    Attributes:
        text: The documents, each followed by a newline.
        codes: Code points of `text`, uint32 (characters,).
        starts, stops: Places of the documents, (documents,).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.text = "\n".join([*texts, ""])
        self.codes = np.frombuffer(self.text.encode("utf-32-le"), np.uint32)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self.stops = np.cumsum(lengths + 1) - 1
        self.starts = self.stops - lengths

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> Places:
        return self.stops - self.starts

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        return character_classes()[self.codes]

    @cached_property
    def hasher(self) -> RangeHasher:
        return character_hasher(self.codes)

    @cached_property
    def words(self) -> Ranges:
        """Ranges between white space."""
        return self._runs((self.classes & SPACE) == 0)

    @cached_property
    def tokens(self) -> Ranges:
        """Ranges of letters and digits."""
        return self._runs((self.classes & WORD) != 0)

    def _runs(self, inside: Flags) -> Ranges:
        """A block ends with a newline, which is outside."""
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        if len(inside) and inside[0]:
            edges = np.concatenate([[0], edges])
        starts, stops = edges[0::2], edges[1::2]
        counts = np.diff(np.searchsorted(starts, np.append(self.starts, len(self.codes))))
        return Ranges(starts, stops, np.repeat(np.arange(len(self)), counts))

    @cached_property
    def line_ends(self) -> Places:
        return np.flatnonzero(self.codes == _NEWLINE)

    @cached_property
    def _line_words(self) -> tuple[Places, Places]:
        """Returns each line's first word and the word after its last."""
        last = np.searchsorted(self.words.starts, self.line_ends)
        return np.concatenate([[0], last[:-1]]), last

    @cached_property
    def filled_lines(self) -> Flags:
        """Marks the lines that aren't blank, (all lines,)."""
        first, last = self._line_words
        return last > first

    @cached_property
    def line_word_counts(self) -> Places:
        """Words of lines that aren't blank, (lines,)."""
        first, last = self._line_words
        return (last - first)[self.filled_lines]

    @cached_property
    def lines(self) -> Ranges:
        """Lines that aren't blank, without white space around them."""
        first, last = (place[self.filled_lines] for place in self._line_words)
        words = self.words
        return Ranges(words.starts[first], words.stops[last - 1], words.owners[first])

    @cached_property
    def paragraphs(self) -> Ranges:
        """Runs of lines that aren't blank."""
        filled, lines = self.filled_lines, self.lines
        numbers = np.flatnonzero(filled)
        begins = np.ones(len(numbers), bool)
        begins[1:] = (np.diff(numbers) > 1) | (np.diff(lines.owners) > 0)
        ends = np.roll(begins, -1)
        return Ranges(lines.starts[begins], lines.stops[ends], lines.owners[begins])

    @cached_property
    def ends_in_ellipsis(self) -> Flags:
        """Marks lines that end in an ellipsis, (lines,)."""
        stops = self.lines.stops
        dots = self.codes == _FULL_STOP
        three = dots[stops - 1] & dots[np.maximum(stops - 2, 0)] & dots[np.maximum(stops - 3, 0)]
        return (three & (self.lines.lengths >= 3)) | (self.codes[stops - 1] == 0x2026)

    @cached_property
    def ends_in_punctuation(self) -> Flags:
        """Marks lines that end in a punctuation mark, (lines,)."""
        return (self.classes[self.lines.stops - 1] & LINE_END) != 0

    def count(self, owners: Places) -> Places:
        """Counts items by document."""
        return np.bincount(owners, minlength=len(self))

    def sum(self, owners: Places, values: npt.NDArray) -> npt.NDArray[np.float64]:
        """Sums values by document."""
        return np.bincount(owners, values, minlength=len(self)).astype(np.float64, copy=False)

    def owners_of(self, places: Places) -> Places:
        """Returns the documents of ascending places."""
        return np.searchsorted(self.stops, places)
