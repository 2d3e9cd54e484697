"""Comparison of several runs in the Runs tab: curves, settings that differ, figures and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.config.metrics import is_share, quality_direction, unit_of
from core.errors import ConfigError
from core.finetuning.names import RANDOM_INIT
from core.report.titles import in_order, metric_title
from core.runs.comparison import compare_rows
from core.runs.curves import Curves, Frame, words_per_step
from core.runs.duration import run_seconds
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from ui import charts
from ui.parts.labels import title_of_option
from ui.parts.run_rows import label_of, title_of
from ui.present import answering

# Drawn if it is the same for all runs that have it.
_LEVEL = "frequency_baseline_loss"
_SAME_NATS = 1e-3
_NO_CURVES = (_LEVEL, "epoch")
# Curves of validations and evaluations, whose points are few and exact.
_EVALUATED = ("eval_", "pairs_", "text_", "evaluation_")
_BASELINES = (_LEVEL, "majority_", RANDOM_INIT)

Answer = Callable[..., dict[str, Any]]


def comparison_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def compared_runs(question: dict[str, Any]) -> dict[str, Any]:
        """Returns the runs with their frames, the names of their curves, and the table."""
        rows = charts.read_rows(store, question.get("runs"))
        _check_several(rows)
        comparison = compare_rows(workspace, store, rows)
        return {
            "runs": [_described(row, workspace, store) for row in rows],
            "curves": [_chart(name) for name in _curves_of(rows)],
            "baseline": _common_baseline(rows, store),
            "settings": [
                [title_of_option(name), values] for name, values in comparison.settings.items()
            ],
            "figures": [
                [
                    metric_title(name),
                    comparison.figures[name],
                    _best(name, comparison.figures[name]),
                    is_share(name),
                ]
                for name in in_order(comparison.figures)
            ],
        }

    return compared_runs


def curves_function(workspace: Workspace, store: Store) -> Answer:
    curves = Curves(store)

    @answering
    def run_curves(question: dict[str, Any]) -> dict[str, Any]:
        return charts.curves_of(store, curves, workspace, question)

    return run_curves


def table_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def comparison_table(question: dict[str, Any]) -> dict[str, Any]:
        rows = charts.read_rows(store, question.get("runs"))
        text = compare_rows(workspace, store, rows).to_csv()
        return {"name": f"comparison-of-{len(rows)}-runs.csv", "text": text}

    return comparison_table


def _check_several(rows: list[RunRow]) -> None:
    if len(rows) < 2:
        raise ConfigError(
            "There is nothing to compare",
            expected="at least two different runs",
            received=", ".join(row.id for row in rows),
            fix="select two or more runs in the list",
        )


def _curves_of(rows: list[RunRow]) -> list[str]:
    return in_order(name for row in rows for name in row.metric_counts if name not in _NO_CURVES)


def _common_baseline(rows: list[RunRow], store: Store) -> float | None:
    levels = [store.latest_metrics(row.id, (_LEVEL,)).get(_LEVEL) for row in rows]
    known = [value for value in levels if value is not None]
    is_common = bool(known) and max(known) - min(known) < _SAME_NATS
    return known[0] if is_common else None


def _chart(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": metric_title(name),
        "unit": unit_of(name),
        "share": is_share(name),
        "dots": name.removeprefix(RANDOM_INIT).startswith(_EVALUATED),
        "smooth": name != "learning_rate",
        "floor": None if name.endswith(("loss", "perplexity")) else 0,
    }


def _best(name: str, values: Sequence[float | None]) -> list[int]:
    """Returns the positions of the best value of a metric that has a direction."""
    known = [value for value in values if value is not None]
    direction = None if name.startswith(_BASELINES) else quality_direction(name)
    if len(set(known)) < 2 or direction is None:
        return []
    best = min(known) if direction == "minimize" else max(known)
    return [place for place, value in enumerate(values) if value == best]


def _described(row: RunRow, workspace: Workspace, store: Store) -> dict[str, Any]:
    return {
        "id": row.id,
        "title": title_of(row),
        "name": row.title or row.name or row.id,
        "state": row.state,
        "label": label_of(row),
        "is_active": not row.has_ended,
        "seconds": run_seconds(workspace, row),
        **Frame.of(workspace, row).to_dict(),
        "words": words_per_step(store, row),
    }
