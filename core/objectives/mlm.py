"""Masked language modelling: which tokens are hidden, and what stands in their place.

Every row has exactly K predictions, so shapes are static and the head runs on K positions only.
Which ones is drawn by a counter-based generator keyed by (seed, step), row by row at a fixed
offset: a batch is a pure function of its rows, the seed and the step, and any slice of a global
batch can be drawn by itself. This module knows nothing of tokenizers, shards or engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from core.errors import ShardError

# Of the chosen positions 80 % become the mask token, 10 % a random one, 10 % stay.
# Source: BERT, https://arxiv.org/abs/1810.04805, section 3.1.
_MASKED_BELOW = round(0.8 * 2**32)
_RANDOM_BELOW = round(0.9 * 2**32)

# Philox's counter is 256 bits. Its highest word keeps these draws apart from others that use the
# same key, and one increment yields four words of 64 bits.
_PHILOX_DOMAIN = 0x4D4C4D
_WORDS_PER_COUNT = 4
_POSITION_BITS = np.uint64(20)
_NOT_MASKABLE = np.uint64(2**64 - 1)
_LOW_32_BITS = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class MaskedLanguageModel:
    """The objective of BERT and RoBERTa.

    Attributes:
        row_length: Tokens in a row, L.
        mlm_probability: Share of the tokens to predict, 0 to 1.
        mask_id: The mask token.
        vocab_size: Number of ids; random replacements come from all but the special ones.
        special_ids: Tokens that are never hidden and never stand in for another.
    """

    row_length: int
    mlm_probability: float
    mask_id: int
    vocab_size: int
    special_ids: NDArray[np.int32]

    @property
    def predictions_per_row(self) -> int:
        """Predictions in each row, K."""
        return max(1, round(self.mlm_probability * self.row_length))

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int, *, first_row: int = 0
    ) -> dict[str, NDArray]:
        """Hides tokens of a batch, or of a slice of one.

        Args:
            rows: Token ids, int32 (B, L).
            seed: Of the run.
            step: Of the training step; of the batch for evaluation on masks that don't change.
            first_row: The place of `rows[0]` in the global batch. A slice gets the same masks
                as it has in the whole.

        Returns:
            input_ids int32 (B, L): the rows with tokens hidden.
            masked_positions int32 (B, K): ascending; spare slots come last and say 0.
            labels int32 (B, K): the tokens that stood there.
            label_weights float32 (B, K): 1, and 0 for the spare slots of a row with fewer than K
                tokens that can be hidden.

        Raises:
            ShardError: A token id isn't in the vocabulary.
        """
        self._check(rows)
        words = self._draw(len(rows), seed, step, first_row)
        positions, valid = self._pick(rows, words[:, : self.row_length])
        labels = np.take_along_axis(rows, positions, axis=1)
        choices = words[:, self.row_length : self.row_length + self.predictions_per_row]
        input_ids = rows.copy()
        hidden = np.where(valid)
        input_ids[hidden[0], positions[hidden]] = self._replace(labels, choices)[hidden]
        return {
            "input_ids": input_ids,
            "masked_positions": positions,
            "labels": labels,
            "label_weights": valid.astype(np.float32),
        }

    @cached_property
    def _maskable(self) -> NDArray[np.bool_]:
        maskable = np.ones(self.vocab_size, np.bool_)
        maskable[self.special_ids] = False
        return maskable

    @cached_property
    def _replacements(self) -> NDArray[np.int32]:
        return np.flatnonzero(self._maskable).astype(np.int32)

    def _check(self, rows: NDArray[np.int32]) -> None:
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < self.vocab_size:
            raise ShardError(
                "A row holds a token that the vocabulary doesn't have",
                expected=f"ids from 0 to {self.vocab_size - 1}",
                received=f"ids from {rows.min()} to {rows.max()}",
                fix="build the shards again with this tokenizer",
            )

    def _draw(self, rows: int, seed: int, step: int, first_row: int) -> NDArray[np.uint64]:
        """Returns random words, uint64 (B, at least L + K), the same for a row in any slice."""
        counts = -(-(self.row_length + self.predictions_per_row) // _WORDS_PER_COUNT)
        generator = np.random.Philox(
            key=np.array([seed, step], np.uint64),
            counter=np.array([first_row * counts, 0, 0, _PHILOX_DOMAIN], np.uint64),
        )
        words = counts * _WORDS_PER_COUNT
        return generator.random_raw(rows * words).reshape(rows, words)

    def _pick(
        self, rows: NDArray[np.int32], words: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Returns K positions a row, uniform among the maskable, and which of them are real."""
        places = np.arange(self.row_length, dtype=np.uint64)
        keys = (words >> _POSITION_BITS << _POSITION_BITS) | places
        keys[~self._maskable[rows]] = _NOT_MASKABLE
        count = min(self.predictions_per_row, self.row_length)
        lowest = np.partition(keys, count - 1, axis=1)[:, :count]
        spare = lowest == _NOT_MASKABLE
        low_bits = (np.uint64(1) << _POSITION_BITS) - np.uint64(1)
        positions = np.where(spare, self.row_length, lowest & low_bits).astype(np.int32)
        positions.sort(axis=1)
        valid = positions < self.row_length
        return np.where(valid, positions, 0).astype(np.int32), valid

    def _replace(self, labels: NDArray[np.int32], words: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Returns what stands in for each label: the mask token, a random token, or itself."""
        choice = words >> np.uint64(32)
        index = ((words & _LOW_32_BITS) * np.uint64(len(self._replacements))) >> np.uint64(32)
        random = self._replacements[index]
        kept_or_random = np.where(choice < _RANDOM_BELOW, random, labels)
        return np.where(choice < _MASKED_BELOW, np.int32(self.mask_id), kept_or_random)


def frequency_baseline(
    token_counts: NDArray[np.int64], labels: NDArray[np.int32], weights: NDArray[np.float32]
) -> float:
    """Returns the cross-entropy, in nats, of guessing by how often each token occurs.

    A model that learned nothing but the counts reaches this; below it, it uses the context.

    Args:
        token_counts: Occurrences of each id in the training shards, (vocab_size,). One is added to
            each, so that no token is impossible.
        labels: The hidden tokens, of any shape.
        weights: What each counts, of the same shape.
    """
    counts = token_counts.astype(np.float64) + 1.0
    log_probabilities = np.log(counts) - np.log(counts.sum())
    return float(-np.average(log_probabilities[labels], weights=weights))
