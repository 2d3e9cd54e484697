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
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.objectives.draws import NEVER, draw_words, place_keys, places_of
from core.objectives.objective import ObjectiveSettings, Vocabulary
from core.objectives.rows import check_rows, trailing_padding

# Of the chosen positions 80 % become the mask token, 10 % a random one, 10 % stay.
# Source: BERT, https://arxiv.org/abs/1810.04805, section 3.1.
_MASKED_BELOW = round(0.8 * 2**32)
_RANDOM_BELOW = round(0.9 * 2**32)

_DRAWS = 0x4D4C4D
_LOW_32_BITS = np.uint64(2**32 - 1)
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
            step: Of the training step; of the batch for evaluation on masks that don't change.
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
        words = draw_words(
            len(rows), self.row_length + self.predictions_per_row,
            seed=seed, step=step, first_row=first_row, domain=_DRAWS,
        )  # fmt: skip
        positions, valid = self._pick(rows, words[:, : self.row_length])
        labels = np.take_along_axis(rows, positions, axis=1)
        choices = words[:, self.row_length : self.row_length + self.predictions_per_row]
        input_ids = rows.copy()
        hidden = np.where(valid)
        input_ids[hidden[0], positions[hidden]] = self._replace(labels, choices)[hidden]
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

    @cached_property
    def _word_borders(self) -> NDArray[np.bool_]:
        """Which tokens are no continuation of a word, bool (vocab_size,)."""
        assert self.word_starts is not None
        return self.word_starts | ~self._maskable

    def _pick(
        self, rows: NDArray[np.int32], words: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Returns K positions a row, uniform among the maskable, and which of them are real."""
        keys = place_keys(words if self.word_starts is None else self._by_word(rows, words))
        keys[~self._maskable[rows]] = NEVER
        count = min(self.predictions_per_row, self.row_length)
        lowest = np.partition(keys, count - 1, axis=1)[:, :count]
        if self.pad_id is not None:
            lowest.sort(axis=1)
            lowest[np.arange(count) >= self._quotas(rows, self.pad_id)[:, None]] = NEVER
        places = np.where(lowest == NEVER, self.row_length, places_of(lowest))
        positions = places.astype(np.int32)
        positions.sort(axis=1)
        valid = positions < self.row_length
        return np.where(valid, positions, 0).astype(np.int32), valid

    def _by_word(self, rows: NDArray[np.int32], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Gives each token the random word of its word's first token, uint64 (B, L)."""
        places = np.arange(self.row_length)
        heads = np.where(self._word_borders[rows], places, 0)
        return np.take_along_axis(words, np.maximum.accumulate(heads, axis=1), axis=1)

    def _quotas(self, rows: NDArray[np.int32], pad_id: int) -> NDArray[np.int64]:
        """Returns how many tokens of each row are to be hidden, int64 (B,), at most K."""
        tokens = self.row_length - trailing_padding(rows, pad_id).sum(axis=1)
        wanted = np.rint(self.mlm_probability * tokens).astype(np.int64)
        return np.clip(wanted, 1, self.predictions_per_row)

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
