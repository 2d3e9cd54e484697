"""Selects held-out documents by their hash, and finds those that overlap with training documents.

Overlap would reward memorisation with a lower validation loss.

Documents are compared by windows of successive words. Text without spaces has no words: there, the
n-gram at each character counts as one, so that a window is a run of characters. Other differences
than the case of ASCII letters are for `folding` to remove first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

WINDOW_WORDS = 20

_HASH_SPACE = 1 << 64
_BLOCK_BYTES = 1 << 20
# Odd, hence invertible modulo 2**64.
_BYTE_BASE = 0x9E3779B97F4A7C15
_WORD_BASE = 0xC2B2AE3D27D4EB4F
_TABLE_SLOTS_PER_WINDOW = 16
# A word with more characters of scripts without spaces than these is their 4-grams.
_CHARACTER_GRAM = 4
# A longer word of other characters, such as DNA, is their 16-grams; DNA has 2 bits a character.
_LONGEST_WORD, _LONG_WORD_GRAM = 64, 16
# Only longer words are cut in the middle, so that both parts are long words, too.
_CUT_WORD_BYTES = 1 << 12
# First and last code points of Tibetan, Thai, Lao, Myanmar, Khmer, Kana and Han, among others.
_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF),
    (0x1B00, 0x1B7F), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x312F),
    (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0xA4CF), (0xA980, 0xA9FF),
    (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F),
)  # fmt: skip

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def document_hash(data: bytes) -> int:
    """Returns a 64-bit hash."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def held_out_below(hashes: Iterable[int], percent: float) -> int:
    """Returns the hash threshold below which documents are held out.

    It leaves no split empty; a single document goes to training.

    Args:
        percent: Above 0, at most 50.
    """
    threshold = int(_HASH_SPACE * percent / 100)
    lowest, highest = _HASH_SPACE, -1
    for value in hashes:
        lowest, highest = min(lowest, value), max(highest, value)
        if lowest < threshold <= highest:
            return threshold
    if lowest >= highest:
        return 0
    return lowest + 1 if lowest >= threshold else highest


@dataclass(frozen=True)
class WindowSet:
    """The hashed word windows of documents.

    Attributes:
        hashes: Sorted and unique, (windows,).
        occurrences: Indices into `hashes`, (occurrences,).
        owners: Document indices, (occurrences,).
    """

    hashes: Hashes
    occurrences: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[bytes]) -> WindowSet:
        """Builds the set; memory grows with the windows."""
        parts = list(window_hashes(documents))
        if not parts:
            empty = np.zeros(0, np.int64)
            return cls(np.zeros(0, np.uint64), empty, empty)
        hashes, occurrences = np.unique(
            np.concatenate([hashes for hashes, _ in parts]), return_inverse=True
        )
        return cls(hashes, occurrences, np.concatenate([owners for _, owners in parts]))

    def owners_sharing_with(self, documents: Iterable[bytes]) -> npt.NDArray[np.int64]:
        """Returns the documents that share a window with any streamed one."""
        if not len(self.hashes):
            return np.zeros(0, np.int64)
        shared = np.zeros(len(self.hashes), bool)
        bits = max(10, (len(self.hashes) * _TABLE_SLOTS_PER_WINDOW).bit_length())
        shift = np.uint64(64 - bits)
        table = np.zeros(1 << bits, bool)  # a cheap filter
        table[self.hashes >> shift] = True
        for hashes, _ in window_hashes(documents):
            candidates = hashes[table[hashes >> shift]]
            places = np.searchsorted(self.hashes, candidates)
            places[places == len(self.hashes)] = 0
            shared[places[self.hashes[places] == candidates]] = True
        return np.unique(self.owners[shared[self.occurrences]])


def window_hashes(
    documents: Iterable[bytes], words: int = WINDOW_WORDS
) -> Iterator[tuple[Hashes, npt.NDArray[np.int64]]]:
    """Yields hashes of word windows in any case of ASCII, and their documents, both (windows,).

    Args:
        words: Words in a window. In scripts without spaces, a window has `words` + 3 characters,
            and in words of more than 64 characters `words` + 15.
    """
    kept_hashes, kept_owners = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for hashes, owners in _word_hashes(documents):
        hashes = np.concatenate([kept_hashes, hashes])
        owners = np.concatenate([kept_owners, owners])
        kept_hashes, kept_owners = hashes[-(words - 1) :], owners[-(words - 1) :]
        if len(hashes) < words:
            continue
        starts = np.arange(len(hashes) - words + 1)
        within = owners[: len(starts)] == owners[words - 1 :]
        windows = _range_hashes(hashes, starts, starts + words, _WORD_BASE)
        yield windows[within], owners[: len(starts)][within]


def _word_hashes(
    documents: Iterable[bytes],
) -> Iterator[tuple[Hashes, npt.NDArray[np.int64]]]:
    for block, ends, numbers in _blocks(documents):
        data = np.frombuffer(block, np.uint8)
        codes = _CODES[data]
        is_word = np.concatenate([[False], codes > 0, [False]])
        edges = np.flatnonzero(is_word[1:] != is_word[:-1])
        starts, stops = _with_grams(data, edges[0::2], edges[1::2])
        hashes = _mix(_range_hashes(codes, starts, stops, _BYTE_BASE))
        yield hashes, np.asarray(numbers, np.int64)[np.searchsorted(ends, starts, side="right")]


def _with_grams(data: Bytes, starts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
    """Replaces words without spaces by their character n-grams; the data end with a separator."""
    sizes = _gram_sizes(data, starts, stops)
    is_chosen = sizes > 0
    if not is_chosen.any():
        return starts, stops
    characters = _character_starts(data)
    first, after = (np.searchsorted(characters, edge[is_chosen]) for edge in (starts, stops))
    grams = after - first - sizes[is_chosen] + 1
    counts = np.ones(len(starts), np.int64)
    counts[is_chosen] = grams
    within = np.arange(grams.sum()) - np.repeat(np.cumsum(grams) - grams, grams)
    places = np.repeat(first, grams) + within
    is_gram = np.repeat(is_chosen, counts)
    starts, stops = np.repeat(starts, counts), np.repeat(stops, counts)
    starts[is_gram] = characters[places]
    # A separator follows each word, and begins the next character.
    stops[is_gram] = characters[places + np.repeat(sizes[is_chosen], grams)]
    return starts, stops


def _gram_sizes(data: Bytes, starts: Offsets, stops: Offsets) -> Offsets:
    """Returns the characters of the n-grams of each word, 0 for words that stay, (words,)."""
    sizes = np.zeros(len(starts), np.int64)
    candidates = np.flatnonzero(stops - starts > _LONGEST_WORD)
    if len(candidates):
        characters = _character_starts(data)
        counts = _count_between(characters, starts[candidates], stops[candidates])
        sizes[candidates[counts > _LONGEST_WORD]] = _LONG_WORD_GRAM
    without_spaces = _characters_without_spaces(data)
    if len(without_spaces):
        counts = _count_between(without_spaces, starts, stops)
        sizes[counts > _CHARACTER_GRAM] = _CHARACTER_GRAM
    return sizes


def _count_between(places: Offsets, starts: Offsets, stops: Offsets) -> Offsets:
    return np.searchsorted(places, stops) - np.searchsorted(places, starts)


def _character_starts(data: Bytes) -> Offsets:
    return np.flatnonzero((data & 0xC0) != 0x80)


def _characters_without_spaces(data: Bytes) -> Offsets:
    """Returns the places of characters of scripts without spaces in UTF-8."""
    places = np.flatnonzero(data >= 0xE0)
    places = places[places < len(data) - 2]
    lead, second, third = (data[places + offset].astype(np.int32) for offset in range(3))
    codes = (lead & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
    # Han from U+20000 on has four bytes.
    is_chosen = np.where(lead < 0xF0, _HAS_NO_SPACES[codes], (lead == 0xF0) & (second >= 0xA0))
    return places[is_chosen]


def _blocks(documents: Iterable[bytes]) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """Yields blocks of about 1 MiB with their pieces' end offsets and documents."""
    pieces: list[bytes] = []
    ends: list[int] = []
    numbers: list[int] = []
    size = 0
    for number, document in enumerate(documents):
        for piece in _pieces(document):
            pieces.append(piece)
            size += len(piece) + 1
            ends.append(size)
            numbers.append(number)
            if size >= _BLOCK_BYTES:
                yield b"\n".join([*pieces, b""]), ends, numbers
                pieces, ends, numbers, size = [], [], [], 0
    if pieces:
        yield b"\n".join([*pieces, b""]), ends, numbers


def _pieces(document: bytes) -> Iterator[bytes]:
    start = 0
    while len(document) - start > _BLOCK_BYTES:
        full = start + _BLOCK_BYTES
        gap = _BETWEEN_WORDS.search(document, full, full + _CUT_WORD_BYTES)
        if gap:
            yield document[start : gap.start()]
            start = gap.start()
        elif len(document) <= full + _CUT_WORD_BYTES:
            break
        else:
            stop = _character_before(document, full + _CUT_WORD_BYTES // 2)
            piece = document[start:stop]
            yield piece
            start = _overlap_start(document, stop, piece)
    yield document[start:] if start else document


def _overlap_start(document: bytes, stop: int, piece: bytes) -> int:
    """Returns the place of the first n-gram that isn't whole in a piece which ends in a word."""
    data = np.frombuffer(b"\n" + piece + b"\n", np.uint8)
    *_, before, after = np.flatnonzero(_CODES[data] == 0)
    sizes = _gram_sizes(data, np.array([before + 1]), np.array([after]))
    for _ in range(int(sizes[0]) - 1):
        stop = _character_before(document, stop)
    return stop


def _character_before(document: bytes, place: int) -> int:
    place -= 1
    while document[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _range_hashes(
    values: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    base: int,
) -> Hashes:
    """Hashes `values[start:stop]` for each range, independent of position.

    Source: Rabin and Karp, sum of value[start + k] * base**k modulo 2**64
    """
    powers = _powers(base, len(values))
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * powers, out=sums[1:])
    inverses = _powers(pow(base, -1, _HASH_SPACE), len(values))
    return (sums[stops] - sums[starts]) * inverses[starts]


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(max(count, 1), base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)[:count]


def _mix(hashes: Hashes) -> Hashes:
    """Breaks the algebraic relation between hashes of words and windows."""
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(29))


def _character_codes() -> npt.NDArray[np.uint64]:
    """Maps bytes to case-insensitive codes, those between words to 0."""
    word = [byte for byte in range(256) if byte >= 128 or chr(byte).isalnum() or byte == ord("_")]
    codes = np.zeros(256, np.uint64)
    codes[word] = [byte if byte >= 128 else ord(chr(byte).lower()) for byte in word]
    return codes


def _has_no_spaces() -> npt.NDArray[np.bool_]:
    """Marks the code points of scripts without spaces, (65536,)."""
    flags = np.zeros(1 << 16, bool)
    for first, last in _SCRIPTS_WITHOUT_SPACES:
        flags[first : last + 1] = True
    return flags


_CODES = _character_codes()
_HAS_NO_SPACES = _has_no_spaces()
_BETWEEN_WORDS = re.compile(rb"[^A-Za-z0-9_\x80-\xff]")
