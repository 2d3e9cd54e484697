"""Reports to Weights & Biases, or to its files on this machine (WANDB_MODE=offline)."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.reporting.feed import Figures
from core.reporting.service import ReportedRun, SafeNames, plain_settings
from core.workspace.places import make_folder

# W&B's own step must rise, and a resumed run may repeat steps.
_STEP = "step"


def _safe(name: str) -> str:
    """Returns a name that isn't W&B's own."""
    return f"{name}_" if name == _STEP else re.sub(r"^_+|^$", "metric_", name)


class WandbService:
    sends_in_part = False

    def __init__(self, run: ReportedRun) -> None:
        self._names = SafeNames(_safe)
        self._wandb: Any = importlib.import_module("wandb")
        self.reference = run.id
        self._run = self._init(run, self._folder(run))
        self._run.define_metric("*", step_metric=_STEP)
        place = Path(self._run.dir).parent
        offline = f"kept on this machine; to send it: wandb sync {place}"
        self.place = offline if self._run.settings._offline else str(self._run.url)

    def _init(self, run: ReportedRun, folder: str) -> Any:
        settings = self._wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True,
            x_save_requirements=False,
        )  # fmt: skip
        known: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT") or run.project,
            "id": run.id,
            "name": run.name,
            "config": plain_settings(run.settings),
            "dir": folder,
            "resume": "allow",
            "settings": settings,
        }
        try:
            return self._wandb.init(**known)
        except self._wandb.errors.UsageError:
            # Nobody is logged in.
            return self._wandb.init(mode="offline", **known)

    def _folder(self, run: ReportedRun) -> str:
        folder = os.environ.get("WANDB_DIR") or str(run.store)
        make_folder(Path(folder))
        return folder

    def send(self, figures: Sequence[Figures]) -> None:
        for step_figures in figures:
            self._run.log({_STEP: step_figures.step, **self._named(step_figures)})

    def finish(self, state: str, results: Figures | None) -> None:
        try:
            if results:
                self._run.summary.update(self._named(results))
        finally:
            self._run.finish(exit_code=0 if state in ("done", "stopped") else 1)

    def _named(self, figures: Figures) -> dict[str, float]:
        return {self._names(name): value for name, value in figures.values.items()}


def open_run(run: ReportedRun) -> WandbService:
    return WandbService(run)
