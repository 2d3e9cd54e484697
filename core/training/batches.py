"""Which rows make batch N, with no state: a batch is a pure function of (shards, seed, number).

The rows of an epoch are visited in the order of a stateless permutation, epoch after epoch without
a seam, and the objective draws its masks from a counter keyed by the same number. A run goes on at
step N by asking for batch N. This module knows nothing of engines or of what the objective does.
"""

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

Batch = dict[str, NDArray]

# The masks of validation are the same in every run.
EVAL_SEED = 0x5EED

_FEISTEL_ROUNDS = 8
_PREFETCHED_GROUPS = 4
# To find out a row's number costs little beside a call of numpy.
_ORDERED_AT_ONCE = 2**13
# More at once gains little, and makes the first of them wait for the last.
_TOKENS_AT_ONCE = 2**19
_BATCHES_AT_ONCE = 64
# That a run's batches are made in: they hold Python's lock for a part of the time.
THREADS = 2


class RowSource(Protocol):
    """Rows of token ids, read by number."""

    @property
    def row_length(self) -> int:
        """Tokens in a row."""

    def __len__(self) -> int:
        """Returns the number of rows."""

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the rows with these numbers, int32 (n, row_length)."""


class Objective(Protocol):
    """What makes a batch of rows into something to learn from."""

    def batch(
        self, rows: NDArray[np.int32], seed: int, step: int | range, *, first_row: int = 0
    ) -> Batch:
        """Returns the arrays of a batch, of which `label_weights` (B, K) says what counts.

        With a range of steps `rows` are as many batches, one for each.
        """


@dataclass(frozen=True)
class RowsSlice:
    """The first `length` rows of others."""

    rows: RowSource
    length: int

    @property
    def row_length(self) -> int:
        """Tokens in a row."""
        return self.rows.row_length

    def __len__(self) -> int:
        return self.length

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the rows with these numbers, int32 (n, row_length)."""
        return self.rows.take(indices)


class TolerantRows:
    """Rows of which a damaged one is replaced, and counted; in batches nothing of it is predicted.

    Args:
        rows: The rows.
        filler_id: Stands in each place of a damaged row.
        report: Hears of each damaged row once: its number and what is wrong with it.
    """

    def __init__(self, rows: RowSource, filler_id: int, report: Callable[[int, str], None]) -> None:
        self.row_length = rows.row_length
        self._rows = rows
        self._filler_id = filler_id
        self._report = report
        self._damaged: set[int] = set()
        self._telling = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the rows with these numbers, int32 (n, row_length)."""
        try:
            return self._rows.take(indices)
        except MissingDataError:  # That is no damage, and nothing to go on with.
            raise
        except ShardError:
            return np.stack([self._take_one(int(index)) for index in indices])

    def are_damaged(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells which of the rows that were taken are damaged, bool (n,)."""
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


def limit_rows(rows: RowSource, most: int | None) -> RowSource:
    """Returns the first `most` rows, or all where that is None or more than there are."""
    return rows if most is None or most >= len(rows) else RowsSlice(rows, most)


@dataclass(frozen=True)
class TrainBatches:
    """The batches of a training run, by number.

    Attributes:
        rows: The training rows; at least one batch of them.
        objective: What is learned from them.
        batch_size: Rows in a batch, over all devices.
        seed: Decides order and masks.
    """

    rows: RowSource
    objective: Objective
    batch_size: int
    seed: int

    def __call__(self, number: int, part: slice = slice(None)) -> Batch:
        """Returns batch `number`, or the part of it that belongs to one of several processes."""
        return self.several(range(number, number + 1), part)[0]

    def several(self, numbers: range, part: slice = slice(None)) -> list[Batch]:
        """Returns the batches with these numbers, or a part of each.

        They are what they are one by one. With small batches most of the time is what a call of
        numpy costs, however little there is to do, and here they share the calls.

        Args:
            numbers: In steps of 1; at least one.
            part: The rows of each batch that belong to one of several processes.
        """
        start, stop, _ = part.indices(self.batch_size)
        indices = self.row_indices(numbers).reshape(len(numbers), -1)[:, start:stop].reshape(-1)
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
        """How many batches are best made at once."""
        tokens = self.batch_size * self.rows.row_length
        return min(max(_TOKENS_AT_ONCE // tokens, 1), _BATCHES_AT_ONCE)

    def row_indices(self, numbers: range) -> NDArray[np.int64]:
        """Returns the numbers of some batches' rows, one after the other, int64 (rows,)."""
        first, stop = numbers.start * self.batch_size, numbers.stop * self.batch_size
        pieces = []
        while first < stop:
            epoch, place = divmod(first, len(self.rows))
            block, within = divmod(place, _ORDERED_AT_ONCE)
            order = _order(len(self.rows), self.seed, epoch, block)
            pieces.append(order[within : within + stop - first])
            first += len(pieces[-1])
        return np.concatenate(pieces)

    def epochs_after(self, number: int) -> float:
        """Returns the passes over the rows that `number` batches come to."""
        return number * self.batch_size / len(self.rows)


@dataclass(frozen=True)
class EvalBatches:
    """All validation rows in order, on masks that never change.

    A row's masks depend on its number alone, not on the batch size, so losses can be compared
    between runs. The last batch is filled up with rows that count nothing.

    Attributes:
        rows: The validation rows.
        objective: With `mlm_probability` 0.15.
        batch_size: Rows in a batch, over all devices.
    """

    rows: RowSource
    objective: Objective
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __call__(self, number: int) -> Batch:
        """Returns batch `number`."""
        first = number * self.batch_size
        real = min(self.batch_size, len(self.rows) - first)
        indices = np.minimum(np.arange(first, first + self.batch_size), len(self.rows) - 1)
        batch = self.objective.batch(self.rows.take(indices), EVAL_SEED, 0, first_row=first)
        batch["label_weights"][real:] = 0.0
        _leave_out_damaged(batch, self.rows, indices)
        return batch


def permute(places: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Maps places in an epoch to row numbers: a permutation of 0..count-1, with no table.

    Args:
        places: int64 (n,), each from 0 to count - 1.
        count: Rows in the epoch.
        seed: Of the run.
        epoch: Each has an order of its own.

    Returns:
        Row numbers, int64 (n,).

    Source: a Feistel network on a domain of two digits a·b ≥ count, walked until the value is in
        range; Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
        https://web.cs.ucdavis.edu/~rogaway/papers/subset.pdf, methods 2 and 3.
    """
    low_base = isqrt(count - 1) + 1
    high_base = -(-count // low_base)
    keys = _round_keys(seed, epoch)
    values = _feistel(places.astype(np.uint64), high_base, low_base, keys)
    while (outside := np.flatnonzero(values >= count)).size:
        values[outside] = _feistel(values[outside], high_base, low_base, keys)
    return values.astype(np.int64)


def _leave_out_damaged(batch: Batch, rows: RowSource, indices: NDArray[np.int64]) -> None:
    """Lets damaged rows count nothing, whatever an objective makes of what stands for them."""
    if isinstance(rows, TolerantRows):
        batch["label_weights"][rows.are_damaged(indices)] = 0.0


@lru_cache(maxsize=8)
def _order(count: int, seed: int, epoch: int, block: int) -> NDArray[np.int64]:
    """Returns the numbers of the rows in some places of an epoch, int64 (places,)."""
    first = block * _ORDERED_AT_ONCE
    places = np.arange(first, min(first + _ORDERED_AT_ONCE, count))
    return permute(places, count, seed, epoch)


class Feeder:
    """Makes batches ahead of need in threads, in order, and measures how long they're waited for.

    Args:
        make: Returns the batches of some numbers, one after the other. What it raises is raised by
            `next`, where the batch that is to blame is asked for.
        start: The first number.
        stop: The number after the last one.
        at_once: Numbers that `make` gets at most; the first is made by itself, so that nobody
            waits for others, and then ever more.
        threads: In how many `make` is called.
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

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        for _ in self._numbers:
            yield self.next()

    def next(self) -> Any:
        """Returns the next batch; waits for it where it isn't ready.

        Raises:
            IndexError: That was the last one.
        """
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
        """Ends the threads; batches made ahead are dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _order_some(self) -> None:
        for numbers in self._groups:
            self._coming.append(self._threads.submit(self._make_some, numbers))
            return

    def _make_some(self, numbers: range) -> tuple[Sequence[Any], Exception | None]:
        """Returns the batches with these numbers; up to the one that can't be made, and why."""
        try:
            return self._make(numbers), None
        except Exception as error:  # noqa: BLE001  it is raised where the batch is asked for
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
    """Cuts numbers into one, two, four, and so on, until there are `most` in each piece."""
    first, count = numbers.start, 1
    while first < numbers.stop:
        yield range(first, min(first + count, numbers.stop))
        first, count = first + count, min(2 * count, most)


def _feistel(
    values: NDArray[np.uint64], high_base: int, low_base: int, keys: list[np.uint64]
) -> NDArray[np.uint64]:
    """Permutes 0..high_base*low_base-1: each round shifts one digit by a hash of the other."""
    high, low = np.divmod(values, np.uint64(low_base))
    for number, key in enumerate(keys):
        if number % 2:
            high = (high + _mix(low ^ key) % np.uint64(high_base)) % np.uint64(high_base)
        else:
            low = (low + _mix(high ^ key) % np.uint64(low_base)) % np.uint64(low_base)
    return high * np.uint64(low_base) + low


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes 64-bit words.

    Source: the finaliser of SplitMix64, https://prng.di.unimi.it/splitmix64.c
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    generator = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    return list(generator.random_raw(_FEISTEL_ROUNDS))
