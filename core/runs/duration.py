"""Measures run time without pauses between attempts."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from core.records.events import read_attempts
from core.records.folder import RunFolder
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.store import RunRow


def earlier_seconds(workspace: Workspace, row: RunRow) -> float:
    """Returns the duration of earlier attempts, in seconds."""
    if row.attempt < 2 or not row.started:
        return 0.0
    return _seconds_before(RunFolder.of(workspace, row.id).events, row.started)


def run_seconds(workspace: Workspace, row: RunRow) -> float | None:
    """Returns the duration in seconds, without pauses; None before the first start."""
    if not row.started:
        # A requeued run keeps the time of its earlier attempts.
        return _logged_seconds(RunFolder.of(workspace, row.id).events) or None
    until = row.ended or time.time()
    return max(0.0, until - row.started) + earlier_seconds(workspace, row)


def logged_seconds(folder: RunFolder) -> float | None:
    """Measures the duration in seconds from the run folder alone."""
    attempts = read_attempts(folder.events)
    if not attempts:
        return None
    began, ended = attempts[-1]
    exited = (folder.read_exit() or {}).get("time") or 0.0
    return sum(last - first for first, last in attempts[:-1]) + max(ended, exited) - began


def attempt_spans(workspace: Workspace, row: RunRow) -> tuple[tuple[float, float], ...]:
    """Returns the first and last unix second of each attempt; the last one may go on."""
    until = row.ended or float("inf")
    if row.attempt < 2:
        return ((row.started, until),) if row.started else ()
    events = RunFolder.of(workspace, row.id).events
    earlier = _spans_before(events, row.started or until)
    return (*earlier, (row.started, until)) if row.started else earlier


def _logged_seconds(events: Path) -> float:
    return sum(last - first for first, last in read_attempts(events))


@lru_cache(maxsize=1024)
def _spans_before(events: Path, started: float) -> tuple[tuple[float, float], ...]:
    """Reads the spans of earlier attempts, cached as they no longer change."""
    return tuple(span for span in read_attempts(events) if span[0] < started)


@lru_cache(maxsize=1024)
def _seconds_before(events: Path, started: float) -> float:
    """Sums earlier attempts, cached as they no longer change."""
    return sum(last - first for first, last in read_attempts(events) if first < started)
