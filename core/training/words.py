"""Derives the words seen by a training run from the tokens seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.tokenizer.native import native_calls

if TYPE_CHECKING:
    from core.shards.read import Shards
    from core.tokenizer.loading import StudioTokenizer

_SAMPLED_ROWS = 512


@dataclass(frozen=True)
class WordRate:
    """Words of the training text per stored token, special tokens and padding included.

    Attributes:
        is_estimate: From a sample of sequences, as the shards have no count of words.
    """

    per_token: float
    is_estimate: bool = False

    def describe(self) -> str:
        origin = "estimated from a sample" if self.is_estimate else "by the counts of the shards"
        return f"{self.per_token:.4g} words per token, {origin}"


def mean_word_rate(rates: Sequence[tuple[float, WordRate]]) -> WordRate:
    """Returns the mean of several sources' rates, weighted by their shares of the tokens."""
    total = sum(share for share, _ in rates)
    mean = sum(share * rate.per_token for share, rate in rates) / total
    return WordRate(mean, any(rate.is_estimate for _, rate in rates))


def find_word_rate(shards: Shards, tokenizer: StudioTokenizer) -> WordRate:
    """Returns the words per token of the training split; words are separated by white space."""
    words, tokens = (shards.manifest.counts.get(f"train_{unit}") for unit in ("words", "tokens"))
    if type(words) is int and type(tokens) is int and min(words, tokens) > 0:
        return WordRate(words / tokens)
    return WordRate(_sample(shards, tokenizer), is_estimate=True)


def _sample(shards: Shards, tokenizer: StudioTokenizer) -> float:
    """Decodes the text between special tokens, as no space may stand there."""
    rows = shards.train.take(np.arange(min(_SAMPLED_ROWS, len(shards.train))))
    ids = rows.reshape(-1)
    special = np.isin(ids, tokenizer.special_ids)
    pieces = np.split(ids, np.flatnonzero(special))
    with native_calls():
        texts = tokenizer.backend.decode_batch(
            [piece.tolist() for piece in pieces if len(piece)], skip_special_tokens=True
        )
    return max(1, sum(len(text.split()) for text in texts)) / max(1, rows.size)


def steps_of_marks(marks: Iterable[int], words_per_step: float) -> dict[int, list[int]]:
    """Returns the numbers of words by the first step at which they have been seen."""
    steps: dict[int, list[int]] = {}
    for mark in marks:
        steps.setdefault(max(1, math.ceil(mark / words_per_step)), []).append(mark)
    return steps
