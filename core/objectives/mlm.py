"""Masked language modelling: which tokens are hidden, and what stands in their place.

Every row has exactly K predictions, so shapes are static and the head runs on K positions only.
Which ones is drawn by a counter-based generator keyed by (seed, step), row by row at a fixed
offset: a batch is a pure function of its rows, the seed and the step, and any slice of a global
batch can be drawn by itself. This module knows nothing of tokenizers, shards or engines.

Whole words: words are taken in random order, each with all its tokens, until there are K. The last
word is cut where that is one too many: its first tokens are hidden, the others stay. So K is met
exactly, and one word in a row at most is hidden in part.

Padding: where rows are filled up, `mlm_probability` is of a row's own tokens, and never is padding
hidden; the slots that are left count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from core.objectives.draws import (
    Wanted,
    Word,
    draw_words,
    key_type,
    never,
    place_keys,
    places_of,
    split_words,
    words_for,
)
from core.objectives.objective import ObjectiveSettings, Vocabulary
from core.objectives.rows import check_rows, trailing_padding

# Of the chosen positions 80 % become the mask token, 10 % a random one, 10 % stay.
# Source: BERT, https://arxiv.org/abs/1810.04805, section 3.1.
_MASKED_BELOW = np.uint32(round(0.8 * 2**32))
_RANDOM_BELOW = np.uint32(round(0.9 * 2**32))

_DRAWS = 0x4D4C4D
_DEFAULT_PROBABILITY = 0.15


@dataclass(frozen=True)
class MaskedLanguageModel:
    """The objective of BERT and RoBERTa.

    Attributes:
        row_length: Tokens in a row, L.
        mlm_probability: Share of the tokens to predict, 0 to 1.
        mask_id: The mask token.
        vocab_size: Number of ids; random replacements come from all but the special ones.
        special_ids: Tokens that are never hidden and never stand in for another.
        pad_id: What fills rows up. None: rows are full, and batches have no attention mask.
        word_starts: Whether a token begins a word, bool (vocab_size,). None: tokens are hidden one
            by one.
    """

    name: ClassVar[str] = "mlm"
    families: ClassVar[tuple[str, ...]] = ("roberta", "bert", "modernbert")

    row_length: int
    mlm_probability: float
    mask_id: int
    vocab_size: int
    special_ids: NDArray[np.int32]
    pad_id: int | None = None
    word_starts: NDArray[np.bool_] | None = None

    @classmethod
    def stored_row_length(cls, settings: ObjectiveSettings) -> int:
        """Returns the tokens in a stored row: as many as the model sees."""
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> MaskedLanguageModel:
        """Makes the objective for a tokenizer.

        Raises:
            ConfigError: The tokenizer has no mask token, or lines need a padding token.
        """
        chosen = settings.mlm_probability
        return cls(
            row_length=settings.max_seq_length,
            mlm_probability=_DEFAULT_PROBABILITY if chosen is None else chosen,
            mask_id=vocabulary.require("mask_id", cls.name),
            vocab_size=vocabulary.size,
            special_ids=vocabulary.special_ids,
            pad_id=vocabulary.require("pad_id", cls.name) if settings.line_by_line else None,
            word_starts=vocabulary.word_starts if settings.whole_word_mask else None,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arrays of a batch that the model sees."""
        padded = () if self.pad_id is None else ("attention_mask",)
        return ("input_ids", *padded, "masked_positions")

    @property
    def predictions_per_row(self) -> int:
        """Predictions in each row, K."""
        return max(1, round(self.mlm_probability * self.row_length))

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> dict[str, NDArray]:
        """Hides tokens of a batch, or of a slice of one.

        Args:
            rows: Token ids, int32 (B, L).
            seed: Of the run.
            step: Of the training step; of the batch for evaluation on masks that don't change. A
                range: the rows are as many batches of equal size, one for each of these steps.
            first_row: The place of `rows[0]` in the global batch. A slice gets the same masks
                as it has in the whole.

        Returns:
            input_ids int32 (B, L): the rows with tokens hidden.
            masked_positions int32 (B, K): ascending; spare slots come last and say 0.
            labels int32 (B, K): the tokens that stood there.
            label_weights float32 (B, K): 1, and 0 for the spare slots of a row with fewer than K
                tokens to hide.
            attention_mask int32 (B, L): 1 for tokens and 0 for padding; only where there is a
                `pad_id`.

        Raises:
            ShardError: The rows have another length, or a token that isn't in the vocabulary.
        """
        check_rows(rows, self.row_length, self.vocab_size)
        wanted: list[Wanted] = [
            (self._word_type, self.row_length),
            (np.uint32, self.predictions_per_row),
        ]
        drawn = draw_words(
            len(rows), words_for(wanted), seed=seed, step=step, first_row=first_row, domain=_DRAWS
        )
        words, choices = split_words(drawn, wanted)
        positions, valid = self._pick(rows, words)
        # As if all rows were one, which numpy looks up faster.
        places = positions + np.arange(0, rows.size, self.row_length)[:, None]
        labels = rows.reshape(-1).take(places)
        input_ids = rows.copy()
        stand_ins = self._replace(labels, choices)
        if valid.all():
            input_ids.reshape(-1)[places] = stand_ins
        else:
            input_ids.reshape(-1)[places[valid]] = stand_ins[valid]
        batch = {
            "input_ids": input_ids,
            "masked_positions": positions,
            "labels": labels,
            "label_weights": valid.astype(np.float32),
        }
        if self.pad_id is not None:
            batch["attention_mask"] = (~trailing_padding(rows, self.pad_id)).astype(np.int32)
        return batch

    @cached_property
    def _maskable(self) -> NDArray[np.bool_]:
        maskable = np.ones(self.vocab_size, np.bool_)
        maskable[self.special_ids] = False
        return maskable

    @cached_property
    def _replacements(self) -> NDArray[np.int32]:
        return np.flatnonzero(self._maskable).astype(np.int32)

    @property
    def _word_type(self) -> Word:
        """What tokens are chosen by. Words of a text that have the same would be mixed up."""
        is_short = self.word_starts is None and self.row_length < 2**16
        return np.uint16 if is_short else np.uint32

    @cached_property
    def _special_runs(self) -> list[tuple[np.int32, np.uint32]]:
        """The ids that may not be hidden, as runs: where each begins and how many it has."""
        ids = np.flatnonzero(~self._maskable)
        runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
        return [(np.int32(run[0]), np.uint32(len(run))) for run in runs if len(run)]

    @cached_property
    def _word_borders(self) -> NDArray[np.bool_]:
        """Which tokens are no continuation of a word, bool (vocab_size,)."""
        assert self.word_starts is not None
        return self.word_starts | ~self._maskable

    def _pick(
        self, rows: NDArray[np.int32], words: NDArray[Any]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Returns K positions a row, uniform among the maskable, and which of them are real."""
        keys = place_keys(words if self.word_starts is None else self._by_word(rows, words))
        self._bar(keys, rows)
        count = min(self.predictions_per_row, self.row_length)
        lowest = np.partition(keys, count - 1, axis=1)[:, :count]
        if self.pad_id is not None:
            lowest.sort(axis=1)
            spare = np.arange(count) >= self._quotas(rows, self.pad_id)[:, None]
            lowest[spare] = never(key_type(self._word_type))
        positions = places_of(lowest, self.row_length).astype(np.int32)
        positions.sort(axis=1)
        valid = positions < self.row_length
        positions *= valid
        return positions, valid

    def _bar(self, keys: NDArray[Any], rows: NDArray[np.int32]) -> None:
        """Makes the keys of tokens that may not be hidden ones that are never chosen."""
        # Most tokenizers have them at the beginning, or at the end too, and to compare is ten times
        # as fast as to look each token up. Below a run's first id the difference is a large number.
        for first, count in self._special_runs:
            barred = (rows - first).view(np.uint32) < count
            np.copyto(keys, never(keys.dtype.type), where=barred)

    def _by_word(self, rows: NDArray[np.int32], words: NDArray[Any]) -> NDArray[Any]:
        """Gives each token the random word of its word's first token, (B, L)."""
        places = np.arange(self.row_length)
        heads = np.where(self._word_borders[rows], places, 0)
        return np.take_along_axis(words, np.maximum.accumulate(heads, axis=1), axis=1)

    def _quotas(self, rows: NDArray[np.int32], pad_id: int) -> NDArray[np.int64]:
        """Returns how many tokens of each row are to be hidden, int64 (B,), at most K."""
        tokens = self.row_length - trailing_padding(rows, pad_id).sum(axis=1)
        wanted = np.rint(self.mlm_probability * tokens).astype(np.int64)
        return np.clip(wanted, 1, self.predictions_per_row)

    def _replace(self, labels: NDArray[np.int32], words: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Returns what stands in for each label: the mask token, a random token, or itself."""
        stand_ins = np.full(labels.shape, self.mask_id, np.int32)
        kept = np.flatnonzero(words >= _MASKED_BELOW)
        left = words.reshape(-1)[kept] - _MASKED_BELOW
        tokens = labels.reshape(-1)[kept]
        is_random = np.flatnonzero(left < _RANDOM_BELOW - _MASKED_BELOW)
        count = np.uint64(len(self._replacements))
        index = left[is_random] * count // np.uint64(_RANDOM_BELOW - _MASKED_BELOW)
        tokens[is_random] = self._replacements[index]
        stand_ins.reshape(-1)[kept] = tokens
        return stand_ins


def frequency_baseline(
    token_counts: NDArray[np.int64], labels: NDArray[np.int32], weights: NDArray[np.float32]
) -> float:
    """Returns the cross-entropy, in nats, of guessing by how often each token occurs.

    A model that learned nothing but the counts reaches this; below it, it uses the context.

    Args:
        token_counts: Occurrences of each id in the training shards, (vocab_size,).
        labels: The hidden tokens, of any shape.
        weights: What each counts, of the same shape.
    """
    return float(-np.average(log_frequencies(token_counts)[labels], weights=weights))


def log_frequencies(token_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the logarithm of each token's share, (vocab_size,).

    Args:
        token_counts: Occurrences of each id, (vocab_size,). One is added to each, so that no token
            is impossible.
    """
    counts = token_counts.astype(np.float64) + 1.0
    return np.log(counts) - np.log(counts.sum())
