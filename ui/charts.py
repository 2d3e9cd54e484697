"""Data points of a run's curves, drawn by `ui/assets/chart.js`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.store import MetricRow, Store

# Limits of the first answer (all curves) and of later ones.
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
    """Returns a run's metric points above the number `after` (0: all, thinned to `MOST_POINTS`).

    Returns:
        `series` ({name: [[step, value], ...]}), the next `after`, and `more`.
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
