"""Cuts words where no Unigram piece spans, so fragments are encoded independently.

Inexact sums could break ties differently, so scores must be multiples of a power of two.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.shards.units import METASPACE, Bytes, Places

# float64 has 53 bits, and sums stay below 2^28.
_UNIT_OF_SCORES = 2.0**-24
_HIGHEST_SCORE = 2.0**10
# Per piece length; a false positive only hides a cut.
_TABLE_BITS = 18
_LONGEST_PIECE = 64
_MOST_CHARACTERS = 1 << 16
_SHIFT, _MASK = np.uint32(32 - _TABLE_BITS), np.uint32((1 << _TABLE_BITS) - 1)
_FACTOR = np.uint32(2654435761)  # Knuth


class Fragmenter:
    """Finds positions in words where all paths cut."""

    def __init__(self, pieces: list[str]) -> None:
        characters = sorted({character for piece in pieces for character in piece})
        classes = np.zeros(0x110000, np.uint16)  # 0: in no piece
        classes[[ord(character) for character in characters]] = np.arange(1, len(characters) + 1)
        classes[ord(" ")] = classes[ord(METASPACE)]
        self._classes = classes
        self._is_piece = np.zeros(len(characters) + 1, np.bool_)
        self._is_piece[[classes[ord(piece)] for piece in pieces if len(piece) == 1]] = True
        self._tables = [
            self._table([piece for piece in pieces if len(piece) == length])
            for length in range(2, max(map(len, pieces), default=0) + 1)
        ]

    def cut(self, text: Bytes, starts: Places) -> tuple[Places, NDArray[np.int64]]:
        """Returns fragment starts, and fragments per word, (words,).

        Args:
            text: Words in UTF-8.
            starts: Word starts, from 0.
        """
        places = np.flatnonzero((text & 0xC0) != 0x80)  # of characters
        codes = np.frombuffer(text.tobytes().decode().encode("utf-32-le"), np.uint32)
        classes = self._classes[codes]
        begins = np.zeros(len(text), np.bool_)
        begins[starts] = True
        begins = begins[places]
        cuts = begins | self._cuts(classes)
        return places[cuts], np.add.reduceat(cuts, np.flatnonzero(begins), dtype=np.int64)

    def _cuts(self, classes: NDArray[np.uint16]) -> NDArray[np.bool_]:
        count = len(classes)
        longest = np.ones(count, np.int32)
        characters = classes.astype(np.uint32)
        hashes = characters * _FACTOR
        for length, (high, low) in enumerate(self._tables[: count - 1], start=2):
            hashes = _continued(hashes[:-1], characters[length - 1 :])
            maybe = np.flatnonzero(high[hashes >> _SHIFT])
            longest[maybe[low[hashes[maybe] & _MASK]]] = length
        reach = np.maximum.accumulate(np.arange(count, dtype=np.int32) + longest)
        cuts = np.ones(count, np.bool_)
        cuts[1:] = reach[:-1] <= np.arange(1, count, dtype=np.int32)
        # Adjacent unknown characters form one token.
        is_piece = self._is_piece[classes]
        cuts[1:] &= is_piece[1:] | is_piece[:-1]
        return cuts

    def _table(self, pieces: list[str]) -> NDArray[np.bool_]:
        """Hashes pieces of one length, (2, n)."""
        tables = np.zeros((2, 1 << _TABLE_BITS), np.bool_)
        if pieces:
            codes = np.array([list(map(ord, piece)) for piece in pieces], np.uint32)
            first, *more = self._classes[codes].astype(np.uint32).T
            hashes = reduce(_continued, more, first * _FACTOR)
            tables[0, hashes >> _SHIFT] = True
            tables[1, hashes & _MASK] = True
        return tables


def fragmenter_for(specification: dict[str, Any]) -> Fragmenter | None:
    """Returns a `tokenizer.json`'s fragmenter, if cutting is safe."""
    model = specification["model"]
    if model.get("type") != "Unigram":
        return None
    pieces = [piece for piece, _ in model["vocab"]]
    scores = np.array([score for _, score in model["vocab"]], np.float64)
    are_exact = (scores % _UNIT_OF_SCORES == 0) & (np.abs(scores) < _HIGHEST_SCORE)
    if not are_exact.all() or max(map(len, pieces), default=0) > _LONGEST_PIECE:
        return None
    return Fragmenter(pieces) if len(set().union(*pieces)) < _MOST_CHARACTERS else None


def _continued(hashes: NDArray[np.uint32], characters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (hashes ^ characters) * _FACTOR
