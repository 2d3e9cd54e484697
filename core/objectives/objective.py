"""Interface of the objectives: settings and vocabulary in, batches of static shape out.

This module knows nothing of tokenizers, shards or backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError

Batch = dict[str, NDArray]

MEAN_NOISE_SPAN_LENGTH = 3.0

_TOKEN_NAMES = {
    "pad_id": "padding token, such as <pad> or [PAD]",
    "eos_id": "end-of-text token, such as </s> or [SEP]",
    "mask_id": "mask token, such as <mask> or [MASK]",
}


@dataclass(frozen=True)
class ObjectiveSettings:
    """The user's settings of an objective; each objective reads those it needs.

    Attributes:
        max_seq_length: Tokens per sequence that the model (the encoder, if there are two stacks)
            reads.
        mlm_probability: Share of the tokens to mask. None: as published, 0.15 for `mlm` and
            `span_corruption`, 0.3 for `denoising`.
        whole_word_mask: Mask whole words instead of tokens (`mlm`).
        line_by_line: Each line is a padded sequence of its own (`mlm`).
        mean_noise_span_length: Mean tokens per masked span (`span_corruption`), 3 as published.
        poisson_lambda: Mean of the span lengths' Poisson distribution before 0 is left out
            (`denoising`).
        permute_sentence_ratio: Share of a document's sentences to permute (`denoising`).
    """

    max_seq_length: int
    mlm_probability: float | None = None
    whole_word_mask: bool = False
    line_by_line: bool = False
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH
    poisson_lambda: float = 3.0
    permute_sentence_ratio: float = 1.0


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The facts about a tokenizer that objectives need.

    Attributes:
        size: Number of ids.
        special_ids: Tokens that are never masked, int32 (special,).
        pad_id: Padding; also marks sentence ends and starts T5's decoder.
        bos_id: Precedes a document.
        eos_id: Follows a document.
        mask_id: Replaces masked tokens.
        sentinel_ids: `<extra_id_0>`, `<extra_id_1>` and so on, int32 (sentinels,).
        word_starts: Tokens that begin a word, bool (size,).
        undecided: Candidate tokens of each id that is None because several tokens have a usual name
            for it: `{"eos_id": ("<eos>", "<|endoftext|>")}`.
    """

    size: int
    special_ids: NDArray[np.int32]
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    mask_id: int | None = None
    sentinel_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    word_starts: NDArray[np.bool_] | None = None
    undecided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def require(self, name: str, objective: str) -> int:
        """Returns the id of a token that an objective needs (`pad_id`, `eos_id` or `mask_id`).

        Raises:
            ConfigError: The tokenizer has no such token.
        """
        number: int | None = getattr(self, name)
        if number is None:
            raise ConfigError(
                f"The tokenizer lacks a special token that the objective {objective} needs",
                expected=f"a {_TOKEN_NAMES[name]}",
                received=describe_undecided(self.undecided.get(name, ())),
                fix=f"{advice_for(name.replace('_id', '_token'))}, train a tokenizer here, or "
                "choose another one",
                field="tokenizer",
            )
        return number


def describe_undecided(names: Sequence[str]) -> str:
    """Describes the candidates for a special token, for an error."""
    return f"{' and '.join(names)}, without a declaration of which one to use" if names else "none"


def advice_for(entry: str) -> str:
    """Explains how to declare a special token, such as `eos_token`, for an error."""
    example = f'{{"{entry}": "…"}}'
    return f"declare the token in a tokenizer_config.json next to tokenizer.json: {example}"


class Objective(Protocol):
    """Turns token sequences into batches of model inputs, labels and label weights.

    The loss reads `labels` and `label_weights`, both
    (B, K). The K predictions per sequence are those at `masked_positions` if the batch has them,
    else one per token of `decoder_input_ids`, or of `input_ids` if the model has no decoder.
    """

    @property
    def name(self) -> str:
        """Name in configs."""

    @property
    def row_length(self) -> int:
        """Tokens per stored sequence."""

    @property
    def predictions_per_sequence(self) -> int:
        """Prediction slots per sequence, K."""

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Builds a batch, or a slice of one, as a pure function of the arguments.

        Args:
            rows: Token ids, int32 (B, row_length).
            seed: Seed of the run.
            step: Training step; constant for evaluation, so that its masks do not change. A range:
                `rows` stacks equally large batches or slices, one per step. The result is the same,
                and faster for small batches.
            first_row: Position of `rows[0]` in the global batch, so that a slice equals the same
                part of the full batch.

        Returns:
            The arrays that the model reads; labels int32 (B, K); label_weights float32 (B, K), 0 in
            slots without a prediction.

        Raises:
            ShardError: The length differs, or an id is outside the vocabulary.
        """
