"""Units of text to ids, each different one once.

`tokenizers` spends microseconds on each word, every time it meets it; but text repeats itself. So
Arrow finds the different units of a batch, `tokenizers` encodes those that aren't remembered, and
numpy puts the ids in place. Units of a Unigram tokenizer that aren't remembered are first cut into
fragments, most of which are. What is remembered is bounded.
"""

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

# An array of Arrow's, large_binary: pieces of text in UTF-8, or what stands for none.
Pieces = Any

# Pieces that go to the tokenizer as one text. Many small texts cost more than they hold.
_PIECES_PER_TEXT = 256
# Some hundred thousand words.
_MOST_BYTES_REMEMBERED = 3 << 23
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
    """The ids of pieces met before.

    Attributes:
        pieces: The pieces, all different.
        lists: The ids of each.
    """

    pieces: Pieces
    lists: Lists

    def with_more(self, pieces: Pieces, lists: Lists) -> Memory:
        """Returns a memory with these pieces and their ids added."""
        import pyarrow as pa

        return Memory(pa.concat_arrays([self.pieces, pieces]), self.lists.join(lists))

    @property
    def has_room(self) -> bool:
        """Whether more may be added."""
        held = self.pieces.nbytes + self.lists.ids.nbytes + self.lists.counts.nbytes
        return bool(held < _MOST_BYTES_REMEMBERED)


class RememberingEncoder:
    """Encodes pieces of text, and remembers what came out. May be used by several threads.

    Args:
        encode: Encodes pieces that aren't remembered.
        dtype: The type of the ids.
    """

    def __init__(self, encode: Callable[[Pieces], Lists], dtype: np.dtype) -> None:
        self._encode = encode
        self._nothing = Memory(_as_pieces([]), _as_lists([], dtype))
        # Replaced, never changed: threads that read it need no lock, and one that loses the race
        # to replace it loses only what it would have remembered.
        self._memory = self._nothing

    def encode(self, pieces: Pieces) -> tuple[NDArray[np.int64], Lists]:
        """Returns lists of ids, and which of them each piece has.

        Args:
            pieces: All different.
        """
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
            kept = Lists(memory.lists.take(numbers), memory.lists.counts[numbers])
            self._memory = self._nothing.with_more(pieces, kept)
        return numbers, memory.lists


class DelimiterError(Exception):
    """The special token between units was lost, or other text gave it, too."""


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
                self._fragments = RememberingEncoder(encode, dtype)
                encode = self._encode_fragments
        self._units = RememberingEncoder(encode, dtype)

    def encode(self, text: bytes, known: Mapping[bytes, NDArray]) -> NDArray:
        """Returns the ids of a text, (n,).

        Args:
            text: UTF-8, and units that are none.
            known: The ids of the units that aren't text.
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
        """Encodes units by their fragments, each different one once."""
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
        """Encodes many pieces as few texts, with a special token between to tell them apart."""
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
    """Returns the ids of an encoding of `tokenizers`, (n,)."""
    # array takes a list of ints five times as fast as numpy does.
    return np.frombuffer(array("I", encoding.ids), np.uint32)


def _as_lists(arrays: Sequence[NDArray], dtype: np.dtype) -> Lists:
    counts = np.array([len(ids) for ids in arrays], np.int64)
    return Lists(np.concatenate([np.empty(0, dtype), *arrays]), counts)


# Arrow imports pandas, which takes a third of a second, where it is given a number, or given or
# asked for an array of numpy's. So these take and give its buffers.


def _pieces(text: bytes | Bytes, starts: Places) -> Pieces:
    """Returns the pieces of a text that begin at some places."""
    import pyarrow as pa

    ends = np.append(starts, len(text))
    return pa.Array.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(ends), pa.py_buffer(text)]
    )


def _as_pieces(texts: Sequence[bytes]) -> Pieces:
    lengths = np.array([len(text) for text in texts], np.int64)
    return _pieces(b"".join(texts), np.cumsum(lengths) - lengths)


def _content(pieces: Pieces) -> tuple[Bytes, Places]:
    """Returns the text of pieces, of which there is one at least, and where each begins."""
    _, ends, text = pieces.buffers()
    places = np.frombuffer(ends, np.int64, len(pieces) + 1, pieces.offset * 8)
    first, last = int(places[0]), int(places[-1])
    return np.frombuffer(text, np.uint8, last - first, first), places[:-1] - first


def _choose(pieces: Pieces, chosen: NDArray[np.bool_]) -> Pieces:
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return pieces.filter(pa.Array.from_buffers(pa.bool_(), len(pieces), [None, bits]))


def _find(pieces: Pieces, known: Pieces) -> NDArray[np.int64]:
    """Returns the pieces' numbers among those that are known, -1 where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number = pa.py_buffer(np.array([_UNKNOWN], np.int32))
    unknown = pa.Array.from_buffers(pa.int32(), 1, [None, number])[0]
    found = pc.fill_null(pc.index_in(pieces, value_set=known), unknown)
    return _numbers(found).astype(np.int64)


def _distinct_units(text: bytes | Bytes, starts: Places) -> tuple[Pieces, NDArray[np.int32]]:
    """Returns the different units of a text, and which of them each unit is."""
    units = _pieces(text, starts).dictionary_encode()
    return units.dictionary, _numbers(units.indices)


def _numbers(found: Any) -> NDArray[np.int32]:
    """Returns the numbers of an int32 array of Arrow's."""
    _, numbers = found.buffers()
    return np.frombuffer(numbers, np.int32, len(found), found.offset * 4)


def _model_alone(specification: dict[str, Any]) -> Tokenizer:
    """Returns a tokenizer that knows its special tokens and gives all other text to its model."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(
        json.dumps({**specification, "normalizer": None, "pre_tokenizer": None})
    )
