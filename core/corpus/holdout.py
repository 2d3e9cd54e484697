"""Selects held-out validation documents by hash, and finds those that overlap with training text.

A document's own hash decides its split, so equal documents always land in the same split, whatever
the order or machine. Held-out documents that share a window of words with a training document can
be dropped, so that the validation loss doesn't reward memorisation.
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
# Odd, hence invertible modulo 2**64; the fraction of the golden ratio spreads hashes well.
_BYTE_BASE = 0x9E3779B97F4A7C15
_WORD_BASE = 0xC2B2AE3D27D4EB4F
_TABLE_SLOTS_PER_WINDOW = 16

Hashes = npt.NDArray[np.uint64]


def document_hash(data: bytes) -> int:
    """Hashes a document's UTF-8 bytes to 64 bits."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def held_out_below(hashes: Iterable[int], percent: float) -> int:
    """Finds the hash threshold below which documents are held out.

    The threshold is `percent` of the hash space. If a split would be empty, the threshold moves
    just enough to give it one document; a single document goes to training. Stops reading as soon
    as both splits have a document.

    Args:
        percent: Percentage to hold out, above 0, at most 50.
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
    """The hashed word windows of a set of documents.

    Attributes:
        hashes: Sorted unique hashes, (windows,).
        occurrences: For each window of each document, its index in `hashes`, (occurrences,).
        owners: For each occurrence, its document's index, (occurrences,).
    """

    hashes: Hashes
    occurrences: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[bytes]) -> WindowSet:
        """Builds the set from UTF-8 documents. Memory grows with the number of windows."""
        parts = list(window_hashes(documents))
        if not parts:
            empty = np.zeros(0, np.int64)
            return cls(np.zeros(0, np.uint64), empty, empty)
        hashes, occurrences = np.unique(
            np.concatenate([hashes for hashes, _ in parts]), return_inverse=True
        )
        return cls(hashes, occurrences, np.concatenate([owners for _, owners in parts]))

    def owners_sharing_with(self, documents: Iterable[bytes]) -> npt.NDArray[np.int64]:
        """Returns the indices of the set's documents that share a window with any of `documents`.

        `documents` is streamed; memory doesn't grow with it.
        """
        if not len(self.hashes):
            return np.zeros(0, np.int64)
        shared = np.zeros(len(self.hashes), bool)
        bits = max(10, (len(self.hashes) * _TABLE_SLOTS_PER_WINDOW).bit_length())
        shift = np.uint64(64 - bits)
        table = np.zeros(1 << bits, bool)  # a cheap filter that rejects nearly all absent hashes
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
    """Hashes each window of `words` consecutive words within a document.

    A word is a run of letters, digits, underscores and bytes outside ASCII, compared
    case-insensitively.

    Yields:
        Window hashes (windows,) and the indices of their documents (windows,).
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
    """Yields word hashes and the indices of their documents, block by block."""
    for block, ends, numbers in _blocks(documents):
        codes = _CODES[np.frombuffer(block, np.uint8)]
        is_word = np.concatenate([[False], codes > 0, [False]])
        edges = np.flatnonzero(is_word[1:] != is_word[:-1])
        starts, stops = edges[0::2], edges[1::2]
        hashes = _mix(_range_hashes(codes, starts, stops, _BYTE_BASE))
        yield hashes, np.asarray(numbers, np.int64)[np.searchsorted(ends, starts, side="right")]


def _blocks(documents: Iterable[bytes]) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """Joins documents, or pieces of long ones, into blocks of about 1 MiB.

    Yields:
        The block, the end offset of each piece, and the index of each piece's document.
    """
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
    """Cuts a long document between words."""
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
    """Hashes `values[start:stop]` for each range, independent of position, from one running sum.

    The hash is the polynomial sum of value[start + k] * base**k modulo 2**64 (Rabin and Karp).
    """
    powers = _powers(base, len(values))
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * powers, out=sums[1:])
    inverses = _powers(pow(base, -1, _HASH_SPACE), len(values))
    return (sums[stops] - sums[starts]) * inverses[starts]


def _powers(base: int, count: int) -> Hashes:
    """Returns base**0, base**1, ... modulo 2**64."""
    factors = np.full(max(count, 1), base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)[:count]


def _mix(hashes: Hashes) -> Hashes:
    """Breaks the algebraic relation between the polynomial hashes of words and of windows."""
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(29))


def _character_codes() -> npt.NDArray[np.uint64]:
    """Maps each byte to 0 between words, else to a case-insensitive code."""
    word = [byte for byte in range(256) if byte >= 128 or chr(byte).isalnum() or byte == ord("_")]
    codes = np.zeros(256, np.uint64)
    codes[word] = [byte if byte >= 128 else ord(chr(byte).lower()) for byte in word]
    return codes


_CODES = _character_codes()
_BETWEEN_WORDS = re.compile(rb"[^A-Za-z0-9_\x80-\xff]")
