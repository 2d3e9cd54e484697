"""Masked language modelling: chooses the tokens to predict and their replacements.

Each sequence has K predictions; spare slots have weight 0. Whole-word masking masks at most one
word per sequence in part.
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
    draw_random_bits,
    key_type,
    never,
    num_uint64_for,
    position_keys,
    positions_of_keys,
    split_random_bits,
)
from core.objectives.objective import ObjectiveSettings, Vocabulary
from core.objectives.sequences import check_sequences, document_starts, trailing_padding

# 80 % become the mask token, 10 % random tokens: https://arxiv.org/abs/1810.04805, section 3.1.
_MASKED_BELOW = np.uint32(round(0.8 * 2**32))
_RANDOM_BELOW = np.uint32(round(0.9 * 2**32))

_DRAWS = 0x4D4C4D
_DEFAULT_PROBABILITY = 0.15


@dataclass(frozen=True)
class MaskedLanguageModel:
    """The objective of BERT and RoBERTa.

    Attributes:
        row_length: Tokens per sequence, L.
        mlm_probability: Share of the tokens, without padding.
        pad_id: None: sequences are full, without attention mask.
        word_starts: bool (vocab_size,). None: mask single tokens.
        document_ends: The token that ends each document; tokens attend only to their own document.
            None: to the whole sequence.
    """

    name: ClassVar[str] = "mlm"

    row_length: int
    mlm_probability: float
    mask_id: int
    vocab_size: int
    special_ids: NDArray[np.int32]
    pad_id: int | None = None
    word_starts: NDArray[np.bool_] | None = None
    document_ends: int | None = None

    @classmethod
    def stored_sequence_length(cls, settings: ObjectiveSettings) -> int:
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> MaskedLanguageModel:
        """Creates the objective for a tokenizer."""
        chosen = settings.mlm_probability
        return cls(
            row_length=settings.max_seq_length,
            mlm_probability=_DEFAULT_PROBABILITY if chosen is None else chosen,
            mask_id=vocabulary.require("mask_id", cls.name),
            vocab_size=vocabulary.size,
            special_ids=vocabulary.special_ids,
            pad_id=vocabulary.require("pad_id", cls.name) if settings.line_by_line else None,
            word_starts=vocabulary.word_starts if settings.whole_word_mask else None,
            document_ends=vocabulary.require("eos_id", cls.name)
            if settings.separates_documents
            else None,
        )

    @property
    def predictions_per_sequence(self) -> int:
        """Predictions per sequence, K."""
        return max(1, round(self.mlm_probability * self.row_length))

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> dict[str, NDArray]:
        """Masks tokens of a batch; see `Objective.batch`.

        `masked_positions` int32 (B, K) are ascending; spare slots come last and are 0.
        `text_starts` int32 (B, L) are where each token's document begins in the sequence.
        """
        check_sequences(rows, self.row_length, self.vocab_size)
        wanted: list[Wanted] = [
            (self._word_type, self.row_length),
            (np.uint32, self.predictions_per_sequence),
        ]
        drawn = draw_random_bits(
            len(rows),
            num_uint64_for(wanted),
            seed=seed,
            step=step,
            first_row=first_row,
            domain=_DRAWS,
        )
        words, choices = split_random_bits(drawn, wanted)
        positions, valid = self._pick(rows, words)
        # NumPy gathers faster from one dimension.
        flat_positions = positions + np.arange(0, rows.size, self.row_length)[:, None]
        labels = rows.reshape(-1).take(flat_positions)
        input_ids = rows.copy()
        stand_ins = self._replace(labels, choices)
        if valid.all():
            input_ids.reshape(-1)[flat_positions] = stand_ins
        else:
            input_ids.reshape(-1)[flat_positions[valid]] = stand_ins[valid]
        batch = {
            "input_ids": input_ids,
            "masked_positions": positions,
            "labels": labels,
            "label_weights": valid.astype(np.float32),
        }
        if self.pad_id is not None:
            batch["attention_mask"] = (~trailing_padding(rows, self.pad_id)).astype(np.int32)
        if self.document_ends is not None:
            batch["text_starts"] = document_starts(rows, self.document_ends)
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
        """dtype of the random words; 16 bits would tie too often between words of a text."""
        is_short = self.word_starts is None and self.row_length < 2**16
        return np.uint16 if is_short else np.uint32

    @cached_property
    def _special_runs(self) -> list[tuple[np.int32, np.uint32]]:
        """First id and length of each run."""
        ids = np.flatnonzero(~self._maskable)
        runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
        return [(np.int32(run[0]), np.uint32(len(run))) for run in runs if len(run)]

    @cached_property
    def _word_borders(self) -> NDArray[np.bool_]:
        assert self.word_starts is not None
        return self.word_starts | ~self._maskable

    def _pick(
        self, rows: NDArray[np.int32], words: NDArray[Any]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Chooses K positions per sequence; marks valid ones."""
        keys = position_keys(words if self.word_starts is None else self._by_word(rows, words))
        self._bar(keys, rows)
        count = min(self.predictions_per_sequence, self.row_length)
        lowest = np.partition(keys, count - 1, axis=1)[:, :count]
        if self.pad_id is not None:
            lowest.sort(axis=1)
            spare = np.arange(count) >= self._quotas(rows, self.pad_id)[:, None]
            lowest[spare] = never(key_type(self._word_type))
        positions = positions_of_keys(lowest, self.row_length).astype(np.int32)
        positions.sort(axis=1)
        valid = positions < self.row_length
        positions *= valid
        return positions, valid

    def _bar(self, keys: NDArray[Any], rows: NDArray[np.int32]) -> None:
        # Ten times as fast as a lookup per token. Below a run the unsigned difference wraps.
        for first, count in self._special_runs:
            barred = (rows - first).view(np.uint32) < count
            np.copyto(keys, never(keys.dtype.type), where=barred)

    def _by_word(self, rows: NDArray[np.int32], words: NDArray[Any]) -> NDArray[Any]:
        columns = np.arange(self.row_length)
        heads = np.where(self._word_borders[rows], columns, 0)
        return np.take_along_axis(words, np.maximum.accumulate(heads, axis=1), axis=1)

    def _quotas(self, rows: NDArray[np.int32], pad_id: int) -> NDArray[np.int64]:
        tokens = self.row_length - trailing_padding(rows, pad_id).sum(axis=1)
        wanted = np.rint(self.mlm_probability * tokens).astype(np.int64)
        return np.clip(wanted, 1, self.predictions_per_sequence)

    def _replace(self, labels: NDArray[np.int32], words: NDArray[np.uint32]) -> NDArray[np.int32]:
        stand_ins = np.full(labels.shape, self.mask_id, np.int32)
        replaced = np.flatnonzero(words >= _MASKED_BELOW)
        left = words.reshape(-1)[replaced] - _MASKED_BELOW
        tokens = labels.reshape(-1)[replaced]
        is_random = np.flatnonzero(left < _RANDOM_BELOW - _MASKED_BELOW)
        count = np.uint64(len(self._replacements))
        index = left[is_random] * count // np.uint64(_RANDOM_BELOW - _MASKED_BELOW)
        tokens[is_random] = self._replacements[index]
        stand_ins.reshape(-1)[replaced] = tokens
        return stand_ins


def unigram_baseline(
    token_counts: NDArray[np.int64], labels: NDArray[np.int32], weights: NDArray[np.float32]
) -> float:
    """Computes the cross-entropy, in nats, of predicting by token counts."""
    return float(-np.average(log_frequencies(token_counts)[labels], weights=weights))


def log_frequencies(token_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Computes log frequencies with add-one smoothing."""
    counts = token_counts.astype(np.float64) + 1.0
    return np.log(counts) - np.log(counts.sum())
