"""Measures training speed, waiting and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ThroughputMeter:
    """Adds up step times, without pauses."""

    def __init__(
        self, tokens_per_step: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._started: float | None = None
        self._window_seconds = 0.0
        self._window_steps = 0
        self._window_waited = 0.0
        self._waited = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._pauses: dict[str, float] = {}
        self._paused = False

    def start(self, waited_seconds: float = 0.0) -> None:
        """Starts measuring, after compilation."""
        self._started = self._clock()
        self._waited = waited_seconds

    @property
    def running(self) -> bool:
        return self._started is not None

    def count_steps(self, steps: int) -> None:
        """Counts dispatched steps."""
        if self.running:
            self._window_steps += steps

    def read_window(self, waited_seconds: float) -> dict[str, float]:
        """Returns speed and waiting since the last call; the device must be idle."""
        self._collect(waited_seconds)
        if not self._window_steps or self._window_seconds <= 0:
            return {}
        values = {
            "tokens_per_second": self._window_steps * self._tokens_per_step / self._window_seconds,
            "data_wait_percent": min(100.0, 100 * self._window_waited / self._window_seconds),
        }
        self._seconds += self._window_seconds
        self._steps += self._window_steps
        self._window_seconds, self._window_steps, self._window_waited = 0.0, 0, 0.0
        return values

    @contextmanager
    def pause(self, reason: str, waited_seconds: float) -> Iterator[None]:
        """Excludes a pause from the speed."""
        self._collect(waited_seconds)
        started = self._clock()
        self._paused = True
        yield
        self._paused = False
        self._pauses[reason] = self._clock() - started
        if self.running:
            self._started = self._clock()

    def eta_seconds(self, steps_left: int, pauses_left: dict[str, int]) -> float | None:
        """Estimates the seconds left."""
        steps = self._steps + self._window_steps
        if not steps or self._started is None:
            return None
        since = 0.0 if self._paused else self._clock() - self._started
        seconds = self._seconds + self._window_seconds + since
        pauses = sum(self._pauses.get(reason, 0.0) * n for reason, n in pauses_left.items())
        return steps_left * seconds / steps + pauses

    def _collect(self, waited_seconds: float) -> None:
        if self._started is None:
            return
        now = self._clock()
        self._window_seconds += now - self._started
        self._window_waited += waited_seconds - self._waited
        self._started, self._waited = now, waited_seconds
