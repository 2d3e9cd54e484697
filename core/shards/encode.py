"""Documents to token ids, on all cores.

Documents are grouped into batches of some megabytes. Where `core.shards.units` knows how the
tokenizer cuts text, `core.shards.distinct` encodes each different piece of a batch once. A document
where that isn't certain (it holds the text of a special token, say) goes to `tokenizers` whole, and
so does every document of a tokenizer of another kind. The ids are the same in all cases.

Batches can be encoded in several threads: Arrow, numpy and tokenizers let go of Python's lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.errors import TokenizerError
from core.shards.distinct import UnitEncoder, ids_of
from core.shards.units import PLACEHOLDER, SEPARATOR, find_delimiter, unit_rule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_CHARACTERS = 1 << 22

_SEPARATOR = bytes([SEPARATOR])
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
        rule, self._delimiter = unit_rule(specification), find_delimiter(specification)
        self._units = None
        if rule and self._delimiter:
            self._units = UnitEncoder(self._backend, rule, self._delimiter, dtype)

    def encode(self, batch: Batch) -> NDArray:
        """Returns the ids of a batch, one document after the other, (n,)."""
        texts = [text.encode("utf-8", "replace") for text in batch.texts]
        if self._units is None:
            ids = self._joined(self._encode_whole(texts, batch.continues))
        else:
            ids = self._encode_units(self._units, texts, batch.continues)
        parts = [ids] if batch.continues else [self._prefix, ids]
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

    def _encode_whole(self, texts: Sequence[bytes], continues: bool = False) -> list[NDArray]:
        """Returns the ids of each text, without special tokens around them.

        Some tokenizers treat the beginning of a text in their own way; the first one here is none
        where it continues a document, and so gets the delimiter before it.
        """
        delimiter = self._delimiter.text if continues and self._delimiter else b""
        decoded = [text.decode() for text in (delimiter + texts[0], *texts[1:])]
        encodings = self._backend.encode_batch_fast(decoded, add_special_tokens=False)
        ids = [ids_of(encoding).astype(self._dtype) for encoding in encodings]
        return [ids[0][1:], *ids[1:]] if delimiter else ids

    def _joined(self, documents: Sequence[NDArray]) -> NDArray:
        """Returns the ids of documents with the special tokens between them."""
        parts = [part for ids in documents for part in (self._between, ids)]
        return np.concatenate(parts[1:])

    def _encode_units(self, units: UnitEncoder, texts: Sequence[bytes], continues: bool) -> NDArray:
        """Returns the ids of texts, with the special tokens between them.

        What has its ids already goes in as a unit that no text has: a separator between texts, and
        a placeholder for each text that is encoded whole.
        """
        rule = units.rule
        whole = sorted(rule.keeps_whole(texts))
        placeholders = {number: b"%c%d" % (PLACEHOLDER, number) for number in whole}
        bodies = [placeholders.get(n, rule.document_prefix + text) for n, text in enumerate(texts)]
        if continues and 0 not in placeholders:
            bodies[0] = texts[0]
        known = {_SEPARATOR: self._between}
        if whole:
            first_continues = continues and whole[0] == 0
            ids = self._encode_whole([texts[number] for number in whole], first_continues)
            known |= dict(zip(placeholders.values(), ids, strict=True))
        return units.encode(_SEPARATOR.join(bodies), known)


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
