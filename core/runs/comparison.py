"""Compares runs: their figures, and the settings in which they differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.errors import ConfigError
from core.store import RunRow, Store

# These name a run and don't tell it apart.
_NAMES = ("name",)
# A spreadsheet would take a text that begins so for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs; each list has one value per run, None where it has none.

    Attributes:
        runs: Ids.
        settings: Only those that differ, by option; `corpus.path` is an option of the corpus.
        figures: Metrics and results, by name.
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
        """Yields a table with a header and a row per run."""
        columns: dict[str, Sequence[Any]] = {
            "run": self.runs, "stage": self.stages, "name": self.names, "state": self.states,
            "seconds": self.seconds, **self.settings, **self.figures,
        }  # fmt: skip
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


def compare_runs(store: Store, runs: Sequence[str]) -> Comparison:
    """Compares two or more runs, given by their ids or unique beginnings.

    Raises:
        ConfigError: There are fewer than two different runs.
        RunError: A run is unknown.
    """
    rows = list({row.id: row for row in map(store.find_run, runs)}.values())
    return compare_rows(store, rows)


def compare_rows(store: Store, rows: Sequence[RunRow]) -> Comparison:
    """Compares two or more different runs; raises ConfigError for fewer."""
    if len(rows) < 2:
        raise ConfigError(
            "There is nothing to compare",
            expected="the ids of at least two different runs",
            received=", ".join(row.id for row in rows) or "none",
            fix="list the runs with: python -m core runs list",
            field="runs",
        )
    configs = [dict(flat_config(row.config)) for row in rows]
    figures = [_figures(row, store) for row in rows]
    return Comparison(
        runs=[row.id for row in rows],
        stages=[row.stage for row in rows],
        names=[row.title or row.name or "" for row in rows],
        states=[row.state for row in rows],
        seconds=[_seconds(row) for row in rows],
        settings={name: values for name, values in _columns(configs).items() if _differ(values)},
        figures=_columns(figures),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def flat_config(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a config and their values; `corpus.path` is an option of the corpus."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_config(value, f"{before}{name}.")
        elif before or name not in _NAMES:
            yield f"{before}{name}", value


def _figures(row: RunRow, store: Store) -> dict[str, float]:
    found = {**store.latest_metrics(row.id), **row.results}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])


def _seconds(row: RunRow) -> float | None:
    if row.started is None or row.ended is None:
        return None
    return round(row.ended - row.started, 1)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
