"""The figures behind a run's curves: all of them at first, thinned; then only what is new.

The drawing is done in the browser (`ui/assets/chart.js`), on a canvas of our own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.store import MetricRow, Store

# Most points of a first answer, over all curves, and of each later one.
MOST_POINTS = 2000
MOST_NEW_ROWS = 2000

NAMES = (
    "loss",
    "eval_loss",
    "frequency_baseline_loss",
    "learning_rate",
    "tokens_per_second",
    "eval_accuracy",
    "eval_perplexity",
    "data_wait_percent",
    "epoch",
)


def points_since(store: Store, run_id: str, after: int) -> dict[str, Any]:
    """Returns a run's points of events with a number above `after`.

    Args:
        store: The database.
        run_id: The run.
        after: The `after` of the last answer; 0 asks for everything, thinned to `MOST_POINTS`.

    Returns:
        `series` ({name: [[step, value], ...]}), `after` to go on from, and whether there is `more`.
    """
    if not after:
        curves, newest = store.sample_metrics(run_id, NAMES, MOST_POINTS // len(NAMES))
        return {"series": curves, "after": newest, "more": False}
    rows = store.metrics_since(run_id, after, names=NAMES, limit=MOST_NEW_ROWS)
    return {
        "series": _series(rows),
        "after": rows[-1].number if rows else after,
        "more": len(rows) >= MOST_NEW_ROWS,
    }


def _series(rows: Iterable[MetricRow]) -> dict[str, list[tuple[int, float]]]:
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        series.setdefault(row.name, []).append((row.step, row.value))
    return series
