"""Span corruption (T5): replaces spans by sentinels; the target lists the masked spans.

`A B C D E F G` may give the input `A B <0> E F <1> </s>` and the target `<0> C D <1> G </s>`.
Counts depend on the length alone, for static shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.objectives.draws import draw_random_bits, position_keys, positions_of_keys
from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.sequences import check_sequences, shift_right

_DRAWS = 0x5435
_DEFAULT_NOISE_DENSITY = 0.15


@dataclass(frozen=True)
class SpanCounts:
    """Counts of tokens R, masked tokens and spans S."""

    tokens: int
    noise_tokens: int
    spans: int

    @property
    def inputs_length(self) -> int:
        """Unmasked tokens, one sentinel per span, end token."""
        return self.tokens - self.noise_tokens + self.spans + 1

    @property
    def targets_length(self) -> int:
        """Masked tokens, one sentinel per unmasked part, end token."""
        return self.noise_tokens + self.spans + 1


def count_spans(tokens: int, noise_density: float, mean_noise_span_length: float) -> SpanCounts:
    """Counts masked tokens and spans for a sequence length.

    Source: https://arxiv.org/abs/1910.10683, section 3.1.4; random_spans_helper in T5's
        t5/data/preprocessors.py
    """
    noise_tokens = round(tokens * noise_density)
    return SpanCounts(tokens, noise_tokens, round(noise_tokens / mean_noise_span_length))


def compute_input_and_target_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Computes the sequence length that gives an input length, and the target length.

    512 gives (568, 114). As published, a density of exactly 0.5 takes one token less.
    """
    tokens = inputs_length
    while (
        count_spans(tokens + 1, noise_density, mean_noise_span_length).inputs_length
        <= inputs_length
    ):
        tokens += 1
    counts = count_spans(tokens, noise_density, mean_noise_span_length)
    if noise_density == 0.5 and counts.targets_length > counts.inputs_length:
        return tokens - 1, counts.targets_length - 1
    return tokens, counts.targets_length


@dataclass(frozen=True, eq=False)
class SpanCorruption:
    """The objective of T5.

    Attributes:
        max_seq_length: Tokens that the encoder reads, end token included.
        sentinel_ids: `<extra_id_0>` and so on; T5's own ids descend.
        pad_id: A sequence of only this token has weight 0.
    """

    name: ClassVar[str] = "span_corruption"

    max_seq_length: int
    vocab_size: int
    sentinel_ids: NDArray[np.int32]
    eos_id: int
    pad_id: int
    decoder_start_id: int
    noise_density: float = _DEFAULT_NOISE_DENSITY
    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        if len(self.sentinel_ids) < self.counts.spans:
            raise ConfigError(
                "The tokenizer has too few sentinels for sequences of this length",
                expected=f"{self.counts.spans} tokens <extra_id_0>, <extra_id_1> and so on",
                received=f"{len(self.sentinel_ids)}",
                fix="lower ⟬max_seq_length⟭, or choose a tokenizer with more sentinels",
                field="tokenizer",
            )

    @classmethod
    def stored_sequence_length(cls, settings: ObjectiveSettings) -> int:
        """Returns the tokens per stored sequence, more than the encoder reads."""
        return _counts_for(
            settings.max_seq_length,
            _noise_density_of(settings),
            settings.mean_noise_span_length,
        ).tokens

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> SpanCorruption:
        """Creates the objective for a tokenizer."""
        pad_id = vocabulary.require("pad_id", cls.name)
        return cls(
            max_seq_length=settings.max_seq_length,
            vocab_size=vocabulary.size,
            sentinel_ids=vocabulary.sentinel_ids,
            eos_id=vocabulary.require("eos_id", cls.name),
            pad_id=pad_id,
            decoder_start_id=pad_id,
            noise_density=_noise_density_of(settings),
            mean_noise_span_length=settings.mean_noise_span_length,
        )

    @cached_property
    def counts(self) -> SpanCounts:
        return _counts_for(self.max_seq_length, self.noise_density, self.mean_noise_span_length)

    @property
    def row_length(self) -> int:
        """Tokens per stored sequence, R."""
        return self.counts.tokens

    @property
    def predictions_per_sequence(self) -> int:
        """Tokens per target, T."""
        return self.counts.targets_length

    def label_counts(self, token_counts: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Estimates how often each id is a label in `rows` examples."""
        counts = self.counts
        labels = np.rint(token_counts * (counts.noise_tokens / counts.tokens)).astype(np.int64)
        labels[self.sentinel_ids[: counts.spans]] += rows
        labels[self.eos_id] += rows
        return labels

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Masks spans of a batch; see `Objective.batch`.

        Inputs are (B, max_seq_length), the other arrays (B, T).
        """
        check_sequences(rows, self.row_length, self.vocab_size)
        noise = self._draw_noise(len(rows), seed, step, first_row)
        labels = self._with_sentinels(rows, ~noise, self.counts.targets_length)
        real = (rows != self.pad_id).any(axis=1)
        return {
            "input_ids": self._with_sentinels(rows, noise, self.counts.inputs_length),
            "decoder_input_ids": shift_right(labels, self.decoder_start_id),
            "labels": labels,
            "label_weights": np.repeat(real.astype(np.float32)[:, None], labels.shape[1], axis=1),
        }

    def _draw_noise(
        self, rows: int, seed: int, step: int | range, first_row: int
    ) -> NDArray[np.bool_]:
        """Draws the masked tokens, bool (B, R), uniformly among all segmentations.

        Source: random_spans_noise_mask, as for `count_spans`
        """
        kept_tokens = self.counts.tokens - self.counts.noise_tokens
        words = draw_random_bits(
            rows, self.counts.tokens,
            seed=seed, step=step, first_row=first_row, domain=_DRAWS,
        )  # fmt: skip
        kept_ends = _segment_ends(words[:, :kept_tokens], self.counts.spans)
        noise_words = words[:, kept_tokens : self.counts.tokens]
        noise_ends = _segment_ends(noise_words, self.counts.spans)
        noise_starts = np.concatenate((np.zeros_like(noise_ends[:, :1]), noise_ends[:, :-1]), 1)
        edges = np.zeros((rows, self.counts.tokens + 1), np.int8)
        np.put_along_axis(edges, kept_ends + noise_starts, 1, axis=1)
        np.put_along_axis(edges, kept_ends + noise_ends, -1, axis=1)
        return np.cumsum(edges, axis=1, dtype=np.int8)[:, :-1].astype(np.bool_)

    def _with_sentinels(
        self, rows: NDArray[np.int32], hidden: NDArray[np.bool_], length: int
    ) -> NDArray[np.int32]:
        """Replaces masked runs by sentinels and appends the end token, (B, length).

        All sequences must have equally many runs and masked tokens.
        """
        starts = hidden.copy()
        starts[:, 1:] &= ~hidden[:, :-1]
        numbers = np.cumsum(starts, axis=1, dtype=np.int32) - 1
        shown = np.where(starts, self.sentinel_ids[numbers], rows)
        result = np.full((len(rows), length), self.eos_id, np.int32)
        result[:, :-1] = shown[~hidden | starts].reshape(len(rows), length - 1)
        return result


def _segment_ends(words: NDArray[np.uint64], segments: int) -> NDArray[np.int64]:
    """Splits n items into non-empty segments, uniformly; returns ends (B, segments)."""
    rows, items = words.shape
    ends = np.full((rows, segments), items, np.int64)
    if segments > 1:
        keys = np.partition(position_keys(words[:, :-1]), segments - 2, axis=1)[:, : segments - 1]
        ends[:, :-1] = np.sort(positions_of_keys(keys, items - 1).astype(np.int64), axis=1) + 1
    return ends


def _noise_density_of(settings: ObjectiveSettings) -> float:
    chosen = settings.mlm_probability
    return _DEFAULT_NOISE_DENSITY if chosen is None else chosen


def _counts_for(
    max_seq_length: int, noise_density: float, mean_noise_span_length: float
) -> SpanCounts:
    if not 0 < noise_density < 1 or mean_noise_span_length < 1:
        raise ConfigError(
            "The masking settings are out of range for span corruption",
            expected="⟬mlm_probability⟭ above 0 and below 1, ⟬mean_noise_span_length⟭ of at "
            "least 1",
            received=f"{noise_density} and {mean_noise_span_length}",
            fix="use the published values: ⟬mlm_probability⟭ 0.15, ⟬mean_noise_span_length⟭ 3",
            field="mlm_probability",
        )
    tokens, _ = compute_input_and_target_lengths(
        max_seq_length, noise_density, mean_noise_span_length
    )
    counts = count_spans(tokens, noise_density, mean_noise_span_length)
    possible = 1 <= counts.spans <= tokens - counts.noise_tokens
    if not possible or counts.inputs_length != max_seq_length:
        raise ConfigError(
            f"No sequence gives an input of {max_seq_length} tokens with a masked span",
            expected="a ⟬max_seq_length⟭ of some dozens, and spans of two or more tokens",
            received=f"⟬max_seq_length={max_seq_length}⟭, ⟬mlm_probability={noise_density}⟭, "
            f"⟬mean_noise_span_length={mean_noise_span_length}⟭",
            fix="raise ⟬max_seq_length⟭, or use the published ⟬mlm_probability⟭ 0.15 and "
            "⟬mean_noise_span_length⟭ 3",
            field="max_seq_length",
        )
    return counts
