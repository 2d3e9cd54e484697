"""Encodes each distinct unit of text once: `tokenizers` spends microseconds on every word."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.shards.fragments import fragmenter_for
from core.shards.units import Bytes, Delimiter, Places, UnitRule
from core.tokenizer.native import native_calls

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Arrow large_binary array.
Pieces = Any

# Small texts have an overhead.
_PIECES_PER_TEXT = 256
_MOST_BYTES_REMEMBERED = 3 << 23
_UNKNOWN = -1


@dataclass(frozen=True)
class Lists:
    """A ragged array of ids.

    Attributes:
        ids: Concatenated, (n,).
        counts: Lengths, int64 (lists,).
    """

    ids: NDArray
    counts: NDArray[np.int64]

    def take(self, chosen: NDArray[np.integer]) -> NDArray:
        """Concatenates the chosen lists' ids."""
        firsts = np.cumsum(self.counts) - self.counts
        counts = self.counts[chosen]
        ends = np.cumsum(counts)
        indices = np.repeat((firsts[chosen] - (ends - counts)).astype(np.int32), counts)
        indices += np.arange(len(indices), dtype=np.int32)
        return self.ids[indices]

    def join(self, other: Lists) -> Lists:
        """Appends other lists."""
        return Lists(
            np.concatenate((self.ids, other.ids)), np.concatenate((self.counts, other.counts))
        )


@dataclass(frozen=True)
class Memory:
    """Caches distinct pieces and their ids."""

    pieces: Pieces
    lists: Lists

    def with_more(self, pieces: Pieces, lists: Lists) -> Memory:
        import pyarrow as pa

        return Memory(pa.concat_arrays([self.pieces, pieces]), self.lists.join(lists))

    @property
    def has_room(self) -> bool:
        held = self.pieces.nbytes + self.lists.ids.nbytes + self.lists.counts.nbytes
        return bool(held < _MOST_BYTES_REMEMBERED)


class CachingEncoder:
    """Encodes pieces and caches the results; thread-safe."""

    def __init__(self, encode: Callable[[Pieces], Lists], dtype: np.dtype) -> None:
        self._encode = encode
        self._nothing = Memory(_as_pieces([]), _as_lists([], dtype))
        # Replaced, never mutated: readers need no lock, and losing a race only loses additions.
        self._memory = self._nothing

    def encode(self, pieces: Pieces) -> tuple[NDArray[np.int64], Lists]:
        """Returns each piece's list index, and the lists."""
        memory = self._memory
        numbers = _find(pieces, memory.pieces)
        is_new = numbers == _UNKNOWN
        new = _choose(pieces, is_new)
        first = len(memory.pieces)
        memory = memory.with_more(new, self._encode(new))
        numbers[is_new] = np.arange(first, first + len(new))
        if memory.has_room:
            self._memory = memory
        else:
            newest = Lists(memory.lists.take(numbers), memory.lists.counts[numbers])
            self._memory = self._nothing.with_more(pieces, newest)
        return numbers, memory.lists


class DelimiterError(Exception):
    """The delimiter was lost, or came out of other text."""


class UnitEncoder:
    """Encodes text unit by unit; thread-safe."""

    def __init__(
        self, backend: Tokenizer, rule: UnitRule, delimiter: Delimiter, dtype: np.dtype
    ) -> None:
        self.rule = rule
        self._backend = backend
        self._delimiter = delimiter
        self._dtype = dtype
        self._fragmenter = None
        encode: Callable[[Pieces], Lists] = self._encode_delimited
        if rule.space_mark:
            specification = json.loads(backend.to_str())
            self._backend = _model_alone(specification)
            self._fragmenter = fragmenter_for(specification)
            if self._fragmenter:
                self._fragments = CachingEncoder(encode, dtype)
                encode = self._encode_fragments
        self._units = CachingEncoder(encode, dtype)

    def encode(self, text: bytes, known: Mapping[bytes, NDArray]) -> NDArray:
        """Encodes a text to ids, (n,).

        Args:
            known: Ids of placeholder units.
        """
        units, chosen = _distinct_units(*self.rule.cut(text))
        numbers = _find(units, _as_pieces(list(known)))
        is_text = numbers == _UNKNOWN
        text_numbers, lists = self._units.encode(_choose(units, is_text))
        numbers += len(lists.counts)
        numbers[is_text] = text_numbers
        lists = lists.join(_as_lists(list(known.values()), self._dtype))
        return lists.take(numbers[chosen])

    def _encode_fragments(self, units: Pieces) -> Lists:
        assert self._fragmenter
        if not len(units):
            return _as_lists([], self._dtype)
        text, starts = _content(units)
        starts, counts = self._fragmenter.cut(text, starts)
        fragments, chosen = _distinct_units(text, starts)
        numbers, lists = self._fragments.encode(fragments)
        ids_of_each = lists.counts[numbers[chosen]]
        firsts = np.cumsum(counts) - counts
        return Lists(lists.take(numbers[chosen]), np.add.reduceat(ids_of_each, firsts))

    def _encode_delimited(self, pieces: Pieces) -> Lists:
        every = pieces.to_pylist()
        groups = (every[n : n + _PIECES_PER_TEXT] for n in range(0, len(every), _PIECES_PER_TEXT))
        texts = [self._delimited(group).decode() for group in groups]
        with native_calls():
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.empty(0, np.uint32), *map(ids_of, encodings)])
        is_delimiter = ids == self._delimiter.id
        counts = np.diff(np.flatnonzero(is_delimiter), append=len(ids)) - 1
        if len(counts) != len(every):
            raise DelimiterError
        return Lists(ids[~is_delimiter].astype(self._dtype), counts)

    def _delimited(self, pieces: Sequence[bytes]) -> bytes:
        text = self._delimiter.text.join([b"", *pieces])
        return text.replace(b" ", self.rule.space_mark) if self.rule.space_mark else text


def ids_of(encoding: Any) -> NDArray[np.uint32]:
    """Returns ids, (n,)."""
    # array reads lists five times as fast as NumPy.
    return np.frombuffer(array("I", encoding.ids), np.uint32)


def _as_lists(arrays: Sequence[NDArray], dtype: np.dtype) -> Lists:
    counts = np.array([len(ids) for ids in arrays], np.int64)
    return Lists(np.concatenate([np.empty(0, dtype), *arrays]), counts)


# Exchanges buffers: for numbers or NumPy arrays, Arrow imports pandas, in a third of a second.


def _pieces(text: bytes | Bytes, starts: Places) -> Pieces:
    import pyarrow as pa

    ends = np.append(starts, len(text))
    return pa.Array.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(ends), pa.py_buffer(text)]
    )


def _as_pieces(texts: Sequence[bytes]) -> Pieces:
    lengths = np.array([len(text) for text in texts], np.int64)
    return _pieces(b"".join(texts), np.cumsum(lengths) - lengths)


def _content(pieces: Pieces) -> tuple[Bytes, Places]:
    _, ends, text = pieces.buffers()
    bounds = np.frombuffer(ends, np.int64, len(pieces) + 1, pieces.offset * 8)
    first, last = int(bounds[0]), int(bounds[-1])
    return np.frombuffer(text, np.uint8, last - first, first), bounds[:-1] - first


def _choose(pieces: Pieces, chosen: NDArray[np.bool_]) -> Pieces:
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return pieces.filter(pa.Array.from_buffers(pa.bool_(), len(pieces), [None, bits]))


def _find(pieces: Pieces, known: Pieces) -> NDArray[np.int64]:
    """Returns indices, -1 if absent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number = pa.py_buffer(np.array([_UNKNOWN], np.int32))
    unknown = pa.Array.from_buffers(pa.int32(), 1, [None, number])[0]
    indices = pc.fill_null(pc.index_in(pieces, value_set=known), unknown)
    return _numbers(indices).astype(np.int64)


def _distinct_units(text: bytes | Bytes, starts: Places) -> tuple[Pieces, NDArray[np.int32]]:
    """Returns distinct units and each unit's index."""
    units = _pieces(text, starts).dictionary_encode()
    return units.dictionary, _numbers(units.indices)


def _numbers(array: Any) -> NDArray[np.int32]:
    _, numbers = array.buffers()
    return np.frombuffer(numbers, np.int32, len(array), array.offset * 4)


def _model_alone(specification: dict[str, Any]) -> Tokenizer:
    """Passes all but special tokens straight to the model."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(
        json.dumps({**specification, "normalizer": None, "pre_tokenizer": None})
    )
