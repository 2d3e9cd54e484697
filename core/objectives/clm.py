"""Causal language modelling: each token is predicted from those before it.

Rows are blocks of the stream of documents, as long as what the model sees, so shards for masked
language modelling serve as well. A row of L tokens gives L - 1 predictions; the last slot is there
for the shapes' sake and counts nothing. Nothing is drawn: seed and step don't matter.

A loss over `logits[:, :-1]` against `labels = input_ids[:, 1:]`, as the Flax example computes it,
is the loss over these arrays. Padding after the last token needs no attention mask: no token
looks ahead.

Source: https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/run_clm_flax.py
    (group_texts, loss_fn)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.rows import check_rows, trailing_padding


@dataclass(frozen=True)
class CausalLanguageModel:
    """The objective of GPT-2.

    Attributes:
        row_length: Tokens in a row, L.
        vocab_size: Number of ids.
        pad_id: What fills rows up, if anything does. Where it is also what ends a text, the end of
            a row that is filled up isn't predicted.
    """

    name: ClassVar[str] = "clm"
    families: ClassVar[tuple[str, ...]] = ("gpt2",)

    row_length: int
    vocab_size: int
    pad_id: int | None = None

    @classmethod
    def stored_row_length(cls, settings: ObjectiveSettings) -> int:
        """Returns the tokens in a stored row: as many as the model sees."""
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> CausalLanguageModel:
        """Makes the objective for a tokenizer; it needs no special token."""
        return cls(settings.max_seq_length, vocabulary.size, vocabulary.pad_id)

    @property
    def predictions_per_row(self) -> int:
        """Slots for predictions in each row, of which the last counts nothing."""
        return self.row_length

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arrays of a batch that the model sees."""
        return ("input_ids",)

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Shifts the labels of a batch.

        Args:
            rows: Token ids, int32 (B, L).
            seed: Not used, as nothing is drawn.
            step: Not used.
            first_row: Not used.

        Returns:
            input_ids int32 (B, L): the rows.
            labels int32 (B, L): the token after each; the last repeats the row's last token.
            label_weights float32 (B, L): 1, and 0 in the last slot and where padding comes next.

        Raises:
            ShardError: The rows have another length, or a token that isn't in the vocabulary.
        """
        check_rows(rows, self.row_length, self.vocab_size)
        labels = np.concatenate((rows[:, 1:], rows[:, -1:]), axis=1)
        counts = np.ones(rows.shape, np.bool_)
        counts[:, -1] = False
        if self.pad_id is not None:
            counts[:, :-1] &= ~trailing_padding(rows, self.pad_id)[:, 1:]
        return {
            "input_ids": rows.copy(),
            "labels": labels,
            "label_weights": counts.astype(np.float32),
        }
