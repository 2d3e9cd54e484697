"""Reports to trackio: its local store, or a Space (TRACKIO_SPACE_ID)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from core.reporting.feed import Figures
from core.reporting.service import ReportedRun, SafeNames, plain_settings

_RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")


def _safe(name: str) -> str:
    return f"{name}_" if name in _RESERVED else re.sub(r"^_+|^$", "metric_", name)


class TrackioService:
    sends_in_part = False

    def __init__(self, run: ReportedRun) -> None:
        self._names = SafeNames(_safe)
        self._trackio: Any = importlib.import_module("trackio")
        self.reference = run.reference or run.name
        # Its own figures would be those of this process.
        self._run = self._trackio.init(
            project=run.project,
            name=self.reference,
            config=plain_settings(run.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.place = f"trackio show --project {run.project}"

    def send(self, figures: Sequence[Figures]) -> None:
        for step_figures in figures:
            values = {self._names(name): value for name, value in step_figures.values.items()}
            self._run.log(values, step=step_figures.step)

    def finish(self, state: str, results: Figures | None) -> None:
        # It has no summary.
        try:
            if results:
                self.send([results])
        finally:
            self._trackio.finish()


def open_run(run: ReportedRun) -> TrackioService:
    return TrackioService(run)
