"""Reports to an MLflow server (MLFLOW_TRACKING_URI), or to a file store in the workspace."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from core.reporting.feed import Figures
from core.reporting.service import ReportedRun, plain_settings, shorten
from core.workspace.places import make_folder

# Limits of MLflow's API.
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 500
_STATUS = {"done": "FINISHED", "stopped": "KILLED"}


class MlflowService:
    def __init__(self, run: ReportedRun) -> None:
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
        found = self._client.get_experiment_by_name(name)
        if found is None:
            with suppress(Exception):  # Another run has just made it.
                return str(self._client.create_experiment(name))
            found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def send(self, figures: Sequence[Figures]) -> None:
        metrics = [
            self._entities.Metric(name, value, int(one.time * 1000), one.step)
            for one in figures
            for name, value in one.values.items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self.reference, metrics=metrics[start : start + _MOST_METRICS])

    def finish(self, state: str, results: Figures | None) -> None:
        if results:
            self.send([results])
        self._client.set_terminated(self.reference, _STATUS.get(state, "FAILED"))


def open_run(run: ReportedRun) -> MlflowService:
    return MlflowService(run)
