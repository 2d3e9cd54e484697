"""Reports to an MLflow server (MLFLOW_TRACKING_URI), or to a file store in the workspace."""

from __future__ import annotations

import importlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from core.reporting.feed import Figures
from core.reporting.service import ReportedRun, SafeNames, plain_settings, shorten
from core.workspace.places import make_folder

# Limits of MLflow's API.
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 500
# Nested runs for metrics whose names would be files and folders at once.
_PARENT, _PART = "mlflow.parentRunId", "studio.part"
_STATUS = {"done": "FINISHED", "stopped": "KILLED"}


def _safe(name: str) -> str:
    """Returns a name that MLflow accepts, and that is a path of plain names in its file store."""
    parts = [re.sub(r"[^\w.\- :]", "_", part) for part in name.split("/")]
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


class MlflowService:
    """Sends figures to a run.

    A file store keeps a metric in a file of its name, so that it can't keep both `x` and `x/y` in
    one run; the second goes to a nested run.
    """

    def __init__(self, run: ReportedRun) -> None:
        self._names = SafeNames(_safe)
        address = os.environ.get("MLFLOW_TRACKING_URI") or (run.store / "mlflow").as_uri()
        if address.startswith("file:") or "://" not in address:
            # MLflow 3 asks for consent to its older format.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        if address.startswith("file:"):
            make_folder(run.store)
        tracking = importlib.import_module("mlflow.tracking")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = tracking.MlflowClient(address)
        self.reference = run.reference or self._create(run)
        if run.reference:
            self._client.update_run(self.reference, status="RUNNING")
        self.sends_in_part = address.startswith("file:") or "://" not in address
        self._metrics_of: dict[str, set[str]] = {self.reference: set()}
        if run.reference and self.sends_in_part:
            self._find_metrics()
        self.place = f"run {self.reference} at {address}"

    def _create(self, run: ReportedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        experiment = self._client.create_run(
            self._experiment(name), run_name=run.name, tags={"studio.run": run.id}
        )
        reference = str(experiment.info.run_id)
        params = [
            self._entities.Param(name, shorten(str(value), _LONGEST_PARAM))
            for name, value in plain_settings(run.settings).items()
        ]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(reference, params=params[start : start + _MOST_PARAMS])
        return reference

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            with suppress(Exception):  # Another run has just made it.
                return str(self._client.create_experiment(name))
            experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id)

    def send(self, figures: Sequence[Figures]) -> None:
        metrics: dict[str, list[Any]] = defaultdict(list)
        for step_figures in figures:
            for raw, value in step_figures.values.items():
                name = self._names(raw)
                metric = self._entities.Metric(
                    name, value, int(step_figures.time * 1000), step_figures.step
                )
                metrics[self._run_for(name)].append(metric)
        for run, run_metrics in metrics.items():
            for start in range(0, len(run_metrics), _MOST_METRICS):
                self._client.log_batch(run, metrics=run_metrics[start : start + _MOST_METRICS])

    def finish(self, state: str, results: Figures | None) -> None:
        try:
            if results:
                self.send([results])
        finally:
            for run in self._metrics_of:
                self._client.set_terminated(run, _STATUS.get(state, "FAILED"))

    def _run_for(self, name: str) -> str:
        """Returns the run that keeps a metric."""
        for run, names in self._metrics_of.items():
            if name in names:
                return run
        for run, names in self._metrics_of.items():
            if not self.sends_in_part or not any(_collide(name, sent_name) for sent_name in names):
                names.add(name)
                return run
        run = self._create_nested(len(self._metrics_of) + 1)
        self._metrics_of[run] = {name}
        return run

    def _create_nested(self, part: int) -> str:
        parent = self._client.get_run(self.reference)
        created = self._client.create_run(
            parent.info.experiment_id,
            run_name=f"{parent.info.run_name} ({part})",
            tags={_PARENT: self.reference, _PART: str(part)},
        )
        return str(created.info.run_id)

    def _find_metrics(self) -> None:
        """Finds the metrics that an earlier process has sent, also in nested runs."""
        own = self._client.get_run(self.reference)
        place = f"tags.`{_PARENT}` = '{self.reference}'"
        nested = self._client.search_runs([own.info.experiment_id], place)
        for run in [
            own,
            *sorted(nested, key=lambda nested_run: int(nested_run.data.tags.get(_PART, 0))),
        ]:
            self._metrics_of[str(run.info.run_id)] = set(run.data.metrics)


def _collide(name: str, other: str) -> bool:
    return name.startswith(f"{other}/") or other.startswith(f"{name}/")


def open_run(run: ReportedRun) -> MlflowService:
    return MlflowService(run)
