"""Data points of curves, drawn by `ui/assets/chart.js`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from core.errors import ConfigError
from core.runs.curves import Curves, Frame, columns_of, newest_number, words_per_step
from core.store import MetricRow, RunRow, Store
from core.workspace.workspace import Workspace
from ui.parts.run_charts import FIGURES, charts_of

# Limits of the first answer (all curves) and of later ones.
MOST_POINTS = 2000
MOST_NEW_ROWS = 2000
# Limits of one curve in a chart of one run, and of all curves in a chart of several.
MOST_POINTS_PER_CURVE = 1500
MOST_POINTS_PER_CHART = 8000
MOST_RUNS = 20
MOST_NAMES = 64
_FEWEST_POINTS = 200
# Curves that aren't exact are soon drawn anew.
_POINTS_OF_FIRST_CHART = 2500

# Metrics of these stages have the seconds since the start instead of a step.
_WITHOUT_STEPS = ("evaluate",)


def points_since(
    store: Store, run_id: str, after: int, shape: str = "", *, workspace: Workspace | None = None
) -> dict[str, Any]:
    """Returns a run's metric points above the number `after` (0: all, thinned to `MOST_POINTS`).

    Args:
        shape: Identifies the caller's charts; all points come again with other charts.
        workspace: Adds the elapsed seconds to each point, and the run's frame.

    Returns:
        `series` ({name: [[step, value, seconds], ...]}), the next `after`, `more`, the names of
        `thinned` curves, the `frame`, the `shape`, and the `charts` if they are others.
    """
    # Read first: the run knows the names of all metrics up to this number.
    newest = newest_number(store, run_id)
    row = store.get_run(run_id)
    if row is None:
        return {"series": {}, "after": 0, "more": False, "thinned": [], "frame": {}, "shape": ""}
    charts = [chart.to_json() for chart in charts_of(row)]
    now = blake2b(json.dumps(charts).encode(), digest_size=8).hexdigest()
    frame = Frame.of(workspace, row) if workspace else Frame.of_steps()
    known = {"frame": _measures(store, row, frame), "shape": now}
    names = [*(line["name"] for chart in charts for line in chart["lines"]), *FIGURES]
    if not after or shape != now:
        points = _first_points(store, row, frame, names)
        return {**points, **known, "after": newest, "more": False, "charts": charts}
    rows = store.metrics_since(run_id, after, names=names, limit=MOST_NEW_ROWS)
    return {
        "series": _series(rows, frame),
        "after": rows[-1].number if rows else after,
        "more": len(rows) >= MOST_NEW_ROWS,
        "thinned": [],
        **known,
    }


def _measures(store: Store, row: RunRow, frame: Frame) -> dict[str, Any]:
    has_steps = row.stage not in _WITHOUT_STEPS
    return {**frame.to_dict(), "words": words_per_step(store, row), "steps": has_steps}


def _first_points(store: Store, row: RunRow, frame: Frame, names: Sequence[str]) -> dict[str, Any]:
    # Points that are newer than the newest number are sent twice.
    counts = {name: count for name in names if (count := int(row.metric_counts.get(name) or 0))}
    shares, curves = _share_points(counts), Curves(store)
    points_by_name = {name: curves.read(row, name, shares[name], exact=False) for name in counts}
    return {
        "series": {
            name: [_point(frame, *point) for point in points]
            for name, points in points_by_name.items()
            if points
        },
        "thinned": [name for name, count in counts.items() if count > shares[name]],
    }


def _share_points(counts: Mapping[str, int]) -> dict[str, int]:
    """Divides `MOST_POINTS`: short curves get all their points, longer ones equally many."""
    shares: dict[str, int] = {}
    left = MOST_POINTS
    for name in sorted(counts, key=lambda name: counts[name]):
        shares[name] = min(counts[name], max(1, left // (len(counts) - len(shares))))
        left -= shares[name]
    return shares


def curves_of(
    store: Store, curves: Curves, workspace: Workspace, question: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns reduced curves of several runs for one or more charts.

    Args:
        question: `runs`, `names`, `exact`, and `steps` ({run: [first, last]}) for a part of them.

    Returns:
        `series` ({run: {name: {steps, values, seconds}}}), the names of `thinned` curves by run,
        and `points`, their number.
    """
    rows = read_rows(store, question.get("runs"))
    names = [str(name) for name in list(question.get("names") or [])[:MOST_NAMES]]
    exact = bool(question.get("exact", True))
    of_chart = MOST_POINTS_PER_CHART if exact else _POINTS_OF_FIRST_CHART
    most = min(MOST_POINTS_PER_CURVE, max(_FEWEST_POINTS, of_chart // len(rows)))
    ranges = question.get("steps")
    series: dict[str, dict[str, Any]] = {}
    thinned: dict[str, list[str]] = {}
    for row in rows:
        thinned[row.id] = [name for name in names if int(row.metric_counts.get(name) or 0) > most]
        frame = Frame.of(workspace, row)
        part = _range(ranges.get(row.id)) if isinstance(ranges, Mapping) else None
        for name in names:
            if curve_points := curves.read(row, name, most, part, exact=exact):
                series.setdefault(row.id, {})[name] = columns_of(curve_points, frame)
    points = sum(len(curve["steps"]) for of_run in series.values() for curve in of_run.values())
    return {"series": series, "thinned": thinned, "points": points}


def read_rows(store: Store, runs: Any) -> list[RunRow]:
    """Finds the runs of a question; raises ConfigError for none or too many."""
    wanted = [str(run) for run in runs] if isinstance(runs, Sequence) else []
    if not wanted or len(set(wanted)) > MOST_RUNS:
        raise ConfigError(
            "These runs can't be compared",
            expected=f"one to {MOST_RUNS} runs",
            received=f"{len(set(wanted))} runs",
            fix="select fewer runs" if wanted else "select runs in the list",
        )
    return [store.find_run(run) for run in dict.fromkeys(wanted)]


def _range(steps: Any) -> tuple[float, float] | None:
    is_pair = isinstance(steps, Sequence) and len(steps) == 2
    if not is_pair or not all(isinstance(step, int | float) for step in steps):
        return None
    return float(steps[0]), float(steps[1])


def _point(frame: Frame, step: int, value: float, time: float) -> list[float]:
    return [step, value, round(frame.elapsed_seconds(time), 1)]


def _series(rows: Iterable[MetricRow], frame: Frame) -> dict[str, list[list[float]]]:
    series: dict[str, list[list[float]]] = {}
    for row in rows:
        series.setdefault(row.name, []).append(_point(frame, row.step, row.value, row.time))
    return series
