"""Finds what a document repeats: lines, paragraphs and n-grams of words.

Source: Gopher, https://arxiv.org/abs/2112.11446, appendix A.1.1, "Repetition removal". A repeated
item is any but the first of its kind in the document; characters of overlapping n-grams count once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from core.corpus.cleaning.blocks import (
    Block,
    Flags,
    Hashes,
    Places,
    Ranges,
    item_hasher,
    mix,
)

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Groups:
    """Equal items of the same document, without single ones.

    Attributes:
        members: Ascending places in the keys, (members,).
        kinds: Group of each member, (members,).
        firsts: First member of each group, (groups,).
        counts: Members of each group, (groups,).
    """

    members: Places
    kinds: Places
    firsts: Places
    counts: Places

    @property
    def repeats(self) -> Places:
        """Members that aren't the first of their group."""
        is_first = np.zeros(len(self.members), bool)
        is_first[np.searchsorted(self.members, self.firsts)] = True
        return self.members[~is_first]


def group_equal(keys: Hashes, owners: Places) -> Groups:
    """Groups equal keys within documents."""
    keys = keys ^ mix(owners.astype(np.uint64) + np.uint64(1))
    order = np.argsort(keys)
    sorted_keys = keys[order]
    same = sorted_keys[1:] == sorted_keys[:-1]
    is_member = np.zeros(len(keys), bool)
    is_member[order[1:][same]] = True
    is_member[order[:-1][same]] = True
    members = np.flatnonzero(is_member)
    _, firsts, kinds, counts = np.unique(
        keys[members], return_index=True, return_inverse=True, return_counts=True
    )
    return Groups(members, kinds, members[firsts], counts)


def repeated_items(block: Block, items: Ranges) -> Flags:
    """Marks lines or paragraphs that repeat an earlier one of the document."""
    repeats = np.zeros(len(items.starts), bool)
    hashes = block.hasher(items.starts, items.stops)
    repeats[group_equal(hashes, items.owners).repeats] = True
    return repeats


class WordGrams:
    """The n-grams of a block's words.

    A repeated n-gram consists of repeated (n-1)-grams, so each n looks only at what is left of
    the one before.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._words = block.words
        hashes = block.hasher(self._words.starts, self._words.stops)
        self._hash = item_hasher(hashes)
        self._characters = np.concatenate([[0], np.cumsum(self._words.lengths)])
        self._groups: dict[int, tuple[Places, Groups]] = {}

    def top_shares(self, n: int) -> Shares:
        """Returns the share of characters in the most frequent repeated n-gram, (documents,)."""
        places, groups = self._grouped(n)
        firsts = places[groups.firsts]
        characters = self._characters[firsts + n] - self._characters[firsts]
        most = np.zeros(len(self._block), np.int64)
        np.maximum.at(most, self._words.owners[firsts], characters * groups.counts)
        return self._share_of_characters(most)

    def repeated_shares(self, n: int) -> Shares:
        """Returns the share of characters in repeated n-grams, (documents,)."""
        places, groups = self._grouped(n)
        repeats = places[groups.repeats]
        if not len(repeats):
            return np.zeros(len(self._block))
        edges = np.zeros(len(self._words.starts) + 1, np.int32)
        np.add.at(edges, repeats, 1)
        np.add.at(edges, repeats + n, -1)
        covered = np.flatnonzero(np.cumsum(edges[:-1]))
        owners, lengths = self._words.owners[covered], self._words.lengths[covered]
        return self._share_of_characters(self._block.sum(owners, lengths))

    def _share_of_characters(self, part: npt.NDArray) -> Shares:
        return np.divide(part, self._all_characters)

    @cached_property
    def _all_characters(self) -> Shares:
        return np.maximum(self._block.sum(self._words.owners, self._words.lengths), 1)

    def _grouped(self, n: int) -> tuple[Places, Groups]:
        if n not in self._groups:
            places = self._candidates(n)
            keys = self._hash(places, places + n)
            self._groups[n] = (places, group_equal(keys, self._words.owners[places]))
        return self._groups[n]

    def _candidates(self, n: int) -> Places:
        """Returns the first words of n-grams that can be repeated."""
        if n - 1 in self._groups:
            shorter, groups = self._groups[n - 1]
            repeated = shorter[groups.members]
            return repeated[:-1][np.diff(repeated) == 1]
        owners = self._words.owners
        starts = np.arange(max(0, len(owners) - n + 1))
        return starts[owners[: len(starts)] == owners[n - 1 :]]
