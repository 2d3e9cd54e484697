"""Denoising (BART): permutes sentences, masks spans; the target is the original.

In stored sequences a padding token marks each sentence end:
`<s> The river runs. <pad> It is cold. <pad> </s>`. Sentences stay within their document. A span
becomes one mask token, and another one after special tokens. At least one token stays between two
spans; in the Flax example spans may overlap.

Source: https://arxiv.org/abs/1910.13461, section 2.2; FlaxDataCollatorForBartDenoisingLM in
    transformers 4.57
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.objectives.draws import draw_random_bits, never, position_keys, positions_of_keys
from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.sequences import check_sequences, pack_left, shift_right

_SENTENCE_DRAWS = 0x42415254
_LENGTH_DRAWS = _SENTENCE_DRAWS + 1
_PLACE_DRAWS = _SENTENCE_DRAWS + 2

_DEFAULT_MASK_RATIO = 0.3
# Above this, some sequences have no room for a token between spans.
_LARGEST_MASK_RATIO = 0.5
_LARGEST_POISSON_LAMBDA = 50.0
# A sentence's key is its document number above this many random bits.
_RANDOM_BITS = np.uint64(40)


@dataclass(frozen=True, eq=False)
class Denoising:
    """The objective of BART.

    Attributes:
        row_length: Tokens per stored sequence, L, sentence marks included.
        mask_ratio: Above 0, at most 0.5.
        poisson_lambda: Mean before 0 is left out.
        permute_sentence_ratio: Share of a document's sentences, rounded up.
    """

    name: ClassVar[str] = "denoising"

    row_length: int
    vocab_size: int
    special_ids: NDArray[np.int32]
    mask_id: int
    pad_id: int
    eos_id: int
    decoder_start_id: int
    bos_id: int | None = None
    mask_ratio: float = _DEFAULT_MASK_RATIO
    poisson_lambda: float = 3.0
    permute_sentence_ratio: float = 1.0

    def __post_init__(self) -> None:
        for field, value, fits, expected in (
            ("mlm_probability", self.mask_ratio, 0 < self.mask_ratio <= _LARGEST_MASK_RATIO,
             f"above 0 and at most {_LARGEST_MASK_RATIO}"),
            ("poisson_lambda", self.poisson_lambda,
             0 < self.poisson_lambda <= _LARGEST_POISSON_LAMBDA,
             f"above 0 and at most {_LARGEST_POISSON_LAMBDA:g}"),
            ("permute_sentence_ratio", self.permute_sentence_ratio,
             0 <= self.permute_sentence_ratio <= 1, "0 to 1"),
        ):  # fmt: skip
            if not fits:
                raise ConfigError(
                    f"⟬{field}⟭ is out of range for denoising",
                    expected=expected,
                    received=f"{value}",
                    fix="use the published values: ⟬mlm_probability⟭ 0.3, ⟬poisson_lambda⟭ 3, "
                    "⟬permute_sentence_ratio⟭ 1",
                    field=field,
                )

    @classmethod
    def stored_sequence_length(cls, settings: ObjectiveSettings) -> int:
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> Denoising:
        """Creates the objective for a tokenizer."""
        chosen = settings.mlm_probability
        eos_id = vocabulary.require("eos_id", cls.name)
        return cls(
            row_length=settings.max_seq_length,
            vocab_size=vocabulary.size,
            special_ids=vocabulary.special_ids,
            mask_id=vocabulary.require("mask_id", cls.name),
            pad_id=vocabulary.require("pad_id", cls.name),
            eos_id=eos_id,
            decoder_start_id=eos_id,
            bos_id=vocabulary.bos_id,
            mask_ratio=_DEFAULT_MASK_RATIO if chosen is None else chosen,
            poisson_lambda=settings.poisson_lambda,
            permute_sentence_ratio=settings.permute_sentence_ratio,
        )

    @property
    def predictions_per_sequence(self) -> int:
        return self.row_length

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Corrupts a batch; see `Objective.batch`. All arrays are (B, L)."""
        check_sequences(rows, self.row_length, self.vocab_size)
        size, length = rows.shape
        sentence_words = self._draw(size, length, seed, step, first_row, _SENTENCE_DRAWS)
        length_words = self._draw(size, self._most_masked, seed, step, first_row, _LENGTH_DRAWS)
        place_words = self._draw(size, length + 1, seed, step, first_row, _PLACE_DRAWS)
        shuffled = self._permute_sentences(rows, sentence_words)
        input_ids, attended = self._infill(shuffled, length_words, place_words)
        labels, real = pack_left(rows, rows != self.pad_id, self.pad_id)
        return {
            "input_ids": input_ids,
            "attention_mask": attended.astype(np.int32),
            "decoder_input_ids": shift_right(labels, self.decoder_start_id),
            "labels": labels,
            "label_weights": real.astype(np.float32),
        }

    @cached_property
    def _most_masked(self) -> int:
        return math.ceil(self.row_length * self.mask_ratio)

    @cached_property
    def _maskable(self) -> NDArray[np.bool_]:
        maskable = np.ones(self.vocab_size, np.bool_)
        maskable[self.special_ids] = False
        maskable[self.pad_id] = False
        return maskable

    @cached_property
    def _borders(self) -> NDArray[np.bool_]:
        borders = np.zeros(self.vocab_size, np.bool_)
        borders[[number for number in (self.bos_id, self.eos_id) if number is not None]] = True
        return borders

    @cached_property
    def _length_probabilities(self) -> NDArray[np.float64]:
        """Cumulative probabilities of span lengths from 1."""
        mean = self.poisson_lambda
        counts = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean)) + 20)
        logarithms = counts * math.log(mean) - mean - np.cumsum(np.log(counts))
        return np.cumsum(np.exp(logarithms)) / -math.expm1(-mean)

    def _draw(
        self, rows: int, words: int, seed: int, step: int | range, first_row: int, domain: int
    ) -> NDArray[np.uint64]:
        drawn = draw_random_bits(
            rows, words, seed=seed, step=step, first_row=first_row, domain=domain
        )
        return drawn[:, :words]

    def _permute_sentences(
        self, rows: NDArray[np.int32], words: NDArray[np.uint64]
    ) -> NDArray[np.int32]:
        is_mark, is_border = rows == self.pad_id, self._borders[rows]
        heads = is_border | _after(is_mark | is_border)
        heads[:, 0] = True
        heads &= ~is_mark
        numbers = np.maximum(np.cumsum(heads, axis=1) - 1, 0)
        # Nothing moves across a border token: it is a document.
        documents = 2 * np.cumsum(is_border, axis=1) - is_border
        positions = self._new_sentence_positions(heads, numbers, documents, words)
        new_places = np.take_along_axis(positions, numbers, axis=1)
        new_places[is_mark] = positions.shape[1]
        narrow = new_places.astype(np.min_scalar_type(positions.shape[1]))
        return np.take_along_axis(rows, np.argsort(narrow, axis=1, kind="stable"), axis=1)

    def _new_sentence_positions(
        self,
        heads: NDArray[np.bool_],
        numbers: NDArray[np.int64],
        documents: NDArray[np.int64],
        words: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """Assigns a place to each sentence, int64 (B, largest number of sentences).

        `heads` marks first tokens; `numbers` and `documents` (ascending) are each token's, all (B,
        L).
        """
        most = int(numbers.max(initial=0)) + 1
        at_head = np.nonzero(heads)
        row, sentence = at_head[0], numbers[at_head]
        keys = np.full((len(heads), most), never(np.uint64))
        document_bits = documents[at_head].astype(np.uint64) << _RANDOM_BITS
        keys[row, sentence] = document_bits | words[at_head] >> (np.uint64(64) - _RANDOM_BITS)
        order = np.argsort(keys, axis=1)
        in_order = np.take_along_axis(keys, order, axis=1) >> _RANDOM_BITS
        moved = _first_of_each_run(in_order, self.permute_sentence_ratio)
        is_moved = np.zeros_like(moved)
        np.put_along_axis(is_moved, order, moved, axis=1)
        columns = np.tile(np.arange(most), (len(heads), 1))
        # Both sides are sorted by document: sentences stay in their own.
        its_row, new_columns = np.nonzero(is_moved)
        columns[its_row, order[moved]] = new_columns
        return columns

    def _infill(
        self,
        rows: NDArray[np.int32],
        length_words: NDArray[np.uint64],
        place_words: NDArray[np.uint64],
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        maskable = self._maskable[rows]
        counts = maskable.sum(axis=1)
        hidden = np.zeros_like(maskable)
        spans = self._draw_spans(counts, length_words, place_words)
        hidden[maskable] = spans[np.arange(self.row_length) < counts[:, None]]
        starts = hidden & ~_after(hidden)
        shown = np.where(starts, np.int32(self.mask_id), rows)
        return pack_left(shown, (~hidden | starts) & (rows != self.pad_id), self.pad_id)

    def _draw_spans(
        self,
        counts: NDArray[np.int64],
        length_words: NDArray[np.uint64],
        place_words: NDArray[np.uint64],
    ) -> NDArray[np.bool_]:
        """Draws masked tokens among the first `counts`, bool (B, L)."""
        wanted = np.ceil(counts * self.mask_ratio).astype(np.int64)
        ends = np.minimum(np.cumsum(self._lengths(length_words), axis=1), wanted[:, None])
        starts = np.concatenate((np.zeros_like(ends[:, :1]), ends[:, :-1]), axis=1)
        spans = (ends > starts).sum(axis=1)
        edges = np.zeros((len(counts), self.row_length + 1), np.int8)
        if most := int(spans.max(initial=0)):
            before = _choose_positions(place_words, counts - wanted + 1, spans, most)
            row, span = np.nonzero(np.arange(most) < spans[:, None])
            edges[row, before[row, span] + starts[row, span]] = 1
            edges[row, before[row, span] + ends[row, span]] = -1
        return np.cumsum(edges, axis=1, dtype=np.int8)[:, :-1].astype(np.bool_)

    def _lengths(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(self._length_probabilities, uniform, side="right") + 1


def _after(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    later = np.zeros_like(flags)
    later[:, 1:] = flags[:, :-1]
    return later


def _first_of_each_run(values: NDArray[np.uint64], ratio: float) -> NDArray[np.bool_]:
    """Marks the first `ratio` of each run of equal values, rounded up."""
    if ratio == 1.0:
        return np.ones(values.shape, np.bool_)
    begins = np.ones(values.shape, np.bool_)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    run = np.cumsum(begins.reshape(-1)) - 1
    lengths = np.bincount(run)
    place_in_run = np.arange(values.size) - np.flatnonzero(begins.reshape(-1))[run]
    return (place_in_run < np.ceil(lengths * ratio)[run]).reshape(values.shape)


def _choose_positions(
    words: NDArray[np.uint64], counts: NDArray[np.int64], chosen: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Chooses `chosen` (B,) of the first `counts` (B,) places, uniformly.

    Returns int64 (B, most), ascending, of which the first `chosen` are valid.
    """
    keys = position_keys(words)
    keys[np.arange(words.shape[1]) >= counts[:, None]] = never(np.uint64)
    lowest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
    real = np.arange(most) < chosen[:, None]
    positions = positions_of_keys(lowest, words.shape[1]).astype(np.int64)
    return np.sort(np.where(real, positions, words.shape[1]), axis=1)
