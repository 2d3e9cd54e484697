"""Data points of curves, drawn by `ui/assets/chart.js`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.config.mixture import distinct_names, parse_mixture
from core.errors import ConfigError
from core.runs.curves import Curves, Frame, columns_of, newest_number, words_per_step
from core.store import MetricRow, RunRow, Store
from core.workspace import Workspace

# Limits of the first answer (all curves) and of later ones.
MOST_POINTS = 2000
MOST_NEW_ROWS = 2000
# Limits of one curve in a chart of one run, and of all curves in a chart of several.
MOST_POINTS_PER_CURVE = 1500
MOST_POINTS_PER_CHART = 8000
MOST_RUNS = 20
MOST_NAMES = 64
# A mixture has no more curves than there are colours.
MOST_SOURCES = 10
_FEWEST_POINTS = 200
# Curves that aren't exact are soon drawn anew.
_POINTS_OF_FIRST_CHART = 2500

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
    "cpu_percent",
    "gpu_percent",
    "memory_gib",
    "gpu_memory_gib",
    "pairs_accuracy",
    "pairs_mean_over_phenomena",
    "text_bits_per_byte",
    "evaluation_percent",
)


def mixed_sources(row: RunRow) -> list[str]:
    """Returns the sources of a run's mixture that the page draws."""
    try:
        wanted = parse_mixture(str(row.config.get("mixture") or ""))
    except ConfigError:
        return []  # Its own start reports the error.
    return distinct_names(wanted)[:MOST_SOURCES]


def _names_of(row: RunRow) -> list[str]:
    own = [f"{name}/{source}" for source in mixed_sources(row) for name in ("eval_loss", "epoch")]
    return [*NAMES, *own]


def points_since(
    store: Store, run_id: str, after: int, *, workspace: Workspace | None = None
) -> dict[str, Any]:
    """Returns a run's metric points above the number `after` (0: all, thinned to `MOST_POINTS`).

    Args:
        workspace: Adds the elapsed seconds to each point, and the run's frame.

    Returns:
        `series` ({name: [[step, value, seconds], ...]}), the next `after`, `more`, the names of
        `thinned` curves, and the `frame`.
    """
    row = store.get_run(run_id)
    if row is None:
        return {"series": {}, "after": 0, "more": False, "thinned": [], "frame": {}}
    frame = Frame.of(workspace, row) if workspace else Frame.of_steps()
    measures = {**frame.to_dict(), "words": words_per_step(store, row)}
    if not after:
        return {**_first_points(store, row, frame), "more": False, "frame": measures}
    rows = store.metrics_since(run_id, after, names=_names_of(row), limit=MOST_NEW_ROWS)
    return {
        "series": _series(rows, frame),
        "after": rows[-1].number if rows else after,
        "more": len(rows) >= MOST_NEW_ROWS,
        "thinned": [],
        "frame": measures,
    }


def _first_points(store: Store, row: RunRow, frame: Frame) -> dict[str, Any]:
    # Points that are newer than this number are sent twice.
    names = _names_of(row)
    newest, most = newest_number(store, row.id), MOST_POINTS // len(names)
    curves = Curves(store)
    found = {name: curves.read(row, name, most, exact=False) for name in names}
    return {
        "series": {
            name: [_point(frame, *one) for one in points]
            for name, points in found.items()
            if points
        },
        "after": newest,
        "thinned": [name for name in names if int(row.metric_counts.get(name) or 0) > most],
    }


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
            if found := curves.read(row, name, most, part, exact=exact):
                series.setdefault(row.id, {})[name] = columns_of(found, frame)
    points = sum(len(one["steps"]) for found in series.values() for one in found.values())
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
    if not is_pair or not all(isinstance(one, int | float) for one in steps):
        return None
    return float(steps[0]), float(steps[1])


def _point(frame: Frame, step: int, value: float, time: float) -> list[float]:
    return [step, value, round(frame.elapsed_seconds(time), 1)]


def _series(rows: Iterable[MetricRow], frame: Frame) -> dict[str, list[list[float]]]:
    series: dict[str, list[list[float]]] = {}
    for row in rows:
        series.setdefault(row.name, []).append(_point(frame, row.step, row.value, row.time))
    return series
