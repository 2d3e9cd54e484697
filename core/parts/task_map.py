"""The interface of process pools and clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class TaskMap(Protocol):
    """Applies a function of a module to items, yielding results in order."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]: ...
