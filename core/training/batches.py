"""Batches as a pure function of (shards, seed, number)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import MissingDataError, ShardError
from core.objectives.objective import Batch

EVAL_SEED = 0x5EED

_FEISTEL_ROUNDS = 8
_PREFETCHED_GROUPS = 4
_ORDERED_AT_ONCE = 2**13
_TOKENS_AT_ONCE = 2**19
_BATCHES_AT_ONCE = 64
# They hold the GIL part of the time.
THREADS = 2


class SequenceSource(Protocol):
    """Sequences of token ids, read by index."""

    @property
    def row_length(self) -> int:
        """Tokens per sequence."""

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns int32 (n, row_length)."""


class BatchMaker(Protocol):
    """Makes model inputs and labels."""

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Returns a batch, or one per step, with `label_weights` (B, K)."""


@dataclass(frozen=True)
class SequenceSlice:
    """The first sequences of a source."""

    rows: SequenceSource
    length: int

    @property
    def row_length(self) -> int:
        return self.rows.row_length

    def __len__(self) -> int:
        return self.length

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        return self.rows.take(indices)


class TolerantSequences:
    """Replaces damaged sequences by `filler_id`, with label weight 0.

    `report` gets the count and the problem.
    """

    def __init__(
        self, rows: SequenceSource, filler_id: int, report: Callable[[int, str], None]
    ) -> None:
        self.row_length = rows.row_length
        self._rows = rows
        self._filler_id = filler_id
        self._report = report
        self._damaged: set[int] = set()
        self._telling = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        try:
            return self._rows.take(indices)
        except MissingDataError:  # Not damage: the run can't go on.
            raise
        except ShardError:
            return np.stack([self._take_one(int(index)) for index in indices])

    def are_damaged(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns True for damaged sequences already taken, bool (n,)."""
        return np.isin(indices, list(self._damaged))

    def _take_one(self, index: int) -> NDArray[np.int32]:
        try:
            return self._rows.take(np.array([index]))[0]
        except MissingDataError:
            raise
        except ShardError as error:
            with self._telling:
                if index not in self._damaged:
                    self._damaged.add(index)
                    self._report(len(self._damaged), str(error))
            return np.full(self.row_length, self._filler_id, np.int32)


def limit_sequences(rows: SequenceSource, most: int | None) -> SequenceSource:
    """Limits a source to `most` sequences."""
    return rows if most is None or most >= len(rows) else SequenceSlice(rows, most)


class SequenceOrder(Protocol):
    """The order of training sequences, over any number of epochs."""

    @property
    def epoch_length(self) -> int:
        """Positions per epoch."""

    def indices(self, first: int, stop: int) -> NDArray[np.int64]:
        """Returns the indices at positions from `first` to `stop`, int64 (stop - first,)."""


@dataclass(frozen=True)
class ShuffledOrder:
    """Takes every sequence once per epoch, shuffled anew in each."""

    epoch_length: int
    seed: int

    def indices(self, first: int, stop: int) -> NDArray[np.int64]:
        pieces = []
        while first < stop:
            epoch, position = divmod(first, self.epoch_length)
            block, within = divmod(position, _ORDERED_AT_ONCE)
            order = _order(self.epoch_length, self.seed, epoch, block)
            pieces.append(order[within : within + stop - first])
            first += len(pieces[-1])
        return np.concatenate(pieces)


@dataclass(frozen=True)
class TrainBatches:
    """Training batches; `batch_size` is over all devices.

    Args:
        order: By default each sequence once per epoch.
    """

    rows: SequenceSource
    objective: BatchMaker
    batch_size: int
    seed: int
    order: SequenceOrder | None = None

    def __call__(self, number: int, part: slice = slice(None)) -> Batch:
        return self.several(range(number, number + 1), part)[0]

    def several(self, numbers: range, part: slice = slice(None)) -> list[Batch]:
        """Returns batches, or a part of each."""
        start, stop, _ = part.indices(self.batch_size)
        indices = (
            self.sequence_indices(numbers).reshape(len(numbers), -1)[:, start:stop].reshape(-1)
        )
        rows = self.rows.take(indices)
        together = self.objective.batch(rows, self.seed, numbers, first_row=start)
        _leave_out_damaged(together, self.rows, indices)
        size = stop - start
        return [
            {name: values[first : first + size] for name, values in together.items()}
            for first in range(0, len(rows), size)
        ]

    @property
    def at_once(self) -> int:
        """Best number of batches to make at once."""
        tokens = self.batch_size * self.rows.row_length
        return min(max(_TOKENS_AT_ONCE // tokens, 1), _BATCHES_AT_ONCE)

    def sequence_indices(self, numbers: range) -> NDArray[np.int64]:
        """Returns int64 (n,)."""
        first, stop = numbers.start * self.batch_size, numbers.stop * self.batch_size
        return self._order.indices(first, stop)

    def epochs_after(self, number: int) -> float:
        """Returns the epochs in `number` batches."""
        return number * self.batch_size / self._order.epoch_length

    @property
    def _order(self) -> SequenceOrder:
        return self.order or ShuffledOrder(len(self.rows), self.seed)


@dataclass(frozen=True)
class EvalBatches:
    """Validation batches; padding sequences have label weight 0.

    Masks, and so losses, don't depend on `batch_size`.
    """

    rows: SequenceSource
    objective: BatchMaker
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __call__(self, number: int) -> Batch:
        first = number * self.batch_size
        real = min(self.batch_size, len(self.rows) - first)
        indices = np.minimum(np.arange(first, first + self.batch_size), len(self.rows) - 1)
        batch = self.objective.batch(self.rows.take(indices), EVAL_SEED, 0, first_row=first)
        batch["label_weights"][real:] = 0.0
        _leave_out_damaged(batch, self.rows, indices)
        return batch


def permute(positions: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permutes an epoch's positions, int64 (n,).

    Source: cycle-walking Feistel network, https://web.cs.ucdavis.edu/~rogaway/papers/subset.pdf,
    methods 2 and 3.
    """
    low_base = isqrt(count - 1) + 1
    high_base = -(-count // low_base)
    keys = _round_keys(seed, epoch)
    values = _feistel(positions.astype(np.uint64), high_base, low_base, keys)
    while (outside := np.flatnonzero(values >= count)).size:
        values[outside] = _feistel(values[outside], high_base, low_base, keys)
    return values.astype(np.int64)


def _leave_out_damaged(batch: Batch, rows: SequenceSource, indices: NDArray[np.int64]) -> None:
    if isinstance(rows, TolerantSequences):
        batch["label_weights"][rows.are_damaged(indices)] = 0.0


@lru_cache(maxsize=8)
def _order(count: int, seed: int, epoch: int, block: int) -> NDArray[np.int64]:
    first = block * _ORDERED_AT_ONCE
    positions = np.arange(first, min(first + _ORDERED_AT_ONCE, count))
    return permute(positions, count, seed, epoch)


class BatchPrefetcher:
    """Makes batches ahead, in order, and measures waiting.

    Ranges for `make` grow to `at_once`: the first batch is ready early.
    """

    def __init__(
        self,
        make: Callable[[range], Sequence[Any]],
        start: int,
        stop: int,
        at_once: int = 1,
        threads: int = 1,
    ) -> None:
        self._make = make
        self._numbers = range(start, stop)
        self._groups = _ever_larger(self._numbers, at_once)
        self._threads = ThreadPoolExecutor(threads, "batches")
        self._coming: deque[Future[tuple[Sequence[Any], Exception | None]]] = deque()
        self._ready: Iterator[Any] = iter(())
        self._failed: Exception | None = None
        self.waited_seconds = 0.0
        for _ in range(_PREFETCHED_GROUPS + threads):
            self._order_some()

    def __enter__(self) -> BatchPrefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        for _ in self._numbers:
            yield self.next()

    def next(self) -> Any:
        """Returns the next batch, or raises `make`'s error."""
        for batch in self._ready:
            return batch
        if self._failed is not None:
            raise self._failed
        started = time.perf_counter()
        batches, self._failed = self._coming.popleft().result()
        self.waited_seconds += time.perf_counter() - started
        self._order_some()
        self._ready = iter(batches)
        return self.next()

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _order_some(self) -> None:
        for numbers in self._groups:
            self._coming.append(self._threads.submit(self._make_some, numbers))
            return

    def _make_some(self, numbers: range) -> tuple[Sequence[Any], Exception | None]:
        try:
            return self._make(numbers), None
        except Exception as error:  # noqa: BLE001  raised by `next`
            if len(numbers) == 1:
                return [], error
        made: list[Any] = []
        for number in numbers:
            batches, failed = self._make_some(range(number, number + 1))
            made += batches
            if failed is not None:
                return made, failed
        return made, None


def _ever_larger(numbers: range, most: int) -> Iterator[range]:
    first, count = numbers.start, 1
    while first < numbers.stop:
        yield range(first, min(first + count, numbers.stop))
        first, count = first + count, min(2 * count, most)


def _feistel(
    values: NDArray[np.uint64], high_base: int, low_base: int, keys: list[np.uint64]
) -> NDArray[np.uint64]:
    high, low = np.divmod(values, np.uint64(low_base))
    for number, key in enumerate(keys):
        if number % 2:
            high = (high + _mix(low ^ key) % np.uint64(high_base)) % np.uint64(high_base)
        else:
            low = (low + _mix(high ^ key) % np.uint64(low_base)) % np.uint64(low_base)
    return high * np.uint64(low_base) + low


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Source: SplitMix64, https://prng.di.unimi.it/splitmix64.c"""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    generator = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    return list(generator.random_raw(_FEISTEL_ROUNDS))
