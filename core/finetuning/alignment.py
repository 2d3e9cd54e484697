"""Aligns the words of sentences with subwords, and splits long sentences.

The words are joined by spaces, so that the pieces are those of running text; each word is labelled
at its first subword, as in https://arxiv.org/abs/1810.04805, section 5.3. A token for the space
before a word is its first subword, as for transformers' tokenizers with `is_split_into_words`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True)
class Window:
    """Consecutive words of a sentence as a sequence of tokens.

    Attributes:
        sentence: Number of the sentence.
        first: Number of the first word in its sentence.
        ids: Tokens with special tokens, int32 (L,).
        positions: Position of each word's first subword, int32 (words,).
        has_own: Whether a word has a subword of its own, bool (words,).
    """

    sentence: int
    first: int
    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    has_own: NDArray[np.bool_]


def split_sentences(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], longest: int
) -> list[Window]:
    """Encodes sentences; too long ones become several windows that contain each word once.

    Args:
        tokenizer: With truncation to `longest` tokens, for words that are longer.
    """
    encoded = tokenizer.encode_batch([" ".join(words) for words in sentences])
    return [
        window
        for number, (words, encoding) in enumerate(zip(sentences, encoded, strict=True))
        for window in _windows(tokenizer, number, 0, words, encoding)
    ]


def align(encoding: Encoding, words: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Finds the first token of each word, and whether no earlier word has the same.

    A word without a token, because the tokenizer removes it, gets the one before.
    """
    spans = [
        (place, start, stop)
        for place, ((start, stop), special) in enumerate(
            zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        )
        if not special and stop > start
    ]
    positions, has_own = [], []
    begin = at = last = 0
    last_place = -1
    for word in words:
        end, space = begin + len(word), (begin - 1, begin)
        while at < len(spans) and spans[at][2] <= begin and spans[at][1:] != space:
            last = spans[at][0]
            at += 1
        is_there = at < len(spans) and spans[at][1] < end
        place = spans[at][0] if is_there else last
        positions.append(place)
        has_own.append(is_there and place != last_place)
        last_place = place if is_there else last_place
        begin = end + 1
    return np.array(positions, np.int32), np.array(has_own, bool)


def _windows(
    tokenizer: Tokenizer, sentence: int, first: int, words: Sequence[str], encoding: Encoding
) -> Iterator[Window]:
    if not encoding.overflowing or len(words) == 1:
        positions, has_own = align(encoding, words)
        yield Window(sentence, first, np.array(encoding.ids, np.int32), positions, has_own)
        return
    middle = len(words) // 2
    for start, part in ((first, words[:middle]), (first + middle, words[middle:])):
        yield from _windows(tokenizer, sentence, start, part, tokenizer.encode(" ".join(part)))
