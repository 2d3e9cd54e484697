"""Joins documents with equal keys; the first of each group stays.

Memory: about 20 bytes per document, and one bucket of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from core.corpus.cleaning.blocks import Hashes, Places
from core.corpus.cleaning.minhash import NO_KEY

_BUCKET_DOCUMENTS = 1 << 21

# Yields a column's keys by part, always in the same order.
Column = Callable[[], Iterator[Hashes]]
Ranks = npt.NDArray[np.signedinteger]


class DuplicateGroups:
    """Groups of documents, joined by equal keys.

    Args:
        kinds: Rank of each document's kind; the lowest kind, then the lowest place comes first,
            (documents,).
    """

    def __init__(self, kinds: npt.NDArray[np.uint8]) -> None:
        dtype: npt.DTypeLike = np.int32 if len(kinds) < 1 << 31 else np.int64
        self._order: Ranks = np.argsort(kinds, kind="stable").astype(dtype)
        self._rank: Ranks = np.empty_like(self._order)
        self._rank[self._order] = np.arange(len(kinds))
        self._parents: Ranks = np.arange(len(kinds)).astype(dtype)

    def join_equal(self, column: Column) -> None:
        """Joins documents with equal keys in a column."""
        bits = max(0, (len(self._rank) // _BUCKET_DOCUMENTS).bit_length())
        for bucket in range(1 << bits):
            keys, ranks = self._bucket(column, bucket, bits)
            order = np.argsort(keys)
            keys, ranks = keys[order], ranks[order]
            same = keys[1:] == keys[:-1]
            self._join(ranks[1:][same], ranks[:-1][same])

    def _bucket(self, column: Column, bucket: int, bits: int) -> tuple[Hashes, Ranks]:
        keys: list[Hashes] = []
        ranks: list[Ranks] = []
        start = 0
        for part in column():
            chosen = part != NO_KEY
            if bits:
                chosen &= part >> np.uint64(64 - bits) == bucket
            keys.append(part[chosen])
            ranks.append(self._rank[start : start + len(part)][chosen])
            start += len(part)
        return np.concatenate(keys), np.concatenate(ranks)

    def _join(self, left: Ranks, right: Ranks) -> None:
        """Joins pairs; the lower root becomes the parent, so roots are the first documents."""
        while len(left):
            left, right = self._root(left), self._root(right)
            differ = left != right
            left, right = left[differ], right[differ]
            np.minimum.at(self._parents, np.maximum(left, right), np.minimum(left, right))

    def _root(self, places: Ranks) -> Ranks:
        while True:
            above = self._parents[places]
            if (above == places).all():
                return places
            places = above

    def firsts(self) -> Places:
        """Returns the document that stays of each document's group, (documents,)."""
        return self._order[self._root(self._parents)[self._rank]].astype(np.int64)


def firsts_of(keys: Hashes, kinds: npt.NDArray[np.uint8]) -> Places:
    """Returns the first document of each document's group; keys are (columns, documents)."""
    groups = DuplicateGroups(kinds)
    for column in keys:
        groups.join_equal(partial(iter, [column]))
    return groups.firsts()
