"""Compares runs: their figures, and the settings in which they differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.errors import ConfigError
from core.runs.duration import run_seconds
from core.runs.resolved import UsedSettings
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

# A spreadsheet would take a text that begins so for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs; each list has one value per run, None where it has none.

    Attributes:
        runs: Ids.
        seconds: Duration of all attempts; a run at work counts until now.
        settings: Only those that differ, by option; `corpus.path` is an option of the corpus. An
            automatic one has the value that the run chose.
        figures: Metrics, results and `cost` in US dollars, by name.
    """

    runs: list[str]
    stages: list[str]
    names: list[str]
    states: list[str]
    seconds: list[float | None]
    settings: dict[str, list[Any]]
    figures: dict[str, list[float | None]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> Iterator[list[Any]]:
        """Yields a table with a header and a row per run.

        A figure with the name of a setting that differs, such as `learning_rate`, is `NAME
        (measured)`.
        """
        columns: dict[str, Sequence[Any]] = {
            "run": self.runs, "stage": self.stages, "name": self.names, "state": self.states,
            "seconds": self.seconds, **self.settings,
        }  # fmt: skip
        for name, values in self.figures.items():
            columns[f"{name} (measured)" if name in columns else name] = values
        yield list(columns)
        yield from ([values[place] for values in columns.values()]
                    for place in range(len(self.runs)))  # fmt: skip

    def to_csv(self) -> str:
        """Returns the table as CSV; texts can't become formulas of a spreadsheet."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in self.rows():
            writer.writerow([_cell(value) for value in row])
        return text.getvalue()


def compare_runs(workspace: Workspace, store: Store, runs: Sequence[str]) -> Comparison:
    """Compares two or more runs, given by their ids or unique beginnings.

    Raises:
        ConfigError: There are fewer than two different runs.
        RunError: A run is unknown.
    """
    rows = list({row.id: row for row in map(store.find_run, runs)}.values())
    return compare_rows(workspace, store, rows)


def compare_rows(workspace: Workspace, store: Store, rows: Sequence[RunRow]) -> Comparison:
    """Compares two or more different runs; raises ConfigError for fewer."""
    if len(rows) < 2:
        raise ConfigError(
            "There is nothing to compare",
            expected="the ids of at least two different runs",
            received=", ".join(row.id for row in rows) or "none",
            fix="list the runs with: python -m core runs list",
            field="runs",
        )
    configs = [UsedSettings(workspace, row).to_dict() for row in rows]
    figures = [_figures(row, store) for row in rows]
    return Comparison(
        runs=[row.id for row in rows],
        stages=[row.stage for row in rows],
        names=[row.title or row.name or "" for row in rows],
        states=[row.state for row in rows],
        seconds=[_seconds(workspace, row) for row in rows],
        settings={name: values for name, values in _columns(configs).items() if _differ(values)},
        figures=_columns(figures),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _figures(row: RunRow, store: Store) -> dict[str, float]:
    cost = {name: row.remote[name] for name in ("cost",) if name in row.remote}
    figures = {**store.latest_metrics(row.id), **row.results, **cost}
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])


def _seconds(workspace: Workspace, row: RunRow) -> float | None:
    seconds = run_seconds(workspace, row)
    return None if seconds is None else round(seconds, 1)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
