"""Interface of the objectives, independent of tokenizers, shards and backends."""

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
    """The user's settings; each objective reads those it needs.

    Attributes:
        max_seq_length: Tokens that the model, or its encoder, reads.
        mlm_probability: None: 0.15, or 0.3 for `denoising`.
        intra_document_masking: Tokens attend only to their own document.
        line_by_line: Each line is a padded sequence.
        mean_noise_span_length: In tokens.
        poisson_lambda: Mean span length before 0 is left out.
        permute_sentence_ratio: Share of a document's sentences.
    """

    max_seq_length: int
    mlm_probability: float | None = None
    whole_word_mask: bool = False
    intra_document_masking: bool = False
    line_by_line: bool = False
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH
    poisson_lambda: float = 3.0
    permute_sentence_ratio: float = 1.0

    @property
    def separates_documents(self) -> bool:
        """Whether documents share sequences and are kept apart."""
        return self.intra_document_masking and not self.line_by_line


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The facts about a tokenizer that objectives need.

    Attributes:
        special_ids: Tokens that are never masked.
        pad_id: Also marks sentence ends and starts T5's decoder.
        sentinel_ids: `<extra_id_0>`, `<extra_id_1>` and so on.
        word_starts: bool (size,).
        undecided: Candidates for ids that are None because several tokens fit.
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
        """Returns the id of a special token.

        Raises:
            ConfigError: The tokenizer has no such token.
        """
        number: int | None = getattr(self, name)
        if number is None:
            raise ConfigError(
                "The tokenizer lacks a special token that the objective "
                f"⟬objective:{objective}⟭ needs",
                expected=f"a {_TOKEN_NAMES[name]}",
                received=describe_undecided(self.undecided.get(name, ())),
                fix=f"{advice_for(name.replace('_id', '_token'))}, train a tokenizer here, or "
                "choose another one",
                field="tokenizer",
            )
        return number


def describe_undecided(names: Sequence[str]) -> str:
    """Describes a special token's candidates, for errors."""
    return f"{' and '.join(names)}, without a declaration of which one to use" if names else "none"


def advice_for(entry: str) -> str:
    """Explains, for errors, how to declare a special token."""
    example = f'{{"{entry}": "…"}}'
    return f"declare the token in a tokenizer_config.json next to tokenizer.json: {example}"


class Objective(Protocol):
    """Turns token sequences into batches.

    Predictions are at `masked_positions` if given, else at each token of `decoder_input_ids` or,
    without a decoder, `input_ids`.
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
            rows: int32 (B, row_length).
            step: Constant for evaluation, to keep its masks. A range: `rows` stacks equally large
                batches.
            first_row: Position of `rows[0]` in the global batch.

        Returns:
            Model inputs, labels int32 (B, K), label_weights float32 (B, K).

        Raises:
            ShardError: A wrong length, or an id outside the vocabulary.
        """
