"""Computes together what several threads ask for at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from core.inference.packing import Plan, Shape, Size


class Together:
    """Computes together what several threads ask for at the same time.

    Whoever finds nobody computing computes for others who wait, too: as many as make the most of a
    batch. Meanwhile the next ones gather. No one waits for others to come, nor, once his own texts
    are computed, for anything else: he lets the next one compute.

    Args:
        compute: Takes a shape and the texts of each row, and returns an answer for each. It is
            called by one thread at a time.
        plan: Takes the sizes of the texts that wait, and returns a batch, the first one in it.
    """

    def __init__(
        self,
        compute: Callable[[Shape, list[list[Any]]], Sequence[Sequence[Any]]],
        plan: Callable[[list[Size]], Plan],
    ) -> None:
        self._compute = compute
        self._plan = plan
        self._changing = threading.Lock()
        self._is_led = False
        self._waiting: list[_Waiting] = []

    def __call__(self, texts: Sequence[tuple[Size, Any]]) -> list[Any]:
        """Returns an answer for each text."""
        caller = _Caller()
        mine = [_Waiting(size, text, caller) for size, text in texts]
        try:
            with self._changing:
                self._waiting += mine
                if not self._is_led:
                    self._is_led = caller.leads = True
            for one in mine:
                while not one.is_done:
                    if caller.leads:
                        self._compute_batch(*self._take(one))
                    else:
                        caller.wait()
                if one.error is not None:
                    raise one.error
        finally:
            self._leave(caller)
        return [one.answer for one in mine]

    def _leave(self, caller: _Caller) -> None:
        """Drops what a caller will take no answers to, and lets another compute if he did."""
        with self._changing:
            self._waiting = [one for one in self._waiting if one.caller is not caller]
            if not caller.leads:
                return
            self._is_led = bool(self._waiting)
            if self._is_led:
                self._waiting[0].caller.lead()

    def _take(self, first: _Waiting) -> tuple[Shape, list[list[_Waiting]]]:
        """Takes one that waits, and those that go with it."""
        with self._changing:
            waiting = [first, *(one for one in self._waiting if one is not first)]
            plan = self._plan([one.size for one in waiting])
            batch = [[waiting[number] for number in row] for row in plan.rows]
            taken = {id(one) for row in batch for one in row}
            self._waiting = [one for one in self._waiting if id(one) not in taken]
        return plan.shape, batch

    def _compute_batch(self, shape: Shape, batch: list[list[_Waiting]]) -> None:
        every = list(chain.from_iterable(batch))
        try:
            answers = self._compute(shape, [[one.text for one in row] for row in batch])
            for one, answer in zip(every, chain.from_iterable(answers), strict=True):
                one.answer = answer
        except Exception as error:  # noqa: BLE001 -- each of those who wait is told
            for one in every:
                one.error = error
        except BaseException:  # Of this thread alone: the others wait for somebody else.
            with self._changing:
                self._waiting = every + self._waiting
            raise
        for one in every:
            one.is_done = True
            one.caller.tell()


class _Caller:
    """A thread that waits for the answers to its texts.

    Attributes:
        leads: Whether it is the one that computes.
    """

    def __init__(self) -> None:
        self.leads = False
        self._told = threading.Event()

    def lead(self) -> None:
        """Makes it the one that computes."""
        self.leads = True
        self.tell()

    def tell(self) -> None:
        """Lets it look whether something has changed."""
        self._told.set()

    def wait(self) -> None:
        """Waits until it is told that something has changed."""
        self._told.wait()
        self._told.clear()


class _Waiting:
    """A text that waits for its answer."""

    def __init__(self, size: Size, text: Any, caller: _Caller) -> None:
        self.size = size
        self.text = text
        self.caller = caller
        self.answer: Any = None
        self.error: Exception | None = None
        self.is_done = False
