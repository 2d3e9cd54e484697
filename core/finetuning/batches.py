"""Groups sequences of similar length into batches of a few fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.finetuning.encoding import TokenSequence
from core.objectives.sequences import shift_right

SHORTEST = 16
# Batches that are sorted by length together.
_BATCHES_TO_SORT = 32


@dataclass(frozen=True)
class LabelledSequences:
    """Sequences with labels.

    Attributes:
        labels: One per text, (1,), or per token, (L,).
        weights: 1 where there is a label, 0 elsewhere.
    """

    sequences: Sequence[TokenSequence]
    labels: Sequence[NDArray[np.generic]]
    weights: Sequence[NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.sequences)


def padded_length(length: int, longest: int) -> int:
    """Rounds a length up to a power of two, at most `longest`."""
    return min(max(SHORTEST, 1 << max(0, length - 1).bit_length()), longest)


def shuffled_batches(lengths: Sequence[int], batch_size: int, seed: int) -> list[NDArray[np.intp]]:
    """Divides an epoch into batches of similar lengths, in random order."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    measured = np.asarray(lengths)
    size = batch_size * _BATCHES_TO_SORT
    batches = [
        part[start : start + batch_size]
        for first in range(0, len(order), size)
        for part in [_by_length(order[first : first + size], measured)]
        for start in range(0, len(part), batch_size)
    ]
    return [batches[number] for number in generator.permutation(len(batches))]


def ordered_batches(lengths: Sequence[int], batch_size: int) -> Iterator[NDArray[np.intp]]:
    """Yields batches of all sequences, by length."""
    order = _by_length(np.arange(len(lengths)), np.asarray(lengths))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def collate(
    data: LabelledSequences,
    chosen: NDArray[np.intp],
    batch_size: int,
    longest: int,
    architecture: Architecture,
    *,
    uses_decoder: bool,
) -> dict[str, NDArray]:
    """Pads sequences to a batch of full size; added rows weigh 0."""
    rows = [data.sequences[number] for number in chosen]
    length = padded_length(max(len(sequence.ids) for sequence in rows), longest)
    ids = np.full((batch_size, length), architecture.pad_token_id, np.int32)
    mask = np.zeros((batch_size, length), np.int32)
    mask[:, 0] = 1  # Attention needs one token.
    for row, sequence in enumerate(rows):
        ids[row, : len(sequence.ids)] = sequence.ids
        mask[row, : len(sequence.ids)] = 1
    batch: dict[str, NDArray] = {"input_ids": ids, "attention_mask": mask}
    if uses_decoder:
        start = int(getattr(architecture, "decoder_start_token_id", 0))
        batch["decoder_input_ids"] = shift_right(ids, start)
    if rows[0].segments is not None:
        batch["token_type_ids"] = _stacked(
            [sequence.segments for sequence in rows], batch_size, length
        )
    width = length
    if rows[0].position is not None:
        places = [np.array([sequence.position], np.int32) for sequence in rows]
        batch["masked_positions"] = _stacked(places, batch_size, 1)
        width = 1
    batch["labels"] = _stacked([data.labels[number] for number in chosen], batch_size, width)
    batch["label_weights"] = _stacked(
        [data.weights[number] for number in chosen], batch_size, width
    )
    return batch


def _by_length(order: NDArray[np.intp], lengths: NDArray[np.intp]) -> NDArray[np.intp]:
    return order[np.argsort(lengths[order], kind="stable")]


def _stacked(rows: Sequence[NDArray | None], count: int, width: int) -> NDArray:
    first = rows[0]
    assert first is not None
    stacked = np.zeros((count, width), first.dtype)
    for number, row in enumerate(rows):
        assert row is not None
        stacked[number, : len(row)] = row
    return stacked
