"""Batches are a pure function of sequences, seed and number."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from core.objectives.mlm import MaskedLanguageModel
from core.training.batches import (
    BatchPrefetcher,
    EvalBatches,
    SequenceSlice,
    TrainBatches,
    limit_sequences,
    permute,
)

_OBJECTIVE = MaskedLanguageModel(8, 0.25, 4, 40, np.arange(5, dtype=np.int32))


class ArrayRows:
    """Random sequences in memory."""

    def __init__(self, count: int, row_length: int = 8) -> None:
        generator = np.random.default_rng(0)
        self.values = generator.integers(5, 40, (count, row_length)).astype(np.int32)
        self.row_length = row_length

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        return self.values[indices]


def _equal(one: dict[str, NDArray], other: dict[str, NDArray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_epoch_visits_each_sequence_once(count: int) -> None:
    order = permute(np.arange(count), count, seed=3, epoch=1)
    assert np.array_equal(np.sort(order), np.arange(count))


def test_epochs_and_seeds_have_their_own_orders() -> None:
    places = np.arange(1000)
    orders = [permute(places, 1000, seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    shared = [np.mean(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(shared) < 0.02
    assert all(abs(np.corrcoef(order, places)[0, 1]) < 0.1 for order in orders)


def test_each_sequence_is_equally_likely_to_come_first() -> None:
    first = [int(permute(np.array([0]), 5, seed, 0)[0]) for seed in range(2000)]
    assert np.all(np.abs(np.bincount(first, minlength=5) - 400) < 80)


def test_order_of_a_huge_corpus_is_computed_for_any_position() -> None:
    count = 3_000_000_000
    order = permute(np.arange(count - 5, count), count, 0, 0)
    assert np.all((order >= 0) & (order < count)) and len(set(order.tolist())) == 5


def test_batches_do_not_depend_on_the_order_of_requests() -> None:
    rows = ArrayRows(50)
    batches = TrainBatches(rows, _OBJECTIVE, 8, seed=1)
    forwards = [batches(number) for number in range(20)]
    again = TrainBatches(rows, _OBJECTIVE, 8, seed=1)
    backwards = [again(number) for number in reversed(range(20))]
    assert all(map(_equal, forwards, reversed(backwards)))
    assert not _equal(forwards[0], forwards[1])


def test_sequences_left_over_from_an_epoch_start_the_next() -> None:
    batches = TrainBatches(ArrayRows(50), _OBJECTIVE, 8, seed=1)
    visited = np.concatenate([batches.sequence_indices(range(n, n + 1)) for n in range(25)])
    epochs = visited.reshape(4, 50)
    assert all(np.array_equal(np.sort(epoch), np.arange(50)) for epoch in epochs)
    assert batches.epochs_after(25) == 4


def test_order_of_an_epoch_does_not_depend_on_the_requested_ranges() -> None:
    """The order is computed in blocks; batches and epochs start and end within blocks."""
    count = 20_001
    batches = TrainBatches(ArrayRows(count, 1), _OBJECTIVE, 37, seed=5)
    together = batches.sequence_indices(range(count // 37 * 2))
    expected = [permute(np.arange(count), count, 5, epoch) for epoch in range(2)]
    assert np.array_equal(together, np.concatenate(expected)[: len(together)])
    one_by_one = [batches.sequence_indices(range(n, n + 1)) for n in range(200, 700)]
    assert np.array_equal(np.concatenate(one_by_one), together[200 * 37 : 700 * 37])


def test_processes_read_slices_of_one_global_batch() -> None:
    batches = TrainBatches(ArrayRows(50), _OBJECTIVE, 8, seed=1)
    whole = batches(6)
    parts = [batches(6, slice(start, start + 2)) for start in range(0, 8, 2)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in whole}
    assert _equal(joined, whole)


@pytest.mark.parametrize("part", [slice(None), slice(2, 6)])
def test_batches_made_together_equal_batches_made_one_by_one(part: slice) -> None:
    batches = TrainBatches(ArrayRows(50), _OBJECTIVE, 8, seed=1)
    together = batches.several(range(4, 30), part)
    assert len(together) == 26
    assert all(_equal(one, batches(4 + place, part)) for place, one in enumerate(together))


def test_small_batches_are_made_together_and_large_ones_one_by_one() -> None:
    sizes = [replace(TrainBatches(ArrayRows(50), _OBJECTIVE, 1, 0), batch_size=2**n).at_once
             for n in range(20)]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 64 and sizes[-1] == 1


def test_another_seed_gives_other_batches() -> None:
    batches = TrainBatches(ArrayRows(50), _OBJECTIVE, 8, seed=1)
    assert not _equal(batches(0), replace(batches, seed=2)(0))


def test_validation_masks_do_not_depend_on_the_batch_size() -> None:
    rows = ArrayRows(23)
    small, large = EvalBatches(rows, _OBJECTIVE, 4), EvalBatches(rows, _OBJECTIVE, 16)
    assert (len(small), len(large)) == (6, 2)
    joined = [
        {
            name: np.concatenate([batch(n)[name] for n in range(len(batch))])[:23]
            for name in batch(0)
        }
        for batch in (small, large)
    ]
    assert _equal(*joined)


def test_last_validation_batch_is_padded_with_zero_weights() -> None:
    batches = EvalBatches(ArrayRows(23), _OBJECTIVE, 16)
    last = batches(1)
    assert last["input_ids"].shape == (16, 8)
    assert last["label_weights"][:7].sum() == 7 * 2
    assert last["label_weights"][7:].sum() == 0


def test_number_of_sequences_can_be_limited() -> None:
    rows = ArrayRows(23)
    assert limit_sequences(rows, None) is rows and limit_sequences(rows, 99) is rows
    few = limit_sequences(rows, 5)
    assert isinstance(few, SequenceSlice) and len(few) == 5 and few.row_length == 8
    assert np.array_equal(few.take(np.array([4])), rows.values[4:5])


@pytest.mark.parametrize("at_once", [1, 3, 16])
def test_prefetcher_keeps_the_order_and_measures_waiting(at_once: int) -> None:
    def slow(numbers: range) -> list[int]:
        time.sleep(0.02)
        return list(numbers)

    with BatchPrefetcher(slow, 3, 11, at_once) as feeder:
        assert list(feeder) == list(range(3, 11))
        assert feeder.waited_seconds > 0.02


def test_prefetcher_with_several_threads_keeps_the_order() -> None:
    threads = set()

    def uneven(numbers: range) -> list[int]:
        threads.add(threading.get_ident())
        time.sleep(0.02 if numbers.start % 3 else 0.001)
        return list(numbers)

    with BatchPrefetcher(uneven, 0, 40, 2, threads=3) as feeder:
        assert list(feeder) == list(range(40))
    assert len(threads) == 3


def test_batches_do_not_depend_on_the_calling_thread() -> None:
    batches = TrainBatches(ArrayRows(50), _OBJECTIVE, 8, seed=3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(batches, range(24)))
    for number, batch in enumerate(found):
        assert _equal(batch, batches(number))


def test_prefetcher_starts_with_one_batch_and_then_requests_more() -> None:
    asked = []

    def note(numbers: range) -> list[int]:
        asked.append(len(numbers))
        return list(numbers)

    with BatchPrefetcher(note, 0, 18, 4) as feeder:
        assert len(list(feeder)) == 18
    assert asked == [1, 2, 4, 4, 4, 3]


@pytest.mark.parametrize("at_once", [1, 3, 16])
def test_prefetcher_raises_at_the_failing_batch(at_once: int) -> None:
    def fail(numbers: range) -> list[int]:
        if 5 in numbers:
            raise ValueError("record 7 is damaged")
        return list(numbers)

    with BatchPrefetcher(fail, 0, 9, at_once) as feeder:
        assert [feeder.next() for _ in range(5)] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(ValueError, match="record 7"):
                feeder.next()


def test_prefetcher_can_be_closed_early() -> None:
    started = time.monotonic()
    with BatchPrefetcher(list, 0, 10**9, 16) as feeder:
        feeder.next()
    assert time.monotonic() - started < 2
