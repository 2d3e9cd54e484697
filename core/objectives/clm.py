"""Causal language modelling, as in transformers' run_clm_flax.py.

Padding comes last, so causal attention needs no mask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.sequences import check_sequences, document_starts, trailing_padding


@dataclass(frozen=True)
class CausalLanguageModel:
    """The objective of GPT-2.

    If `pad_id` also ends texts, the end of a padded sequence is not predicted.
    """

    name: ClassVar[str] = "clm"

    row_length: int
    vocab_size: int
    pad_id: int | None = None
    document_ends: int | None = None

    @classmethod
    def stored_sequence_length(cls, settings: ObjectiveSettings) -> int:
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> CausalLanguageModel:
        """Creates the objective for a tokenizer."""
        ends = vocabulary.require("eos_id", cls.name) if settings.separates_documents else None
        return cls(settings.max_seq_length, vocabulary.size, vocabulary.pad_id, ends)

    @property
    def predictions_per_sequence(self) -> int:
        return self.row_length

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Builds a batch of next-token predictions; nothing is random.

        `text_starts` int32 (B, L) are where each token's document begins in the sequence.
        """
        check_sequences(rows, self.row_length, self.vocab_size)
        labels = np.concatenate((rows[:, 1:], rows[:, -1:]), axis=1)
        counts = np.ones(rows.shape, np.bool_)
        counts[:, -1] = False
        if self.pad_id is not None:
            counts[:, :-1] &= ~trailing_padding(rows, self.pad_id)[:, 1:]
        batch = {
            "input_ids": rows.copy(),
            "labels": labels,
            "label_weights": counts.astype(np.float32),
        }
        if self.document_ends is not None:
            batch["text_starts"] = document_starts(rows, self.document_ends)
        return batch
