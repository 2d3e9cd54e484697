"""Reports parts, bytes and the time left of a pass over a corpus."""

from __future__ import annotations

import time

from core.messages.values import byte_count
from core.records.events import Reporter


class Pace:
    """Progress of one pass.

    Args:
        total: In `unit`; None or 0: unknown.
        parts: Number of parts; 0: unknown.
    """

    def __init__(
        self, reporter: Reporter, title: str, total: int | None, unit: str, parts: int = 0
    ) -> None:
        self._reporter = reporter
        self._title = title
        self._total = total or None
        self._unit = unit
        self._parts = parts
        self._started = time.monotonic()

    def report(self, done: int, parts: int, size_bytes: int) -> None:
        of = f" of {self._parts:,}" if self._parts else ""
        note = f"{self._title}, part {parts:,}{of}, {byte_count(size_bytes)}"
        self._reporter.progress(done, self._total, self._unit, note, self._seconds_left(done))

    def _seconds_left(self, done: int) -> float | None:
        if not self._total or not done:
            return None
        passed = time.monotonic() - self._started
        return max(0.0, passed / done * (self._total - done))
