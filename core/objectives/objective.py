"""What all objectives have in common: settings and vocabulary in, batches of static shape out.

This module knows nothing of tokenizers, shards or engines.
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
    "eos_id": "token that ends a text, such as </s> or [SEP]",
    "mask_id": "mask token, such as <mask> or [MASK]",
}


@dataclass(frozen=True)
class ObjectiveSettings:
    """What a person decides about an objective. Each objective reads what concerns it.

    Attributes:
        max_seq_length: Tokens that the model (of two halves, the encoder) sees of a row.
        mlm_probability: Share of the tokens to hide. None: as published, 0.15 for `mlm` and
            `span_corruption`, 0.3 for `denoising`.
        whole_word_mask: Hide words and not tokens (`mlm`).
        line_by_line: Each line is a row of its own, filled up with padding (`mlm`).
        mean_noise_span_length: Mean tokens in a hidden span (`span_corruption`), 3 as published.
        poisson_lambda: Mean of the span lengths' distribution before 0 is left out (`denoising`).
        permute_sentence_ratio: Share of a document's sentences that change places (`denoising`).
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
    """What an objective knows of a tokenizer.

    Attributes:
        size: Number of ids.
        special_ids: Tokens that are never hidden, int32 (special,).
        pad_id: Fills rows up, marks sentence ends, begins T5's decoder.
        bos_id: Stands before a text.
        eos_id: Stands after a text.
        mask_id: Stands for what is to be predicted.
        sentinel_ids: `<extra_id_0>`, `<extra_id_1>` and so on, int32 (sentinels,).
        word_starts: Whether a token begins a word, bool (size,).
        undecided: Of ids that are None because several tokens have a usual name for them, these
            names: `{"eos_id": ("<eos>", "<|endoftext|>")}`.
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
        """Returns the id of a token that an objective can't do without.

        Args:
            name: `pad_id`, `eos_id` or `mask_id`.
            objective: Who needs it.

        Raises:
            ConfigError: The tokenizer has none.
        """
        number: int | None = getattr(self, name)
        if number is None:
            raise ConfigError(
                f"The tokenizer doesn't fit the objective {objective}",
                expected=f"a {_TOKEN_NAMES[name]}",
                received=describe_undecided(self.undecided.get(name, ())),
                fix=f"{advice_for(name.replace('_id', '_token'))}, train a tokenizer here, or name "
                "another one",
                field="tokenizer",
            )
        return number


def describe_undecided(names: Sequence[str]) -> str:
    """Says which tokens might play a part; none: that there is none."""
    return f"{' and '.join(names)}, and no file that says which" if names else "none"


def advice_for(entry: str) -> str:
    """Says how a token is given its part, such as `eos_token`."""
    example = f'{{"{entry}": "…"}}'
    return f"say which token it is in a tokenizer_config.json beside tokenizer.json: {example}"


class Objective(Protocol):
    """What makes rows of tokens into something to learn from.

    The model sees the arrays in `input_names`. The loss sees `labels` and `label_weights`, both
    (B, K). The model's K predictions of a row are those at `masked_positions` where there are such,
    else all that it makes: one per token of `decoder_input_ids`, or of `input_ids` where it has no
    decoder.
    """

    @property
    def name(self) -> str:
        """What it is called in configs."""

    @property
    def families(self) -> tuple[str, ...]:
        """The model families that it fits, as transformers calls their `model_type`."""

    @property
    def row_length(self) -> int:
        """Tokens in a stored row."""

    @property
    def predictions_per_row(self) -> int:
        """Slots for predictions in each row, K."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arrays of a batch that the model sees."""

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Makes a batch, or a slice of one: a pure function of its arguments.

        Args:
            rows: Token ids, int32 (B, row_length).
            seed: Of the run.
            step: Of the training step; fixed for evaluation on masks that don't change. A range:
                `rows` are as many batches, or slices, of equal size, one for each of these steps.
                Small batches are made faster so, and are the same.
            first_row: The place of `rows[0]` in the global batch. A slice gets what it has in the
                whole.

        Returns:
            The arrays in `input_names`; labels int32 (B, K); label_weights float32 (B, K), 0 where
            there is nothing to predict.

        Raises:
            ShardError: The rows have another length, or a token that isn't in the vocabulary.
        """
