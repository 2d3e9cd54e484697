"""Causal language modelling: predicts each token from the tokens before it.

Shards for masked language modelling work too. A sequence of L tokens gives L - 1 predictions; a
last slot of weight 0 keeps the shape. The loss equals that of the Flax example. Padding comes last,
so causal attention needs no attention mask for it.

Source:
    https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/run_clm_flax.py
    (group_texts, loss_fn)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.sequences import check_sequences, trailing_padding


@dataclass(frozen=True)
class CausalLanguageModel:
    """The objective of GPT-2.

    Attributes:
        row_length: Tokens per sequence, L.
        pad_id: If it is also the end-of-text token, the end of a padded sequence is not predicted.
    """

    name: ClassVar[str] = "clm"

    row_length: int
    vocab_size: int
    pad_id: int | None = None

    @classmethod
    def stored_sequence_length(cls, settings: ObjectiveSettings) -> int:
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> CausalLanguageModel:
        """Creates the objective for a tokenizer; no special token is needed."""
        return cls(settings.max_seq_length, vocabulary.size, vocabulary.pad_id)

    @property
    def predictions_per_sequence(self) -> int:
        """Prediction slots per sequence; the last has weight 0."""
        return self.row_length

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Builds a batch of next-token predictions; nothing is random.

        Returns:
            input_ids int32 (B, L): the sequences.
            labels int32 (B, L): the next tokens; the last slot repeats the last token.
            label_weights float32 (B, L): 1; 0 in the last slot and before padding.
        """
        check_sequences(rows, self.row_length, self.vocab_size)
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
