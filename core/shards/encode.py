"""Documents to token ids, on all cores.

`tokenizers` spends about a microsecond of a core on each word, every time it meets it. But text
repeats itself. So a batch of some megabytes is cut into units that the tokenizer treats one by one
(`core.shards.units`), Arrow finds the distinct ones, `tokenizers` encodes only these, and numpy
puts their ids in place. The ids are those of whole documents. A document goes to `tokenizers` whole
where that isn't certain (it holds the text of a special token, say), and so does every document of
a tokenizer of a kind that isn't known.

Nothing is remembered between batches, so memory doesn't grow. Batches can be encoded in several
threads: Arrow, numpy and tokenizers let go of Python's lock.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.errors import TokenizerError
from core.shards.units import SEPARATOR, unit_rule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_CHARACTERS = 1 << 22

_SEPARATOR = bytes([SEPARATOR])
# Units that go to the tokenizer as one text. Many small texts cost more than they hold.
_UNITS_PER_TEXT = 256
_CUT_WITHIN_CHARACTERS = 1 << 16
_CUT_ATTEMPTS = 64
_CUT_CONTEXT_CHARACTERS = 1000
_PROBES = ("a", "The house, and 12 more.")


@dataclass(frozen=True)
class Batch:
    """Texts to encode together.

    Attributes:
        texts: Documents; the first and the last may be parts of long ones.
        continues: Whether the first text goes on with the last document of the batch before.
        unfinished: Whether the last document goes on in the next batch.
    """

    texts: Sequence[str]
    continues: bool = False
    unfinished: bool = False


class DocumentEncoder:
    """Encodes documents as one stream of ids, each between the tokenizer's own special tokens.

    A character that UTF-8 can't hold (half of a surrogate pair) counts as a question mark.

    Args:
        backend: The tokenizer. Its truncation and padding are ignored.
        dtype: The type of the ids.

    Raises:
        TokenizerError: It does more than put special tokens before and after a document.
    """

    def __init__(self, backend: Tokenizer, dtype: np.dtype) -> None:
        self._backend = _without_truncation(backend)
        self._dtype = dtype
        prefix, suffix = _special_tokens_around(self._backend)
        self._prefix, self._suffix = np.array(prefix, dtype), np.array(suffix, dtype)
        self._between = np.concatenate((self._suffix, self._prefix))
        specification = json.loads(self._backend.to_str())
        self._rule = unit_rule(specification)
        self._delimiter = _delimiter(specification)

    def encode(self, batch: Batch) -> NDArray:
        """Returns the ids of a batch, one document after the other, (n,)."""
        parts = [] if batch.continues else [self._prefix]
        for number, ids in enumerate(self._encode_runs(batch)):
            parts += [self._between, ids] if number else [ids]
        return np.concatenate(parts if batch.unfinished else [*parts, self._suffix])

    def can_cut(self, document: str, place: int) -> bool:
        """Returns whether the tokens stay the same when a document is cut before a place.

        Judged by the 1,000 characters on either side.
        """
        if document[place - 1].isspace() or document[place + 1 : place + 2].isspace():
            return False
        left = document[max(0, place - _CUT_CONTEXT_CHARACTERS) : place].encode("utf-8", "replace")
        right = document[place : place + _CUT_CONTEXT_CHARACTERS].encode("utf-8", "replace")
        whole, start = self._encode_whole([left + right, left])
        (end,) = self._encode_whole([right], continues=True)
        return np.array_equal(whole, np.concatenate((start, end)))

    def _encode_runs(self, batch: Batch) -> Iterator[NDArray]:
        """Yields the ids of texts, or of several with the special tokens between them."""
        texts = [text.encode("utf-8", "replace") for text in batch.texts]
        if self._rule is None or self._delimiter is None:
            yield from self._encode_whole(texts, batch.continues)
            return
        keep_whole = self._rule.keeps_whole(texts)
        for is_whole, run in groupby(range(len(texts)), keep_whole.__contains__):
            numbers = list(run)
            run_texts = texts[numbers[0] : numbers[-1] + 1]
            continues = batch.continues and numbers[0] == 0
            if is_whole:
                yield from self._encode_whole(run_texts, continues)
            else:
                yield self._encode_units(run_texts, continues)

    def _encode_whole(self, texts: Sequence[bytes], continues: bool = False) -> list[NDArray]:
        """Returns the ids of each text, without special tokens around them.

        Some tokenizers treat the beginning of a text in their own way; the first one here is none
        where it continues a document, and so gets the delimiter before it.
        """
        delimiter = self._delimiter[0] if continues and self._delimiter else b""
        decoded = [text.decode() for text in (delimiter + texts[0], *texts[1:])]
        encodings = self._backend.encode_batch_fast(decoded, add_special_tokens=False)
        ids = [_ids_of(encoding).astype(self._dtype) for encoding in encodings]
        return [ids[0][1:], *ids[1:]] if delimiter else ids

    def _encode_units(self, texts: Sequence[bytes], continues: bool) -> NDArray:
        """Returns the ids of texts, with the special tokens between them."""
        import pyarrow as pa

        assert self._rule is not None
        prefix = self._rule.document_prefix
        joined = (b"" if continues else prefix) + (_SEPARATOR + prefix).join(texts)
        starts = self._rule.starts(np.frombuffer(joined, np.uint8))
        offsets = np.append(starts, len(joined))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
        units = pa.Array.from_buffers(pa.large_binary(), len(starts), buffers).dictionary_encode()
        ids, counts = self._encode_distinct(units.dictionary.to_pylist())
        return gather_lists(ids, counts, units.indices.to_numpy())

    def _encode_distinct(self, units: list[bytes]) -> tuple[NDArray, NDArray[np.int64]]:
        """Returns the ids of all units, one after the other, and how many each has."""
        if _SEPARATOR not in units:
            return self._encode_delimited(units)
        place = units.index(_SEPARATOR)
        ids, counts = self._encode_delimited(units[:place] + units[place + 1 :])
        before = int(counts[:place].sum())
        return (
            np.concatenate((ids[:before], self._between, ids[before:])),
            np.concatenate((counts[:place], [len(self._between)], counts[place:])),
        )

    def _encode_delimited(self, units: list[bytes]) -> tuple[NDArray, NDArray[np.int64]]:
        """Encodes many units as few texts, with a special token between them to tell them apart."""
        assert self._delimiter is not None
        content, delimiter_id = self._delimiter
        groups = [units[n : n + _UNITS_PER_TEXT] for n in range(0, len(units), _UNITS_PER_TEXT)]
        texts = [content.join([b"", *group]).decode() for group in groups]
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.empty(0, np.uint32), *map(_ids_of, encodings)])
        is_delimiter = ids == delimiter_id
        counts = np.diff(np.flatnonzero(is_delimiter), append=len(ids)) - 1
        assert len(counts) == len(units), "a special token was lost between units"
        return ids[~is_delimiter].astype(self._dtype), counts


class Batcher:
    """Groups documents into batches; long documents are cut.

    A document is cut only where that leaves its tokens as they are. Where there is no such place
    (no space in 64 Ki characters, or a tokenizer that looks beyond words), it stays whole.

    Args:
        encoder: Knows where a document can be cut.
        characters: The size of a batch.
    """

    def __init__(self, encoder: DocumentEncoder, characters: int = BATCH_CHARACTERS) -> None:
        self._encoder = encoder
        self._characters = characters
        self._texts: list[str] = []
        self._size = 0
        self._continues = False

    def add(self, document: str) -> Iterator[Batch]:
        """Takes a document in and yields the batches that are full then."""
        for text, is_last in self._cut(document):
            self._texts.append(text)
            self._size += len(text)
            if self._size >= self._characters or not is_last:
                yield self._take(unfinished=not is_last)

    def finish(self) -> Iterator[Batch]:
        """Yields what is left."""
        if self._texts:
            yield self._take(unfinished=False)

    def _take(self, unfinished: bool) -> Batch:
        batch = Batch(self._texts, self._continues, unfinished)
        self._texts, self._size, self._continues = [], 0, unfinished
        return batch

    def _cut(self, document: str) -> Iterator[tuple[str, bool]]:
        """Yields the parts of a document, and whether each is the last."""
        start = 0
        while len(document) - start > self._characters:
            place = self._place_to_cut(document, start)
            if place is None:
                break
            yield document[start:place], False
            start = place
        yield document[start:], True

    def _place_to_cut(self, document: str, start: int) -> int | None:
        """Returns a place that leaves the tokens alone, as late in a batch as can be."""
        end = start + self._characters
        lowest = max(start, end - _CUT_WITHIN_CHARACTERS) + 1
        for whitespace in " \n":
            place = end
            for _ in range(_CUT_ATTEMPTS):
                place = document.rfind(whitespace, lowest, place)
                if place < 0:
                    break
                if self._encoder.can_cut(document, place):
                    return place
        return None


def gather_lists(
    values: NDArray, counts: NDArray[np.int64], chosen: NDArray[np.integer[Any]]
) -> NDArray:
    """Puts lists of varying length one after the other.

    Args:
        values: The lists' values, one list after the other.
        counts: How many values each list has, int64 (lists,).
        chosen: Which lists to take, in order, (n,).

    Returns:
        The values of the chosen lists.
    """
    firsts = np.cumsum(counts) - counts
    chosen_counts = counts[chosen]
    ends = np.cumsum(chosen_counts)
    shifts = (firsts[chosen] - (ends - chosen_counts)).astype(np.int32)
    places = np.repeat(shifts, chosen_counts)
    places += np.arange(len(places), dtype=np.int32)
    return values[places]


def _ids_of(encoding: Any) -> NDArray[np.uint32]:
    # array takes a list of ints five times as fast as numpy does.
    return np.frombuffer(array("I", encoding.ids), np.uint32)


def _without_truncation(backend: Tokenizer) -> Tokenizer:
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _special_tokens_around(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids that the post-processor puts before and after a text."""
    around = [_tokens_around(backend, text) for text in _PROBES]
    if not around[0] or around[0] != around[1]:
        raise TokenizerError(
            "This tokenizer can't be used to build shards",
            expected="one that puts special tokens before and after a text, or none",
            received="a post-processor that does something else",
            fix="train a tokenizer here, or name another one",
            field="tokenizer",
        )
    return around[0]


def _tokens_around(backend: Tokenizer, text: str) -> tuple[list[int], list[int]] | None:
    bare = backend.encode(text, add_special_tokens=False).ids
    whole = backend.encode(text, add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return None


def _delimiter(specification: dict[str, Any]) -> tuple[bytes, int] | None:
    """Returns text and id of a token that can stand between any two texts, if there is one.

    It must be found wherever it stands, take nothing from its neighbours, and never come out of
    other text, as the unknown token does.
    """
    model = specification["model"]
    contents = [token["content"] for token in specification["added_tokens"]]
    for token in specification["added_tokens"]:
        takes_more = token["lstrip"] or token["rstrip"] or token["single_word"]
        is_unknown = token["id"] == model.get("unk_id") or token["content"] == model.get(
            "unk_token"
        )
        if takes_more or token["normalized"] or is_unknown or not token["special"]:
            continue
        if not any(_can_hide(token["content"], other) for other in contents):
            return token["content"].encode(), token["id"]
    return None


def _can_hide(token: str, other: str) -> bool:
    """Returns whether `other` could be found across the beginning or the end of `token`."""
    if token in other and token != other:
        return True
    return any(other.endswith(token[:length]) for length in range(1, len(token)))
