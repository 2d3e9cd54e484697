"""Mixtures keep their proportions in every batch, whatever the batch size and the process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.train import TrainConfig
from core.errors import ConfigError
from core.training.batches import ShuffledOrder, TrainBatches
from core.training.mixture import (
    BLOCK,
    ConcatenatedSequences,
    MixtureOrder,
    OrderedSequences,
    integer_shares,
    temperature_weights,
)
from tests.core.training.test_batches import ArrayRows

NAMES = ("english", "korean", "code")
LENGTHS = (7000, 300, 1900)


def order_of(weights: tuple[float, ...] = (6, 1, 3), seed: int = 5) -> MixtureOrder:
    return MixtureOrder(tuple(integer_shares(weights, NAMES)), LENGTHS, seed, 10_000)


def sources_of(indices: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(LENGTHS), indices, side="right")


@pytest.mark.parametrize("weights", [(6, 1, 3), (1, 1, 1), (1000, 1, 1), (0.2, 0.7, 0.1)])
def test_proportions_hold_in_every_batch_and_exactly_in_a_block(weights: tuple[float, ...]) -> None:
    order = order_of(weights)
    sources = sources_of(order.indices(3 * BLOCK, 4 * BLOCK))
    assert np.bincount(sources, minlength=3).tolist() == list(order.shares)
    batches = np.stack([np.bincount(one, minlength=3) for one in sources.reshape(-1, 256)])
    assert np.abs(batches - 256 * np.array(order.shares) / BLOCK).max() < 2.5


def test_every_source_is_read_once_per_epoch_and_shuffled_anew() -> None:
    order = order_of()
    indices = order.indices(0, 2 * BLOCK)
    for source, length in enumerate(LENGTHS):
        mine = indices[sources_of(indices) == source] - sum(LENGTHS[:source])
        epochs = mine[: len(mine) // length * length].reshape(-1, length)
        assert len(epochs) > 1
        assert (np.sort(epochs, axis=1) == np.arange(length)).all()
        assert (epochs[0] != epochs[1]).any()
    assert order.counts(2 * BLOCK) == [2 * share for share in order.shares]
    assert order.epochs(2 * BLOCK) == pytest.approx(
        [2 * share / length for share, length in zip(order.shares, LENGTHS, strict=True)]
    )


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(0, 2000), st.integers(0, 2**31 - 1))
def test_batch_depends_on_seed_and_number_alone(batch: int, number: int, seed: int) -> None:
    order = order_of(seed=seed)
    whole = order.indices(number * batch, (number + 3) * batch)
    again = [
        order_of(seed=seed).indices(n * batch, (n + 1) * batch) for n in range(number, number + 3)
    ]
    assert np.array_equal(whole, np.concatenate(again))
    assert np.array_equal(
        order.at(np.arange(number * batch, (number + 3) * batch)[::-1]), whole[::-1]
    )


def test_processes_take_their_part_of_the_same_batches() -> None:
    parts = tuple(ArrayRows(length) for length in LENGTHS)
    rows = ConcatenatedSequences(parts)
    order = order_of()
    from tests.core.training.test_batches import _OBJECTIVE

    batches = TrainBatches(rows, _OBJECTIVE, 16, seed=5, order=order)
    whole = batches.several(range(7, 10))
    for count in (2, 4):
        size = 16 // count
        parts_of_step = [
            batches.several(range(7, 10), slice(part * size, (part + 1) * size))
            for part in range(count)
        ]
        for step, batch in enumerate(whole):
            for name, values in batch.items():
                together = np.concatenate([part[step][name] for part in parts_of_step])
                assert np.array_equal(together, values)
    assert batches.epochs_after(1000) == 1.6


def test_concatenated_and_ordered_sequences_read_the_right_source() -> None:
    class Numbered:
        row_length = 2

        def __init__(self, number: int, length: int) -> None:
            self.number, self.length = number, length

        def __len__(self) -> int:
            return self.length

        def take(self, indices: np.ndarray) -> np.ndarray:
            assert indices.min() >= 0 and indices.max() < self.length
            return np.stack([np.full(len(indices), self.number), indices], 1).astype(np.int32)

    rows = ConcatenatedSequences(tuple(Numbered(n, one) for n, one in enumerate(LENGTHS)))
    assert len(rows) == sum(LENGTHS)
    chosen = np.array([9199, 0, 7000, 6999, 7299, 7300])
    assert rows.take(chosen).tolist() == [[2, 1899], [0, 0], [1, 0], [0, 6999], [1, 299], [2, 0]]
    ordered = OrderedSequences(rows, order_of())
    assert len(ordered) == 10_000
    taken = ordered.take(np.arange(1000))
    assert np.bincount(taken[:, 0]).tolist() == pytest.approx([600, 100, 300], abs=3)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=64))
def test_shares_sum_to_a_block_and_none_is_zero(weights: list[float]) -> None:
    names = [str(number) for number in range(len(weights))]
    exact = np.array(weights) / sum(weights) * BLOCK
    if (exact < 0.5).any():
        with pytest.raises(ConfigError, match="rounds to zero"):
            integer_shares(weights, names)
        return
    shares = integer_shares(weights, names)
    assert sum(shares) == BLOCK and min(shares) >= 1
    assert np.abs(np.array(shares) - exact).max() <= 64


def test_temperature_evens_sizes_out() -> None:
    assert temperature_weights([100, 1], 1) == pytest.approx([1, 0.01])
    assert temperature_weights([100, 1], 2) == pytest.approx([1, 0.1])
    assert temperature_weights([100, 1], 100) == pytest.approx([1, 0.955], abs=1e-3)


def test_single_shards_keep_their_order() -> None:
    """Runs of earlier versions resume with the batches that they would have read."""
    order = ShuffledOrder(50, 1)
    batches = TrainBatches(ArrayRows(50), None, 8, seed=1)  # type: ignore[arg-type]
    assert batches.sequence_indices(range(3, 9)).tolist() == order.indices(24, 72).tolist()
    assert sorted(order.indices(50, 100)) == list(range(50))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mixture": "a=0 b=1"}, "weight above 0"),
        ({"mixture": "a=-1 b=1"}, "weight above 0"),
        ({"mixture": "a=nan b=1"}, "weight above 0"),
        ({"mixture": "a=two b=1"}, "weight above 0"),
        ({"mixture": "a= b=1"}, "write the name, then the weight"),
        ({"mixture": "=1"}, "write the name, then the weight"),
        ({"mixture": "a=1 b"}, "no weight for b"),
        ({"mixture": "a=1 a=2"}, "a twice"),
        ({"mixture": {"a b": 1}}, "without spaces"),
        ({"mixture": " ".join(f"s{n}=1" for n in range(65))}, "at most 64"),
        ({"mixture": "a=1 b=1", "shards": "c"}, "doesn't go with shards"),
        ({"mixture": "a=1 b=1", "max_train_examples": 5}, "doesn't go with max_train_examples"),
        ({"mixture": "a=1 b=1", "mixture_temperature": 2}, "without weights"),
        ({"mixture_temperature": 2}, "without weights"),
    ],
)
def test_wrong_mixtures_are_explained(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrainConfig(**values)


def test_mixture_is_given_as_text_mapping_or_list() -> None:
    for value in ("a=2 b=1.5", "a=2,b=1.5", {"a": 2, "b": 1.5}, ["a=2", "b=1.5"]):
        config = TrainConfig(mixture=value)
        assert config.mixture.replace(",", " ") == "a=2 b=1.5"
