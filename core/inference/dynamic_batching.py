"""Batches concurrent requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from core.inference.packing import BatchPlan, Shape, Size


class DynamicBatcher:
    """Dynamic batching across threads: one caller leads a batch, then hands over in FIFO order.

    No caller waits for requests to arrive, nor once its own texts are computed. A call's n-th text
    queues as if from n - 1 calls later.

    Args:
        compute: Takes a shape and each sequence's texts; one thread at a time calls it.
        plan: Must plan the first text.
    """

    def __init__(
        self,
        compute: Callable[[Shape, list[list[Any]]], Sequence[Sequence[Any]]],
        plan: Callable[[list[Size]], BatchPlan],
    ) -> None:
        self._compute = compute
        self._plan = plan
        self._changing = threading.Lock()
        self._calls = 0
        self._leader: _Caller | None = None
        self._waiting: list[_Waiting] = []

    def __call__(self, texts: Sequence[tuple[Size, Any]]) -> list[Any]:
        caller = _Caller()
        try:
            own_texts = self._enter(caller, texts)
            for waiting_text in own_texts:
                while not waiting_text.is_done:
                    if self._leader is caller:
                        self._compute_batch()
                        self._pass_on()
                    else:
                        caller.wait()
                if waiting_text.error is not None:
                    raise waiting_text.error
        finally:
            self._leave(caller)
        return [waiting_text.answer for waiting_text in own_texts]

    def _enter(self, caller: _Caller, texts: Sequence[tuple[Size, Any]]) -> list[_Waiting]:
        with self._changing:
            self._calls += 1
            own_texts = [
                _Waiting(size, text, caller, self._calls + number)
                for number, (size, text) in enumerate(texts)
            ]
            self._line_up(own_texts)
            self._leader = self._leader or caller
        return own_texts

    def _leave(self, caller: _Caller) -> None:
        with self._changing:
            self._waiting = [
                waiting_text for waiting_text in self._waiting if waiting_text.caller is not caller
            ]
        if self._leader is caller:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._changing:
            self._leader = self._waiting[0].caller if self._waiting else None
            if self._leader is not None:
                self._leader.tell()

    def _line_up(self, texts: Iterable[_Waiting]) -> None:
        every = {id(waiting_text): waiting_text for waiting_text in (*self._waiting, *texts)}
        self._waiting = sorted(every.values(), key=lambda waiting_text: waiting_text.turn)

    def _compute_batch(self) -> None:
        every: list[_Waiting] = []
        try:
            shape, batch = self._take(every)
            try:
                answers = self._compute(
                    shape, [[waiting_text.text for waiting_text in row] for row in batch]
                )
                for waiting_text, answer in zip(every, chain.from_iterable(answers), strict=True):
                    waiting_text.answer = answer
            except Exception as error:  # noqa: BLE001 -- each waiting caller gets it
                for waiting_text in every:
                    waiting_text.error = error
            for waiting_text in every:
                waiting_text.is_done = True
        except BaseException:  # Another thread leads the others' texts.
            with self._changing:
                self._line_up(waiting_text for waiting_text in every if not waiting_text.is_done)
            raise
        finally:
            for waiting_text in every:
                waiting_text.caller.tell()

    def _take(self, every: list[_Waiting]) -> tuple[Shape, list[list[_Waiting]]]:
        """Removes the next batch; notes its texts in `every` first."""
        with self._changing:
            plan = self._plan([waiting_text.size for waiting_text in self._waiting])
            batch = [[self._waiting[number] for number in row] for row in plan.rows]
            every += chain.from_iterable(batch)
            batch_ids = set(map(id, every))
            self._waiting = [
                waiting_text for waiting_text in self._waiting if id(waiting_text) not in batch_ids
            ]
        return plan.shape, batch


class _Caller:
    def __init__(self) -> None:
        self._told = threading.Event()

    def tell(self) -> None:
        self._told.set()

    def wait(self) -> None:
        self._told.wait()
        self._told.clear()


class _Waiting:
    def __init__(self, size: Size, text: Any, caller: _Caller, turn: int) -> None:
        self.size = size
        self.text = text
        self.caller = caller
        self.turn = turn
        self.answer: Any = None
        self.error: Exception | None = None
        self.is_done = False
