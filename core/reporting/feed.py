"""Reads a run's figures from its events, each once."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import StudioError
from core.foreign_files import parse_bounded_json, read_regular
from core.records.events import read_events
from core.records.folder import RunFolder
from core.workspace.atomic import write_atomically

_MOST_BYTES = 1 << 20


@dataclass
class Progress:
    """Place of a reporter in the events.

    Attributes:
        number: Number of the last event that was sent.
        reference: The service's own id of the run.
        alerts: Messages about alerts.
    """

    number: int = 0
    reference: str = ""
    alerts: int = 0


@dataclass(frozen=True)
class Figures:
    """Metrics of one event; `time` in unix seconds."""

    step: int
    time: float
    values: dict[str, float]


@dataclass
class Feed:
    """Events that weren't sent yet; the place is kept in `report-SERVICE.json`."""

    folder: RunFolder
    service: str
    progress: Progress = field(default_factory=Progress)
    unsent: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _known: dict[str, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with suppress(StudioError, ValueError, TypeError, RecursionError):
            self.progress = Progress(**parse_bounded_json(read_regular(self._path, _MOST_BYTES)))

    @property
    def _path(self) -> Path:
        return self.folder.path / f"report-{self.service}.json"

    def read(self) -> None:
        """Reads new events."""
        events, self._offset = read_events(self.folder.events, self._offset)
        for event in events:
            if event["n"] > self.progress.number:
                self.unsent.append(event)
            else:  # An earlier process has sent it.
                self._remember(self.figures_of(event))

    def figures_of(self, event: dict[str, Any]) -> Figures | None:
        """Returns the figures of an event that weren't sent before.

        A resumed run repeats steps, with equal figures.
        """
        if event["kind"] != "metrics" or type(event.get("step")) is not int:
            return None
        return self._unsent_of(event["step"], event, event.get("values"))

    def results_of(self, event: dict[str, Any]) -> Figures | None:
        """Returns the results of a `finished` event as figures of the last step.

        Without those that the last step has already.
        """
        step = max((step for steps in self._known.values() for step in steps), default=0)
        return self._unsent_of(step, event, event.get("results"))

    def _unsent_of(self, step: int, event: dict[str, Any], values: Any) -> Figures | None:
        unsent = {
            name: value
            for name, value in _numbers(values).items()
            if self._known.get(name, {}).get(step) != value
        }
        return Figures(step, float(event["t"]), unsent) if unsent else None

    def _remember(self, figures: Figures | None) -> None:
        if figures is None:
            return
        for name, value in figures.values.items():
            self._known.setdefault(name, {})[figures.step] = value

    def mark_sent(self, count: int) -> None:
        """Drops the first events; keeps the place, in memory only if the disk is full."""
        sent, self.unsent = self.unsent[:count], self.unsent[count:]
        if not sent:
            return
        for event in sent:
            self._remember(self.figures_of(event))
        self.progress.number = sent[-1]["n"]
        with suppress(OSError):
            write_atomically(self._path, json.dumps(vars(self.progress)) + "\n")


def _numbers(values: Any) -> dict[str, float]:
    """Returns the finite numbers among an event's values."""
    numbers = {}
    for name, value in dict(values or {}).items():
        with suppress(OverflowError):  # An integer beyond any float.
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and math.isfinite(value):
                numbers[str(name)] = float(value)
    return numbers
