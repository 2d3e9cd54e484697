"""Describes sweeps: state, budget, trials and the best one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.config.base import StageConfig
from core.errors import RunError
from core.stages.registry import find_stage
from core.store import RunRow, Store
from core.sweeps import budget
from core.sweeps.folder import SweepFolder, SweepRecord, Trial
from core.workspace.workspace import Workspace

_MOST_REMEMBERED = 256


def describe_sweep(workspace: Workspace, store: Store, name: str) -> dict[str, Any]:
    """Returns the JSON of `sweep show`; raises RunError."""
    folder = SweepFolder.find(workspace, name)
    record, trials = folder.read_record(), folder.read_trials()
    rows = {trial.run: store.get_run(trial.run) for trial in trials if trial.is_open}
    for trial in trials:
        if row := rows.get(trial.run):
            budget.measure(trial, row, workspace)
    config, best = record.config, best_trial(record, trials)
    spent = budget.add_up(trials)
    return {
        **summary_of(folder, record, trials),
        "seed": config.seed,
        "pruner": config.pruner,
        "parallel": config.parallel,
        "target": config.base.get("target") or None,
        "budget": {name: getattr(config, name) for name in ("max_runs", "max_hours", "max_cost")},
        "spent": {"runs": spent.runs, "hours": round(spent.hours, 6), "cost": spent.cost},
        "options": config.options,
        "base": config.base,
        "trials": [_trial(trial, rows.get(trial.run), config.metric, store) for trial in trials],
        "best_settings": dict(best.settings) if best else None,
        "error": folder.read_state().error,
    }


def list_sweeps(workspace: Workspace) -> list[dict[str, Any]]:
    """Lists sweeps, newest first; a damaged one has its error."""
    sweeps = []
    for folder in SweepFolder.list(workspace):
        try:
            sweeps.append(summary_of(folder, folder.read_record(), folder.read_trials()))
        except RunError as error:
            sweeps.append({"sweep": folder.name, "state": "damaged", "error": error.to_dict()})
    return sweeps


def summary_of(folder: SweepFolder, record: SweepRecord, trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns a sweep's state and best trial."""
    config, state, best = record.config, folder.read_state(), best_trial(record, trials)
    is_gone = state.state == "running" and not folder.is_driven()
    return {
        "sweep": folder.name,
        "state": "interrupted" if is_gone else state.state,
        "reason": state.reason,
        "stage": config.stage,
        "method": config.method,
        "metric": config.metric,
        "direction": config.goal,
        "created": record.created,
        "ended": state.ended,
        "counts": dict(Counter(trial.state for trial in trials)),
        "best": best.number if best else None,
        "best_value": best.value if best else None,
        "best_run": best.run if best else None,
    }


def best_trial(record: SweepRecord, trials: Sequence[Trial]) -> Trial | None:
    """Returns the best finished trial; the first one of equals."""
    finished = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    sign = 1 if record.config.goal == "minimize" else -1
    return min(finished, key=lambda trial: sign * (trial.value or 0.0), default=None)


def list_surpassed_runs(workspace: Workspace) -> set[str]:
    """Returns the runs of all trials but each sweep's best one; leaves out damaged sweeps."""
    surpassed: set[str] = set()
    for folder in SweepFolder.list(workspace):
        with suppress(RunError, OSError):
            surpassed |= _surpassed_in(folder.path, (folder.path / "trials").stat().st_mtime_ns)
    return surpassed


@lru_cache(maxsize=_MOST_REMEMBERED)
def _surpassed_in(path: Path, _changed: int) -> frozenset[str]:
    """Returns a sweep's surpassed runs; reads them again when its folder of trials has changed."""
    folder = SweepFolder(path)
    trials = folder.read_trials()
    best = best_trial(folder.read_record(), trials)
    return frozenset(trial.run for trial in trials if trial is not best)


def config_of_trial(workspace: Workspace, name: str, number: int) -> tuple[str, StageConfig]:
    """Returns the stage and the config of a trial, without its name; raises RunError."""
    folder = SweepFolder.find(workspace, name)
    record = folder.read_record()
    trial = next((trial for trial in folder.read_trials() if trial.number == number), None)
    if trial is None:
        raise RunError(
            f"The sweep {name} has no trial {number}",
            expected="the number of a trial",
            received=str(number),
            fix=f"list the trials with: studio sweep show {name}",
        )
    values = {**record.config.base, **trial.settings}
    return record.config.stage, find_stage(record.config.stage).config.parse(values)


def _trial(trial: Trial, row: RunRow | None, metric: str, store: Store) -> dict[str, Any]:
    state = row.state if trial.state == "active" and row else trial.state
    value = trial.value
    if trial.is_open and row:
        value = store.latest_metrics(row.id, [metric]).get(metric)
    return {
        "number": trial.number,
        "state": "queued" if state == "active" else state,
        "reason": trial.reason,
        "run": trial.run,
        "name": trial.name or None,
        "settings": trial.settings,
        "value": value,
        "figures": trial.figures,
        "hours": round(trial.hours, 6),
        "cost": trial.cost,
        "restarts": trial.restarts,
        "progress": row.done / row.total if row and row.total else None,
        "error": trial.error,
    }
