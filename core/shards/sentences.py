"""Extracts complete sentences from shards, reading adjacent sequences together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.corpus.sentences import sentence_ends
from core.shards.read import Shards
from core.tokenizer.loading import StudioTokenizer

_PLACES = 24
_TOKENS_AT_A_PLACE = 400
_MOST_CHARACTERS = 140
_FEWEST_WORDS, _MOST_WORDS = 4, 22
_WORDS_OF_A_BEGINNING = 12
# Four words, in scripts without spaces.
_FEWEST_CHARACTERS = 6
_ENDS_WITH_A_MARK = re.compile(r"[.!?…。！？｡][\"'”’»›)\]}」』]*\Z")
_AFTER_A_MARK = re.compile(r"(?<=[.!?…]\s)\w")
_PLAIN_SHARE = 0.9


@dataclass(frozen=True)
class _Piece:
    """A stretch of one document."""

    text: str
    begins: bool
    ends: bool


def validation_sentences(shards: Shards, tokenizer: StudioTokenizer, most: int) -> list[str]:
    """Samples sentences from all over the validation split, else lines or beginnings."""
    samples = [list(pieces) for pieces in _places(shards, tokenizer)]
    for choose in (_marked, _unmarked, _beginnings):
        chosen = [list(filter(None, choose(pieces))) for pieces in samples]
        sentences = [
            some[number] for number in range(most) for some in chosen if len(some) > number
        ]
        if sentences := list(dict.fromkeys(sentences)):
            return sentences[:most]
    return []


def _marked(pieces: list[_Piece]) -> Iterator[str]:
    return (
        sentence
        for sentence in _sentences(pieces)
        if _ENDS_WITH_A_MARK.search(sentence) and _is_plain(sentence)
    )


def _unmarked(pieces: list[_Piece]) -> Iterator[str]:
    return filter(_is_plain, _sentences(pieces))


def _beginnings(pieces: list[_Piece]) -> Iterator[str]:
    for piece in pieces:
        if piece.begins:
            beginning = " ".join(piece.text.split()[:_WORDS_OF_A_BEGINNING])[:_MOST_CHARACTERS]
            if _is_plain(beginning):
                yield beginning


def _sentences(pieces: list[_Piece]) -> Iterator[str]:
    for piece in pieces:
        sentences = _split(piece.text)
        first, last = int(not piece.begins), len(sentences) - int(not piece.ends)
        yield from (" ".join(sentence.split()) for sentence in sentences[first:last])


def _split(text: str) -> list[str]:
    """Capitalises uncased text first."""
    is_uncased = text == text.lower() and text != text.upper()
    cased = _AFTER_A_MARK.sub(_capital, text) if is_uncased else text
    ends = sentence_ends(cased)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _capital(match: re.Match[str]) -> str:
    letter = match[0].upper()
    return letter if len(letter) == 1 else match[0]


def _is_plain(sentence: str) -> bool:
    words = sentence.split()
    letters = sum(
        character.isalpha() or character.isspace() or character in ".,;:!?'-。、，！？"
        for character in sentence
    )
    if not words or len(sentence) > _MOST_CHARACTERS or letters < _PLAIN_SHARE * len(sentence):
        return False
    if not (sentence[0].isalnum() or sentence[0] in "\"'“‘«„「『¿¡"):
        return False
    has_spaces = all(ord(character) < 0x2E80 or "가" <= character <= "힣" for character in sentence)
    if has_spaces:
        return _FEWEST_WORDS <= len(words) <= _MOST_WORDS
    return len(sentence) >= _FEWEST_CHARACTERS


def _places(shards: Shards, tokenizer: StudioTokenizer) -> Iterator[Iterator[_Piece]]:
    rows = shards.validation
    together = max(1, -(-_TOKENS_AT_A_PLACE // rows.row_length))
    starts = np.linspace(0, max(0, len(rows) - together), _PLACES).astype(int)
    for start in np.unique(starts):
        sampled = rows.take(np.arange(start, min(start + together, len(rows))))
        yield _pieces(sampled, tokenizer, line_by_line=shards.line_by_line)


def _pieces(
    rows: NDArray[np.int32], tokenizer: StudioTokenizer, *, line_by_line: bool
) -> Iterator[_Piece]:
    within = (tokenizer.unk_id, tokenizer.mask_id)
    between = np.setdiff1d(
        tokenizer.special_ids, [token_id for token_id in within if token_id is not None]
    )
    is_wrapped = len(rows) > 1 and bool(np.isin(rows[:, 0], between).all())
    # Unless sequences are lines, special tokens around them mark no documents.
    for stream in rows if is_wrapped else rows.reshape(1, -1):
        edges = np.flatnonzero(np.isin(stream, between))
        outer = {0, len(stream) - 1} if is_wrapped and not line_by_line else set()
        bounds = [-1, *edges.tolist(), len(stream)]
        for before, after in pairwise(bounds):
            ids = stream[before + 1 : after]
            text = tokenizer.decode(ids, skip_special=False).strip() if len(ids) else ""
            unknown = tokenizer.unk_token and tokenizer.unk_token in text
            if text and not unknown and "�" not in text:
                begins = before >= 0 and before not in outer
                yield _Piece(text, begins, after < len(stream) and after not in outer)
