"""Samples examples of a stream."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from heapq import heappush, heapreplace
from typing import TypeVar

T = TypeVar("T")
_SEED = 0


def sample(items: Iterable[T], count: int) -> Iterator[T]:
    """Yields `count` items at random in their order; always the same ones of as many items.

    Each item gets a random number, and those with the smallest are kept, so a smaller sample is
    part of a larger one. Only the sample is in memory.
    """
    generator = random.Random(_SEED)
    # The largest random number is first.
    smallest: list[tuple[float, int, T]] = []
    for number, item in enumerate(items):
        entry = (-generator.random(), number, item)
        if len(smallest) < count:
            heappush(smallest, entry)
        elif entry[:2] > smallest[0][:2]:
            heapreplace(smallest, entry)
    yield from (item for _, _, item in sorted(smallest, key=lambda drawn: drawn[1]))
