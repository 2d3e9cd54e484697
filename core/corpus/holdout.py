"""Selects held-out documents by their hash, and finds those that overlap with training documents.

Overlap would reward memorisation with a lower validation loss.
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

Hashes = npt.NDArray[np.uint64]


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
    """Yields hashes of case-insensitive word windows, and their documents, both (windows,)."""
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
        codes = _CODES[np.frombuffer(block, np.uint8)]
        is_word = np.concatenate([[False], codes > 0, [False]])
        edges = np.flatnonzero(is_word[1:] != is_word[:-1])
        starts, stops = edges[0::2], edges[1::2]
        hashes = _mix(_range_hashes(codes, starts, stops, _BYTE_BASE))
        yield hashes, np.asarray(numbers, np.int64)[np.searchsorted(ends, starts, side="right")]


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
        gap = _BETWEEN_WORDS.search(document, start + _BLOCK_BYTES)
        stop = gap.start() if gap else len(document)
        yield document[start:stop]
        start = stop
    yield document[start:] if start else document


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


_CODES = _character_codes()
_BETWEEN_WORDS = re.compile(rb"[^A-Za-z0-9_\x80-\xff]")
