"""Span corruption: spans of text are replaced by sentinels, and the target says what stood there.

From a row `A B C D E F G` with `C D` and `G` hidden come the input `A B <0> E F <1> </s>` and the
target `<0> C D <1> G </s>`: the same sentinel stands for a hidden span in the one and for the kept
part before it in the other. How many tokens are hidden, in how many spans, depends
on the row's length alone. Lengths are therefore static, and a row is made so long that the input
comes to exactly `max_seq_length`: nothing is padded. Documents run through the rows with the end
token after each and nothing before; this module adds the end token of input and target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.objectives.draws import draw_words, place_keys, places_of
from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.rows import check_rows, shift_right

_DRAWS = 0x5435
_DEFAULT_NOISE_DENSITY = 0.15


@dataclass(frozen=True)
class SpanCounts:
    """What is hidden in a row, which depends on its length alone.

    Attributes:
        tokens: In the row, R.
        noise_tokens: Hidden.
        spans: That they are in, S.
    """

    tokens: int
    noise_tokens: int
    spans: int

    @property
    def inputs_length(self) -> int:
        """Tokens that are kept, a sentinel for each span, and the end token."""
        return self.tokens - self.noise_tokens + self.spans + 1

    @property
    def targets_length(self) -> int:
        """Tokens that are hidden, a sentinel for each kept part, and the end token."""
        return self.noise_tokens + self.spans + 1


def count_spans(tokens: int, noise_density: float, mean_noise_span_length: float) -> SpanCounts:
    """Returns what is hidden in a row of some length.

    Source: Raffel et al., https://arxiv.org/abs/1910.10683, section 3.1.4;
        https://github.com/google-research/text-to-text-transfer-transformer/blob/main/t5/data/preprocessors.py
        (random_spans_helper)
    """
    noise_tokens = round(tokens * noise_density)
    return SpanCounts(tokens, noise_tokens, round(noise_tokens / mean_noise_span_length))


def compute_input_and_target_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Returns how long a row must be for its input to come to a length, and its target's length.

    Args:
        inputs_length: Tokens that the encoder is to see, the end token included.
        noise_density: Share of the row's tokens to hide, 0 to 1.
        mean_noise_span_length: Mean tokens in a span, at least 1.

    Returns:
        The longest row whose input isn't longer, and the length of its target. 512 gives
        (568, 114).

    Source: as for `count_spans`. The published function also has a special case for a density of
        exactly 0.5: there one token less makes the target as long as the input.
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
        max_seq_length: Tokens that the encoder sees, the end token included.
        vocab_size: Number of ids.
        sentinel_ids: `<extra_id_0>`, `<extra_id_1>` and so on, in this order; in T5's own
            vocabulary their ids descend.
        eos_id: Ends input and target.
        pad_id: A row of nothing else counts nothing.
        decoder_start_id: What the decoder sees first; T5's is the padding token.
        noise_density: Share of the tokens to hide.
        mean_noise_span_length: Mean tokens in a span.
    """

    name: ClassVar[str] = "span_corruption"
    families: ClassVar[tuple[str, ...]] = ("t5",)

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
                "The tokenizer has too few sentinels for rows of this length",
                expected=f"{self.counts.spans} tokens <extra_id_0>, <extra_id_1> and so on",
                received=f"{len(self.sentinel_ids)}",
                fix="set a smaller max_seq_length, or name a tokenizer with more of them",
                field="tokenizer",
            )

    @classmethod
    def stored_row_length(cls, settings: ObjectiveSettings) -> int:
        """Returns the tokens in a stored row, which is longer than what the encoder sees.

        Raises:
            ConfigError: A setting is out of range.
        """
        return _counts_for(
            settings.max_seq_length,
            _noise_density_of(settings),
            settings.mean_noise_span_length,
        ).tokens

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> SpanCorruption:
        """Makes the objective for a tokenizer.

        Raises:
            ConfigError: A setting is out of range, or the tokenizer has no end token, no padding
                token or too few sentinels.
        """
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
        """What is hidden in each row."""
        return _counts_for(self.max_seq_length, self.noise_density, self.mean_noise_span_length)

    @property
    def row_length(self) -> int:
        """Tokens in a stored row, R."""
        return self.counts.tokens

    @property
    def predictions_per_row(self) -> int:
        """Tokens in each target, T."""
        return self.counts.targets_length

    def label_counts(self, token_counts: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Returns about how often each id is to be predicted in some rows, int64 (vocab_size,).

        Args:
            token_counts: Occurrences of each id in the rows, (vocab_size,).
            rows: Their number; each target has one of each sentinel, and the end token.
        """
        found = self.counts
        labels = np.rint(token_counts * (found.noise_tokens / found.tokens)).astype(np.int64)
        labels[self.sentinel_ids[: found.spans]] += rows
        labels[self.eos_id] += rows
        return labels

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arrays of a batch that the model sees."""
        return ("input_ids", "decoder_input_ids")

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Hides spans of a batch, or of a slice of one.

        Args:
            rows: Token ids, int32 (B, R).
            seed: Of the run.
            step: Of the training step; fixed for evaluation on masks that don't change. A range:
                the rows are as many batches of equal size, one for each of these steps.
            first_row: The place of `rows[0]` in the global batch.

        Returns:
            input_ids int32 (B, max_seq_length): what is kept, a sentinel for each span, the end
                token.
            decoder_input_ids int32 (B, T): the labels one place later.
            labels int32 (B, T): what is hidden, a sentinel for each kept part, the end token.
            label_weights float32 (B, T): 1, and 0 in rows of padding only.

        Raises:
            ShardError: The rows have another length, or a token that isn't in the vocabulary.
        """
        check_rows(rows, self.row_length, self.vocab_size)
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
        """Returns which tokens are hidden, bool (B, R); all ways to hide them are equally likely.

        Kept parts and hidden spans take turns, a kept part first; none is empty.

        Source: as for `count_spans` (random_spans_noise_mask)
        """
        kept_tokens = self.counts.tokens - self.counts.noise_tokens
        words = draw_words(
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
        """Replaces each hidden run of each row by a sentinel and adds the end token, (B, length).

        Args:
            rows: Token ids, int32 (B, R).
            hidden: Which tokens go, bool (B, R); in as many runs and tokens in each row.
            length: Tokens that come out.
        """
        starts = hidden.copy()
        starts[:, 1:] &= ~hidden[:, :-1]
        numbers = np.cumsum(starts, axis=1, dtype=np.int32) - 1
        shown = np.where(starts, self.sentinel_ids[numbers], rows)
        result = np.full((len(rows), length), self.eos_id, np.int32)
        result[:, :-1] = shown[~hidden | starts].reshape(len(rows), length - 1)
        return result


def _segment_ends(words: NDArray[np.uint64], segments: int) -> NDArray[np.int64]:
    """Cuts n items into non-empty segments, each way equally likely.

    Args:
        words: Random words, uint64 (B, n).
        segments: How many, S, 1 to n.

    Returns:
        Where each segment ends, ascending, the last at n: int64 (B, S).
    """
    rows, items = words.shape
    ends = np.full((rows, segments), items, np.int64)
    if segments > 1:
        # A cut can come after any item but the last.
        keys = np.partition(place_keys(words[:, :-1]), segments - 2, axis=1)[:, : segments - 1]
        ends[:, :-1] = np.sort(places_of(keys, items - 1).astype(np.int64), axis=1) + 1
    return ends


def _noise_density_of(settings: ObjectiveSettings) -> float:
    chosen = settings.mlm_probability
    return _DEFAULT_NOISE_DENSITY if chosen is None else chosen


def _counts_for(
    max_seq_length: int, noise_density: float, mean_noise_span_length: float
) -> SpanCounts:
    """Returns what is hidden in a row whose input comes to a length.

    Raises:
        ConfigError: No row's does: too short, or spans that leave nothing out.
    """
    if not 0 < noise_density < 1 or mean_noise_span_length < 1:
        raise ConfigError(
            "Span corruption can't hide so much, or in such spans",
            expected="mlm_probability above 0 and below 1, mean_noise_span_length of at least 1",
            received=f"{noise_density} and {mean_noise_span_length}",
            fix="use the published 0.15 and 3",
            field="mlm_probability",
        )
    tokens, _ = compute_input_and_target_lengths(
        max_seq_length, noise_density, mean_noise_span_length
    )
    counts = count_spans(tokens, noise_density, mean_noise_span_length)
    possible = 1 <= counts.spans <= tokens - counts.noise_tokens
    if not possible or counts.inputs_length != max_seq_length:
        raise ConfigError(
            f"No row gives an input of {max_seq_length} tokens with a hidden span in it",
            expected="a max_seq_length of some dozens, and spans of two tokens and more",
            received=f"max_seq_length={max_seq_length}, mlm_probability={noise_density}, "
            f"mean_noise_span_length={mean_noise_span_length}",
            fix="raise max_seq_length, or use the published 0.15 and 3",
            field="max_seq_length",
        )
    return counts
