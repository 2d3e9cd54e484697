"""Masked language modelling, held to its definition."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from core.errors import ShardError
from core.objectives.mlm import MaskedLanguageModel, frequency_baseline

VOCAB_SIZE, MASK = 1000, 4
SPECIAL = np.array([0, 1, 2, 3, 4, 999], np.int32)
ORDINARY = np.setdiff1d(np.arange(VOCAB_SIZE), SPECIAL).astype(np.int32)
Batch = dict[str, NDArray]


def objective(row_length: int = 64, probability: float = 0.15) -> MaskedLanguageModel:
    return MaskedLanguageModel(row_length, probability, MASK, VOCAB_SIZE, SPECIAL)


def make_rows(count: int, row_length: int = 64, seed: int = 0) -> NDArray[np.int32]:
    """Ordinary tokens between two special ones."""
    generator = np.random.default_rng(seed)
    rows = ORDINARY[generator.integers(0, len(ORDINARY), (count, row_length))]
    rows[:, 0], rows[:, -1] = 0, 1
    return rows


def at_places(rows: NDArray[np.int32], batch: Batch) -> NDArray[np.int32]:
    return np.take_along_axis(rows, batch["masked_positions"], axis=1)


@pytest.mark.parametrize(
    ("row_length", "probability", "predictions"),
    [(128, 0.15, 19), (512, 0.15, 77), (64, 0.3, 19), (8, 0.01, 1), (8, 0.9, 7)],
)
def test_the_number_of_predictions_is_fixed(
    row_length: int, probability: float, predictions: int
) -> None:
    task = objective(row_length, probability)
    assert task.predictions_per_row == predictions
    batch = task.batch(make_rows(3, row_length), seed=0, step=0)
    shapes = {name: (values.dtype, values.shape) for name, values in batch.items()}
    assert shapes == {
        "input_ids": (np.int32, (3, row_length)),
        "masked_positions": (np.int32, (3, predictions)),
        "labels": (np.int32, (3, predictions)),
        "label_weights": (np.float32, (3, predictions)),
    }


def test_labels_are_what_stood_there_and_nothing_else_changes() -> None:
    rows = make_rows(200)
    before = rows.copy()
    batch = objective().batch(rows, seed=3, step=5)
    assert np.array_equal(rows, before)
    assert np.array_equal(at_places(rows, batch), batch["labels"])
    restored = batch["input_ids"].copy()
    np.put_along_axis(restored, batch["masked_positions"], batch["labels"], axis=1)
    assert np.array_equal(restored, rows)


def test_places_are_distinct_ascending_and_never_special() -> None:
    rows = make_rows(500)
    rows[:, 10:20] = 2
    batch = objective().batch(rows, seed=1, step=1)
    assert (np.diff(batch["masked_positions"], axis=1) > 0).all()
    assert not np.isin(batch["labels"], SPECIAL).any()
    assert (batch["label_weights"] == 1).all()


def test_eighty_ten_ten() -> None:
    rows = make_rows(20_000)
    batch = objective().batch(rows, seed=0, step=0)
    shown, labels = at_places(batch["input_ids"], batch), batch["labels"]
    masked, kept = shown == MASK, shown == labels
    count = shown.size
    assert masked.mean() == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / count) ** 0.5)
    # A random token is the right one once in as many as there are.
    assert kept.mean() == pytest.approx(0.1 + 0.1 / len(ORDINARY), abs=4 * (0.09 / count) ** 0.5)
    random = shown[~masked & ~kept]
    assert not np.isin(random, SPECIAL).any()
    counts = np.bincount(random, minlength=VOCAB_SIZE)[ORDINARY]
    expected = len(random) / len(ORDINARY)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared == pytest.approx(len(ORDINARY), abs=5 * (2 * len(ORDINARY)) ** 0.5)


def test_places_are_uniform_among_what_can_be_hidden() -> None:
    rows = make_rows(20_000)
    batch = objective().batch(rows, seed=0, step=0)
    counts = np.bincount(batch["masked_positions"].ravel(), minlength=64)
    share = 10 / 62
    assert counts[0] == counts[-1] == 0
    spread = (20_000 * share * (1 - share)) ** 0.5
    assert np.abs(counts[1:-1] - 20_000 * share).max() < 5 * spread


def test_a_row_with_too_few_tokens_leaves_slots_without_weight() -> None:
    rows = np.full((3, 64), 2, np.int32)
    rows[1, 40:43] = 77
    rows[2, :30] = 77
    batch = objective().batch(rows, seed=0, step=0)
    assert batch["label_weights"].sum(axis=1).tolist() == [0, 3, 10]
    assert batch["masked_positions"][1].tolist() == [40, 41, 42] + [0] * 7
    assert np.array_equal(batch["input_ids"][0], rows[0])
    assert (batch["input_ids"][1, :40] == 2).all() and (batch["input_ids"][1, 43:] == 2).all()


def test_a_spare_slot_does_not_undo_a_hidden_first_token() -> None:
    rows = np.full((400, 8), 2, np.int32)
    rows[:, 0] = 77
    batch = objective(8, 0.5).batch(rows, seed=0, step=0)
    assert batch["label_weights"].sum(axis=1).tolist() == [1.0] * 400
    assert (batch["input_ids"][:, 0] == MASK).mean() == pytest.approx(0.8, abs=0.08)


def test_a_batch_depends_on_nothing_but_rows_seed_and_step() -> None:
    rows = make_rows(16)
    first, again = (objective().batch(rows, seed=2, step=9) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for other in ({"seed": 3, "step": 9}, {"seed": 2, "step": 10}):
        changed = objective().batch(rows, **other)
        assert not np.array_equal(first["masked_positions"], changed["masked_positions"])


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_a_slice_is_masked_as_in_the_whole(pieces: int) -> None:
    rows = make_rows(16)
    whole = objective().batch(rows, seed=2, step=9)
    size = len(rows) // pieces
    parts = [
        objective().batch(rows[start : start + size], seed=2, step=9, first_row=start)
        for start in range(0, len(rows), size)
    ]
    for name, values in whole.items():
        assert np.array_equal(values, np.concatenate([part[name] for part in parts]))


def test_equal_rows_are_masked_apart() -> None:
    rows = np.repeat(make_rows(1), 50, axis=0)
    places = objective().batch(rows, seed=0, step=0)["masked_positions"]
    assert len({tuple(row) for row in places}) > 45


def test_an_empty_batch_is_one() -> None:
    batch = objective().batch(np.zeros((0, 64), np.int32), seed=0, step=0)
    assert batch["masked_positions"].shape == (0, 10)


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 60_000])
def test_a_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    rows = make_rows(4)
    rows[2, 5] = wrong
    with pytest.raises(ShardError, match=str(wrong)):
        objective().batch(rows, seed=0, step=0)


def test_the_baseline_is_the_cross_entropy_of_the_counts() -> None:
    counts = np.array([3, 0, 6, 0], np.int64)
    labels = np.array([[0, 1, 2], [2, 2, 3]], np.int32)
    weights = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    # Of 9 + 4: 4, 1, 7 and 1.
    expected = -np.mean([np.log(4 / 13), np.log(1 / 13), np.log(7 / 13), np.log(7 / 13)])
    assert frequency_baseline(counts, labels, weights) == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "row_length"), [(64, 128), (8, 512)])
def test_masking_takes_a_small_part_of_a_step(rows: int, row_length: int) -> None:
    task, data = objective(row_length), make_rows(rows, row_length)
    times = []
    for step in range(20):
        start = time.perf_counter()
        task.batch(data, seed=0, step=step)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.002  # A step of mini takes a hundred times as long.
