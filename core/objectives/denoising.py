"""Denoising: sentences change places and spans become single mask tokens; the text is restored.

A stored row is a block of the stream of documents in which a padding token marks where a sentence
ends, so no text is needed to find them:

    <s> The river runs. <pad> It is cold. <pad> </s> <s> A new document. <pad> ...

The marks count towards the row's length. They are taken out of what the model sees: padding is
found at a row's end only. Every sentence has its mark, a document's last one too;
`core.corpus.sentences` finds the places in text. The first and the last sentence of a row may be
parts that its borders cut off; they are moved like the others. The tokens that begin and end a
text keep their places, and sentences are moved within their own document only.

Then `mask_ratio` of a row's tokens, rounded up, is hidden in spans whose lengths come from a
Poisson distribution without its 0. The last span is cut so that the number is met exactly. At
least one token is shown between two spans, and each span becomes one mask token. Special tokens are
never hidden: a span that meets one goes on behind it, with a second mask token. The target is the
whole original text.

Where this differs from the Flax example: there spans may overlap, so fewer tokens are hidden than
the ratio says, and the numbers hold for a batch and not for a row; the marks stay in the decoder's
text, and nothing is learned about what follows a sentence's end; the last part of a row keeps its
place. As there, spans of length 0 (a mask token where nothing is missing) are left out.

Source: Lewis et al., https://arxiv.org/abs/1910.13461, section 2.2;
    https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/run_bart_dlm_flax.py
    (FlaxDataCollatorForBartDenoisingLM)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.objectives.draws import draw_words, never, place_keys, places_of
from core.objectives.objective import Batch, ObjectiveSettings, Vocabulary
from core.objectives.rows import check_rows, pack_left, shift_right

_SENTENCE_DRAWS = 0x42415254
_LENGTH_DRAWS = _SENTENCE_DRAWS + 1
_PLACE_DRAWS = _SENTENCE_DRAWS + 2

_DEFAULT_MASK_RATIO = 0.3
# With more, there would not always be a shown token between two spans.
_LARGEST_MASK_RATIO = 0.5
_LARGEST_POISSON_LAMBDA = 50.0
# A sentence's key is the number of its document and, below it, this many random bits.
_RANDOM_BITS = np.uint64(40)


@dataclass(frozen=True, eq=False)
class Denoising:
    """The objective of BART.

    Attributes:
        row_length: Tokens in a stored row, L, marks included; also what the model sees.
        vocab_size: Number of ids.
        special_ids: Tokens that are never hidden.
        mask_id: Stands for a hidden span.
        pad_id: Marks sentence ends in stored rows; fills up what the model sees.
        eos_id: Ends a text.
        decoder_start_id: What the decoder sees first; BART's is the token that ends a text.
        bos_id: Begins a text, if anything does.
        mask_ratio: Share of the tokens to hide, above 0 and at most 0.5.
        poisson_lambda: Mean of the span lengths' distribution before 0 is left out, above 0 and at
            most 50.
        permute_sentence_ratio: Share of a document's sentences in a row that change places among
            themselves, rounded up, 0 to 1.
    """

    name: ClassVar[str] = "denoising"
    families: ClassVar[tuple[str, ...]] = ("bart",)

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
                    f"Denoising can't work with this {field}",
                    expected=expected,
                    received=f"{value}",
                    fix="use the published 0.3, 3 and 1",
                    field=field,
                )

    @classmethod
    def stored_row_length(cls, settings: ObjectiveSettings) -> int:
        """Returns the tokens in a stored row, marks included: as many as the model sees."""
        return settings.max_seq_length

    @classmethod
    def create(cls, settings: ObjectiveSettings, vocabulary: Vocabulary) -> Denoising:
        """Makes the objective for a tokenizer.

        Raises:
            ConfigError: A setting is out of range, or the tokenizer has no mask token, no padding
                token or no token that ends a text.
        """
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
    def predictions_per_row(self) -> int:
        """Slots for predictions in each row."""
        return self.row_length

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arrays of a batch that the model sees."""
        return ("input_ids", "attention_mask", "decoder_input_ids")

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Makes noise of a batch, or of a slice of one.

        Args:
            rows: Token ids, int32 (B, L), with a padding token after each sentence.
            seed: Of the run.
            step: Of the training step; fixed for evaluation on noise that doesn't change. A range:
                the rows are as many batches of equal size, one for each of these steps.
            first_row: The place of `rows[0]` in the global batch.

        Returns:
            input_ids int32 (B, L): the sentences in their new order, a mask token for each hidden
                span, then padding.
            attention_mask int32 (B, L): 1 for tokens and 0 for padding.
            decoder_input_ids int32 (B, L): the labels one place later. Padding comes last, where no
                token that counts looks at it.
            labels int32 (B, L): the row without marks, then padding.
            label_weights float32 (B, L): 1, and 0 for padding.

        Raises:
            ShardError: The rows have another length, or a token that isn't in the vocabulary.
        """
        check_rows(rows, self.row_length, self.vocab_size)
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
        """Which tokens begin or end a text, bool (vocab_size,)."""
        borders = np.zeros(self.vocab_size, np.bool_)
        borders[[number for number in (self.bos_id, self.eos_id) if number is not None]] = True
        return borders

    @cached_property
    def _length_probabilities(self) -> NDArray[np.float64]:
        """The probabilities of a span of at most 1, 2, 3, ... tokens, given that it has one."""
        mean = self.poisson_lambda
        counts = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean)) + 20)
        logarithms = counts * math.log(mean) - mean - np.cumsum(np.log(counts))
        return np.cumsum(np.exp(logarithms)) / -math.expm1(-mean)

    def _draw(
        self, rows: int, words: int, seed: int, step: int | range, first_row: int, domain: int
    ) -> NDArray[np.uint64]:
        drawn = draw_words(rows, words, seed=seed, step=step, first_row=first_row, domain=domain)
        return drawn[:, :words]

    def _permute_sentences(
        self, rows: NDArray[np.int32], words: NDArray[np.uint64]
    ) -> NDArray[np.int32]:
        """Returns the sentences in another order, then the marks: int32 (B, L)."""
        is_mark, is_border = rows == self.pad_id, self._borders[rows]
        heads = is_border | _after(is_mark | is_border)
        heads[:, 0] = True
        heads &= ~is_mark
        numbers = np.maximum(np.cumsum(heads, axis=1) - 1, 0)
        # Each border is a document of its own, so that nothing moves across it.
        documents = 2 * np.cumsum(is_border, axis=1) - is_border
        places = self._new_places(heads, numbers, documents, words)
        new_places = np.take_along_axis(places, numbers, axis=1)
        new_places[is_mark] = places.shape[1]
        narrow = new_places.astype(np.min_scalar_type(places.shape[1]))
        return np.take_along_axis(rows, np.argsort(narrow, axis=1, kind="stable"), axis=1)

    def _new_places(
        self,
        heads: NDArray[np.bool_],
        numbers: NDArray[np.int64],
        documents: NDArray[np.int64],
        words: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """Returns which place each sentence gets.

        Args:
            heads: Which tokens begin a sentence, bool (B, L).
            numbers: The sentence that each token is in, int64 (B, L).
            documents: The document that each token is in, ascending, int64 (B, L).
            words: Random words, uint64 (B, L).

        Returns:
            Places by sentence, int64 (B, most sentences in a row).
        """
        most = int(numbers.max(initial=0)) + 1
        at_head = np.nonzero(heads)
        row, sentence = at_head[0], numbers[at_head]
        keys = np.full((len(heads), most), never(np.uint64))
        document_bits = documents[at_head].astype(np.uint64) << _RANDOM_BITS
        keys[row, sentence] = document_bits | words[at_head] >> (np.uint64(64) - _RANDOM_BITS)
        order = np.argsort(keys, axis=1)  # the documents in order, each one's sentences shuffled
        in_order = np.take_along_axis(keys, order, axis=1) >> _RANDOM_BITS
        moved = _first_of_each_run(in_order, self.permute_sentence_ratio)
        is_moved = np.zeros_like(moved)
        np.put_along_axis(is_moved, order, moved, axis=1)
        places = np.tile(np.arange(most), (len(heads), 1))
        # In both, the moved ones are sorted by document: each gets a place in its own.
        its_row, place = np.nonzero(is_moved)
        places[its_row, order[moved]] = place
        return places

    def _infill(
        self,
        rows: NDArray[np.int32],
        length_words: NDArray[np.uint64],
        place_words: NDArray[np.uint64],
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Replaces spans by mask tokens; returns the rows and which of their places are real."""
        maskable = self._maskable[rows]
        counts = maskable.sum(axis=1)
        hidden = np.zeros_like(maskable)
        # The spans are laid through the maskable tokens as if nothing else were there.
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
        """Returns which of the first `counts` tokens of each row are hidden, bool (B, L).

        Where spans stand is uniform among all ways that leave a token between any two.
        """
        wanted = np.ceil(counts * self.mask_ratio).astype(np.int64)
        ends = np.minimum(np.cumsum(self._lengths(length_words), axis=1), wanted[:, None])
        starts = np.concatenate((np.zeros_like(ends[:, :1]), ends[:, :-1]), axis=1)
        spans = (ends > starts).sum(axis=1)
        edges = np.zeros((len(counts), self.row_length + 1), np.int8)
        if most := int(spans.max(initial=0)):
            before = _choose_places(place_words, counts - wanted + 1, spans, most)
            row, span = np.nonzero(np.arange(most) < spans[:, None])
            edges[row, before[row, span] + starts[row, span]] = 1
            edges[row, before[row, span] + ends[row, span]] = -1
        return np.cumsum(edges, axis=1, dtype=np.int8)[:, :-1].astype(np.bool_)

    def _lengths(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns span lengths from random words, of the same shape, at least 1."""
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(self._length_probabilities, uniform, side="right") + 1


def _after(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns the flags one place later, bool (B, L)."""
    later = np.zeros_like(flags)
    later[:, 1:] = flags[:, :-1]
    return later


def _first_of_each_run(values: NDArray[np.uint64], ratio: float) -> NDArray[np.bool_]:
    """Tells which belong to the first part of each run of equal values, rounded up, bool (B, n)."""
    if ratio == 1.0:
        return np.ones(values.shape, np.bool_)
    begins = np.ones(values.shape, np.bool_)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    run = np.cumsum(begins.reshape(-1)) - 1
    lengths = np.bincount(run)
    place_in_run = np.arange(values.size) - np.flatnonzero(begins.reshape(-1))[run]
    return (place_in_run < np.ceil(lengths * ratio)[run]).reshape(values.shape)


def _choose_places(
    words: NDArray[np.uint64], counts: NDArray[np.int64], chosen: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Chooses some of the first places of each row, each choice equally likely.

    Args:
        words: Random words, uint64 (B, n).
        counts: How many places there are, int64 (B,), at most n.
        chosen: How many to choose, int64 (B,), at most `counts`.
        most: The largest of `chosen`.

    Returns:
        The places, ascending, int64 (B, most), of which the first `chosen` are real.
    """
    keys = place_keys(words)
    keys[np.arange(words.shape[1]) >= counts[:, None]] = never(np.uint64)
    lowest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
    real = np.arange(most) < chosen[:, None]
    places = places_of(lowest, words.shape[1]).astype(np.int64)
    return np.sort(np.where(real, places, words.shape[1]), axis=1)
