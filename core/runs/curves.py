"""Reduces the curves of runs to few points, and measures them by steps, tokens, time and cost."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy import func as sql
from sqlalchemy.orm import Session

from core.runs.duration import attempt_spans
from core.store import MetricRow, RunRow, Store
from core.workspace.workspace import Workspace

MOST_CURVES_KEPT = 512
_DIGITS = 7
_SECONDS_PER_HOUR = 3600.0

Point = tuple[int, float, float]


@dataclass(frozen=True)
class Frame:
    """Measures of a run, to draw its curves by tokens, time or cost.

    Attributes:
        tokens_per_step: None if unknown.
        price_per_hour: In US dollars; None if unknown.
        spans: First and last unix second of each attempt.
    """

    tokens_per_step: float | None
    price_per_hour: float | None
    spans: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, workspace: Workspace, row: RunRow) -> Frame:
        return cls(tokens_per_step(row), price_per_hour(row), attempt_spans(workspace, row))

    @classmethod
    def of_steps(cls) -> Frame:
        """Returns a frame without measures."""
        return cls(None, None, ())

    def elapsed_seconds(self, time: float) -> float:
        """Returns the seconds that the run had been active by a unix second."""
        seconds = 0.0
        for first, last in self.spans:
            if time >= first:
                seconds += min(time, last) - first
        return seconds

    def to_dict(self) -> dict[str, float | None]:
        return {"tokens": self.tokens_per_step, "price": self.price_per_hour}


def tokens_per_step(row: RunRow) -> float | None:
    """Returns the tokens of a training step; older runs know them only at their end."""
    if row.tokens_per_step:
        return row.tokens_per_step
    tokens, steps = row.results.get("tokens"), row.results.get("num_train_steps")
    if isinstance(tokens, int | float) and isinstance(steps, int | float) and steps > 0:
        return tokens / steps
    return None


def words_per_step(store: Store, row: RunRow) -> float | None:
    """Returns the words of a training step; known once the run has been evaluated."""
    seen = store.latest_metrics(row.id, ("tokens_seen", "words_seen"))
    tokens, words = tokens_per_step(row), seen.get("words_seen")
    if not tokens or not words or not seen.get("tokens_seen"):
        return None
    return tokens * words / seen["tokens_seen"]


def price_per_hour(row: RunRow) -> float | None:
    """Returns the price of a run's machine in US dollars, or None."""
    price = row.remote.get("price_per_hour") or row.config.get("price_per_hour")
    return float(price) if isinstance(price, int | float) else None


def newest_number(store: Store, run_id: str) -> int:
    """Returns the number of a run's newest metric, or 0."""
    query = select(sql.max(MetricRow.number)).where(MetricRow.run_id == run_id)
    with store.session() as session:
        return session.scalar(query) or 0


class Curves:
    """Reads reduced curves, and keeps those that were asked for last. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[Any, ...], list[Point]] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self,
        row: RunRow,
        name: str,
        most: int,
        steps: tuple[float, float] | None = None,
        *,
        exact: bool = True,
    ) -> list[Point]:
        """Returns at most `most` points (step, value, unix second) of a metric.

        Args:
            steps: First and last step; a point before and one after them are included.
            exact: Keep the lowest and the highest value of each bucket; otherwise take points at
                equal distances, which needs no pass over all points.
        """
        count = int(row.metric_counts.get(name) or 0)
        if not count:
            return []
        key = (row.id, row.event_number, count, row.attempt, name, most, steps, exact)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        points = self._query(row.id, name, count, most, steps, exact=exact)
        with self._lock:
            self._kept[key] = points
            while len(self._kept) > MOST_CURVES_KEPT:
                self._kept.popitem(last=False)
        return points

    def _query(
        self,
        run: str,
        name: str,
        count: int,
        most: int,
        steps: tuple[float, float] | None,
        *,
        exact: bool,
    ) -> list[Point]:
        with self._store.session() as session:
            first, last = 0, count - 1
            if steps is not None:
                first = max(0, _points_before(session, run, name, count, steps[0]) - 1)
                last = min(last, _points_before(session, run, name, count, steps[1]))
            if last - first + 1 <= most:
                wanted = MetricRow.point.between(first, last)
                return _points(session, run, name, wanted)
            if exact:
                return _extremes(session, run, name, first, last, most)
            stride = -(-(last - first + 1) // most)
            return _points(session, run, name, MetricRow.point.in_(range(last, -1, -stride)))


def _points_before(session: Session, run: str, name: str, count: int, step: float) -> int:
    """Counts the points below a step: steps ascend with points, so few of them are read."""
    of_run = (MetricRow.run_id == run, MetricRow.name == name)

    def step_of(point: int) -> float:
        query = select(MetricRow.step).where(*of_run, MetricRow.point == point)
        return float(session.scalar(query) or 0)

    return bisect_right(range(count), step, key=step_of)


def _points(session: Session, run: str, name: str, wanted: ColumnElement[bool]) -> list[Point]:
    query = (
        select(MetricRow.step, MetricRow.value, MetricRow.time)
        .where(MetricRow.run_id == run, MetricRow.name == name, wanted)
        .order_by(MetricRow.point)
    )
    return [(int(step), float(value), float(time)) for step, value, time in session.execute(query)]


def _extremes(
    session: Session, run: str, name: str, first: int, last: int, most: int
) -> list[Point]:
    """Selects the lowest and the highest point of each bucket, and the last point."""
    buckets = max(1, (most - 1) // 2)
    bucket = (MetricRow.point - first) * buckets // (last - first + 1)
    ranked = (
        select(
            MetricRow.point,
            MetricRow.step,
            MetricRow.value,
            MetricRow.time,
            sql.row_number().over(partition_by=bucket, order_by=MetricRow.value).label("low"),
            sql.row_number()
            .over(partition_by=bucket, order_by=MetricRow.value.desc())
            .label("high"),
        )
        .where(
            MetricRow.run_id == run, MetricRow.name == name, MetricRow.point.between(first, last)
        )
        .subquery()
    )
    query = (
        select(ranked.c.step, ranked.c.value, ranked.c.time)
        .where(or_(ranked.c.low == 1, ranked.c.high == 1, ranked.c.point == last))
        .order_by(ranked.c.point)
    )
    return [(int(step), float(value), float(time)) for step, value, time in session.execute(query)]


def columns_of(points: Sequence[Point], frame: Frame) -> dict[str, list[float]]:
    """Returns steps, values and elapsed seconds of points, rounded for the network."""
    return {
        "steps": [step for step, _, _ in points],
        "values": [float(f"{value:.{_DIGITS}g}") for _, value, _ in points],
        "seconds": [round(frame.elapsed_seconds(time), 1) for _, _, time in points],
    }
