"""Units of text to ids, each different one once.

`tokenizers` spends microseconds on each word, every time it meets it; but text repeats itself. So
Arrow finds the different units of a batch, `tokenizers` encodes those that aren't remembered, and
numpy puts the ids in place. What is remembered is bounded.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.shards.units import Delimiter, Places, UnitRule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Units that go to the tokenizer as one text. Many small texts cost more than they hold.
_UNITS_PER_TEXT = 256
# About 60 MB.
_MOST_REMEMBERED = 1 << 18
_UNKNOWN = -1


@dataclass(frozen=True)
class Lists:
    """Lists of ids, one after the other.

    Attributes:
        ids: Of all lists, (n,).
        counts: How many each list has, int64 (lists,).
    """

    ids: NDArray
    counts: NDArray[np.int64]

    def take(self, chosen: NDArray[np.integer]) -> NDArray:
        """Returns the ids of the lists with these numbers, in that order."""
        firsts = np.cumsum(self.counts) - self.counts
        counts = self.counts[chosen]
        ends = np.cumsum(counts)
        places = np.repeat((firsts[chosen] - (ends - counts)).astype(np.int32), counts)
        places += np.arange(len(places), dtype=np.int32)
        return self.ids[places]

    def join(self, other: Lists) -> Lists:
        """Returns these lists and after them the others."""
        return Lists(
            np.concatenate((self.ids, other.ids)), np.concatenate((self.counts, other.counts))
        )


@dataclass(frozen=True)
class Memory:
    """The ids of units met before.

    Attributes:
        numbers: A unit's number among the lists.
        lists: The ids of each.
    """

    numbers: Mapping[bytes, int]
    lists: Lists

    def find(self, units: Sequence[bytes]) -> NDArray[np.int64]:
        """Returns the units' numbers, -1 for those that aren't remembered."""
        return np.fromiter(map(self.numbers.get, units, repeat(_UNKNOWN)), np.int64, len(units))

    def with_more(self, units: Sequence[bytes], lists: Lists) -> Memory:
        """Returns a memory with these units and their ids added."""
        first = len(self.lists.counts)
        added = dict(zip(units, range(first, first + len(units)), strict=True))
        return Memory({**self.numbers, **added}, self.lists.join(lists))

    def newest(self, count: int) -> NDArray[np.int64]:
        """Returns the numbers of the `count` units added last."""
        last = len(self.lists.counts)
        return np.arange(last - count, last)

    @property
    def has_room(self) -> bool:
        """Whether more may be added."""
        return len(self.numbers) < _MOST_REMEMBERED


class UnitEncoder:
    """Encodes text unit by unit. May be used by several threads.

    Args:
        backend: The tokenizer.
        rule: Where text can be cut.
        delimiter: What can stand between units.
        dtype: The type of the ids.
    """

    def __init__(
        self, backend: Tokenizer, rule: UnitRule, delimiter: Delimiter, dtype: np.dtype
    ) -> None:
        self.rule = rule
        self._backend = _model_alone(backend) if rule.space_mark else backend
        self._delimiter = delimiter
        self._nothing = Memory({}, Lists(np.empty(0, dtype), np.empty(0, np.int64)))
        # Replaced, never changed: threads that read it need no lock, and one that loses the race
        # to replace it loses only what it would have remembered.
        self._memory = self._nothing

    def encode(self, text: bytes, known: Mapping[bytes, NDArray]) -> NDArray:
        """Returns the ids of a text, (n,).

        Args:
            text: UTF-8, and units that are none.
            known: The ids of the units that aren't text.
        """
        units, chosen = _distinct_units(*self.rule.cut(text))
        memory = self._memory
        numbers = memory.find(units)
        is_known = np.array([unit in known for unit in units], np.bool_)
        is_new = (numbers == _UNKNOWN) & ~is_known
        new = list(compress(units, is_new))
        memory = memory.with_more(new, self._encode_delimited(new))
        numbers[is_new] = memory.newest(len(new))
        self._memory = memory if memory.has_room else self._only(units, numbers, memory.lists)
        arrays = [known[unit] for unit in compress(units, is_known)]
        lists = memory.lists.join(_as_lists(arrays, memory.lists))
        numbers[is_known] = np.arange(len(lists.counts) - len(arrays), len(lists.counts))
        return lists.take(numbers[chosen])

    def _only(self, units: Sequence[bytes], numbers: NDArray[np.int64], lists: Lists) -> Memory:
        """Returns a memory of these units alone, those without a number aside."""
        has_ids = numbers != _UNKNOWN
        kept = Lists(lists.take(numbers[has_ids]), lists.counts[numbers[has_ids]])
        return self._nothing.with_more(list(compress(units, has_ids)), kept)

    def _encode_delimited(self, units: Sequence[bytes]) -> Lists:
        """Encodes many units as few texts, with a special token between them to tell them apart."""
        groups = (units[n : n + _UNITS_PER_TEXT] for n in range(0, len(units), _UNITS_PER_TEXT))
        texts = [self._delimited(group).decode() for group in groups]
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.empty(0, np.uint32), *map(ids_of, encodings)])
        is_delimiter = ids == self._delimiter.id
        counts = np.diff(np.flatnonzero(is_delimiter), append=len(ids)) - 1
        assert len(counts) == len(units), "a special token was lost between units"
        return Lists(ids[~is_delimiter].astype(self._nothing.lists.ids.dtype), counts)

    def _delimited(self, units: Sequence[bytes]) -> bytes:
        text = self._delimiter.text.join([b"", *units])
        return text.replace(b" ", self.rule.space_mark) if self.rule.space_mark else text


def ids_of(encoding: Any) -> NDArray[np.uint32]:
    """Returns the ids of an encoding of `tokenizers`, (n,)."""
    # array takes a list of ints five times as fast as numpy does.
    return np.frombuffer(array("I", encoding.ids), np.uint32)


def _as_lists(arrays: Sequence[NDArray], like: Lists) -> Lists:
    counts = np.array([len(ids) for ids in arrays], np.int64)
    return Lists(np.concatenate([like.ids[:0], *arrays]), counts)


def _distinct_units(text: bytes, starts: Places) -> tuple[list[bytes], NDArray[np.integer]]:
    """Returns the different units of a text, and which of them each unit is."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.append(starts, len(text))), pa.py_buffer(text)]
    units = pa.Array.from_buffers(pa.large_binary(), len(starts), buffers).dictionary_encode()
    return units.dictionary.to_pylist(), units.indices.to_numpy()


def _model_alone(backend: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that knows its special tokens and gives all other text to its model."""
    from tokenizers import Tokenizer

    specification = json.loads(backend.to_str())
    return Tokenizer.from_str(
        json.dumps({**specification, "normalizer": None, "pre_tokenizer": None})
    )
