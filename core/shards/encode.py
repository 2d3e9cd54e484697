"""Encodes documents to ids in threads: Arrow, NumPy and tokenizers release the GIL.

Units are encoded once if splitting is certain, else documents whole, with identical ids.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.corpus.sentences import sentence_ends
from core.shards.distinct import DelimiterError, UnitEncoder, ids_of
from core.shards.units import BEGIN, END, MARK, PLACEHOLDER, SEAM, find_delimiter, unit_rule
from core.tokenizer.framing import find_frame
from core.tokenizer.native import native_calls

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

BATCH_CHARACTERS = 1 << 22
# Longer documents are cut: encoding takes thirty times their size.
PART_CHARACTERS = 1 << 16

_BEGIN, _END, _SEAM, _MARK = (bytes([mark]) for mark in (BEGIN, END, SEAM, MARK))
# A token takes 100 bytes until its id is extracted.
_WHOLE_BYTES = 1 << 20
_CUT_ATTEMPTS = 64
_CUT_CONTEXT_CHARACTERS = 1000


class Part(NamedTuple):
    """A document, or a part of a long one.

    Attributes:
        marks: Ascending sentence ends, in characters.
    """

    text: str
    begins: bool = True
    ends: bool = True
    marks: tuple[int, ...] = ()


class DocumentEncoder:
    """Encodes documents with special tokens; lone surrogates become question marks.

    Args:
        mark_id: Follows each sentence.
        separator_id: Follows each document and its special tokens.
        end_id: Added unless the tokenizer adds it.

    Attributes:
        suffix_length: Special tokens after a document.

    Raises:
        TokenizerError: The tokenizer does more than add special tokens.
    """

    def __init__(
        self,
        backend: Tokenizer,
        dtype: np.dtype,
        mark_id: int | None = None,
        separator_id: int | None = None,
        end_id: int | None = None,
    ) -> None:
        self._backend = _without_truncation(backend)
        self._dtype = dtype
        prefix, suffix = map(list, find_frame(self._backend))
        if end_id is not None and end_id not in (*prefix, *suffix):
            suffix = [*suffix, end_id]
        self.marks_sentences, self.suffix_length = mark_id is not None, len(suffix)
        separator = [] if separator_id is None else [separator_id]
        self._prefix, self._suffix = np.array(prefix, dtype), np.array([*suffix, *separator], dtype)
        self._mark = np.array([] if mark_id is None else [mark_id], dtype)
        specification = json.loads(self._backend.to_str())
        rule, self._delimiter = unit_rule(specification), find_delimiter(specification)
        self._units = None
        if rule and self._delimiter:
            self._units = UnitEncoder(self._backend, rule, self._delimiter, dtype)

    def encode(self, parts: Sequence[Part]) -> NDArray:
        """Returns concatenated ids, (n,)."""
        texts = [part.text.encode("utf-8", "replace") for part in parts]
        if self._units is not None:
            # Text may produce the delimiter.
            with suppress(DelimiterError):
                return self._encode_units(self._units, parts, texts)
        pieces = [np.empty(0, self._dtype)]
        for part, ids in zip(parts, self._encode_whole(parts, texts), strict=True):
            pieces += [self._prefix] * part.begins + [ids] + [self._suffix] * part.ends
        return np.concatenate(pieces)

    def can_cut(self, document: str, position: int) -> bool:
        """True if a cut keeps the tokens, as proved or tested on 1,000 characters per side."""
        before, after = document[position - 1], document[position + 1 : position + 2]
        if before.isspace() or after.isspace():
            return False
        if self._units is not None and document[position] == " " and (before + after).isalnum():
            return True
        left = document[max(0, position - _CUT_CONTEXT_CHARACTERS) : position]
        right = document[position : position + _CUT_CONTEXT_CHARACTERS]
        parts = [Part(left + right), Part(left, ends=False), Part(right, begins=False)]
        texts = [part.text.encode("utf-8", "replace") for part in parts]
        whole, *halves = self._encode_whole(parts, texts)
        # An empty half proves nothing.
        return all(map(len, halves)) and np.array_equal(whole, np.concatenate(halves))

    def _encode_whole(self, parts: Sequence[Part], texts: Sequence[bytes]) -> list[NDArray]:
        """Returns each text's ids, without surrounding special tokens.

        Some tokenizers treat beginnings specially, so the delimiter precedes later parts.
        """
        delimiter = self._delimiter.text if self._delimiter else b""
        ids: list[NDArray] = []
        for group in _groups(texts, _WHOLE_BYTES):
            shown = [
                texts[n].decode() if parts[n].begins else (delimiter + texts[n]).decode()
                for n in group
            ]
            # Only the slower call returns offsets.
            is_marked = any(parts[n].marks for n in group)
            encode = self._backend.encode_batch if is_marked else self._backend.encode_batch_fast
            with native_calls():
                encodings = encode(shown, add_special_tokens=False)
            for n, encoding in zip(group, encodings, strict=True):
                text_ids = ids_of(encoding).astype(self._dtype)
                before = "" if parts[n].begins else delimiter.decode()
                if parts[n].marks:
                    text_ids = self._with_marks(text_ids, encoding, parts[n].marks, len(before))
                ids.append(text_ids[1:] if before else text_ids)
        return ids

    def _with_marks(
        self, ids: NDArray, encoding: Encoding, marks: Sequence[int], shift: int
    ) -> NDArray:
        ends = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], np.int64))
        indices = np.searchsorted(ends, np.array(marks) + shift, side="right")
        return np.insert(ids, indices, self._mark[0])

    def _encode_units(
        self, units: UnitEncoder, parts: Sequence[Part], texts: Sequence[bytes]
    ) -> NDArray:
        """Placeholders stand for document boundaries and uncut texts."""
        uncertain = units.rule.keeps_whole(texts)
        cut = []
        if self.marks_sentences:
            cut = [_sentences(part, text) for part, text in zip(parts, texts, strict=True)]
            positions = [
                np.cumsum([len(s) for s in sentences], dtype=np.int64) for sentences, _ in cut
            ]
            uncertain |= units.rule.splits_units(texts, positions)
        whole = sorted(uncertain)
        whole_ids = self._encode_whole([parts[n] for n in whole], [texts[n] for n in whole])
        placeholders = {number: b"%c%d" % (PLACEHOLDER, number) for number in whole}
        known = {
            _BEGIN: self._prefix,
            _END: self._suffix,
            _SEAM: np.empty(0, self._dtype),
            _MARK: self._mark,
            **dict(zip(placeholders.values(), whole_ids, strict=True)),
        }
        prefix = _BEGIN + units.rule.document_prefix
        pieces = []
        for number, part in enumerate(parts):
            if number in placeholders:
                begin, end = _BEGIN if part.begins else _SEAM, _END if part.ends else _SEAM
                pieces += [begin, placeholders[number], end]
            else:
                begin, end = prefix if part.begins else b"", _END if part.ends else b""
                body = texts[number]
                if part.marks:
                    sentences, rest = cut[number]
                    body = b"".join(sentence + _MARK for sentence in sentences) + rest
                pieces += [begin, body, end]
        return units.encode(b"".join(pieces), known)


class Batcher:
    """Groups documents into batches; cuts long ones if tokens stay unchanged."""

    def __init__(
        self,
        encoder: DocumentEncoder,
        batch_characters: int = BATCH_CHARACTERS,
        part_characters: int = PART_CHARACTERS,
    ) -> None:
        self._encoder = encoder
        self._batch_characters = batch_characters
        self._part_characters = part_characters
        self._parts: list[Part] = []
        self._size = 0

    def add(self, document: str) -> Iterable[list[Part]]:
        """Adds a document; returns full batches, to be iterated."""
        if len(document) > self._part_characters or self._encoder.marks_sentences:
            return self._add_parts(document)
        self._parts.append(Part(document))
        self._size += len(document)
        return self.finish() if self._size >= self._batch_characters else ()

    def _add_parts(self, document: str) -> Iterator[list[Part]]:
        for part in self._cut(document):
            self._parts.append(part)
            self._size += len(part.text)
            if self._size >= self._batch_characters:
                yield from self.finish()

    def finish(self) -> Iterator[list[Part]]:
        """Yields the remaining batch."""
        if self._parts:
            parts, self._parts, self._size = self._parts, [], 0
            yield parts

    def _cut(self, document: str) -> Iterable[Part]:
        marks = sentence_ends(document) if self._encoder.marks_sentences else []
        if len(document) <= self._part_characters:
            return (Part(document, marks=tuple(marks)),)
        return self._parts_of(document, marks)

    def _parts_of(self, document: str, marks: Sequence[int]) -> Iterator[Part]:
        start = 0
        while (position := self._place_to_cut(document, start)) is not None:
            yield Part(document[start:position], start == 0, False, _within(marks, start, position))
            start = position
        rest = document[start:] if start else document
        yield Part(rest, start == 0, True, _within(marks, start, len(document)))

    def _place_to_cut(self, document: str, start: int) -> int | None:
        for lowest in range(start, len(document), self._part_characters):
            end = lowest + self._part_characters
            if end >= len(document):
                return None
            for whitespace in " \n":
                position = document.rfind(whitespace, lowest + 1, end)
                for _ in range(_CUT_ATTEMPTS):
                    if position < 0:
                        break
                    if self._encoder.can_cut(document, position):
                        return position
                    position = document.rfind(whitespace, lowest + 1, position)
        return None


def _within(marks: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Returns the marks in (start, end], relative to `start`."""
    inside = marks[bisect_right(marks, start) : bisect_right(marks, end)]
    return tuple(mark - start for mark in inside)


def _sentences(part: Part, text: bytes) -> tuple[list[bytes], bytes]:
    if not part.marks:
        return [], text
    bounds = [0, *part.marks]
    texts = [part.text[start:end] for start, end in pairwise(bounds)]
    rest = part.text[bounds[-1] :]
    return [text.encode("utf-8", "replace") for text in texts], rest.encode("utf-8", "replace")


def _groups(texts: Sequence[bytes], size: int) -> Iterator[range]:
    start, total = 0, 0
    for number, text in enumerate(texts, start=1):
        total += len(text)
        if total >= size or number == len(texts):
            yield range(start, number)
            start, total = number, 0


def _without_truncation(backend: Tokenizer) -> Tokenizer:
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
