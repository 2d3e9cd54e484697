"""Drives one sweep: queues trials, prunes them and keeps the budget.

`python -m core.sweeps.driver --workspace DIR NAME`. It holds the sweep's `driver.lock`. Trials are
ordinary runs: if the driver dies they go on, and the next driver takes them over.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.exc import OperationalError

from core.config.base import StageConfig
from core.config.sweep import SweepConfig, parallel_of
from core.errors import RunError, StudioError
from core.messages.redaction import hide_secrets_in_output
from core.network.outbound import distrust_callers
from core.records.events import LIMIT
from core.records.folder import new_run_id
from core.runs.client import WorkerKeeper, queue_run, refresh, request_stop, resume_run
from core.runs.slots import get_slots
from core.stages.registry import artifact_kind_of, find_stage, load_further_stages
from core.store import RunRow, Store
from core.sweeps import budget
from core.sweeps.evolution import EvolutionSampler
from core.sweeps.folder import SweepFolder, SweepState, Trial
from core.sweeps.packages import uses_optuna
from core.sweeps.samplers import GridSampler, QuasiRandomSampler, RandomSampler, Settings
from core.sweeps.space import Space, parse_space
from core.sweeps.study import History, Study
from core.workspace.places import WorkspaceMovedError, guarding_workspaces, private_files
from core.workspace.workspace import Workspace

POLL_SECONDS = 0.5
_LOOK_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_LOCK_PATIENCE_SECONDS = 1.0
_LOCK_POLL_SECONDS = 0.02
# Resumptions of a run that was lost or killed.
_MOST_RESTARTS = 3
# A sweep whose first trials all fail has a wrong setting.
_MOST_FIRST_FAILURES = 5
_LOST_REASONS = ("killed", "process_lost")


class Driver:
    """Drives a sweep until it has ended."""

    def __init__(self, workspace: Workspace, folder: SweepFolder) -> None:
        self.workspace = workspace
        self.folder = folder
        self.store = Store.open(workspace)
        self._record = folder.read_record()
        self.config = self._record.config
        stage = find_stage(self.config.stage)
        self._stage = stage
        self._base = dict(self.config.base)
        space = parse_space(
            stage.config, self._base, self.config.options, is_grid=self.config.method == "grid"
        )
        self._study = Study(self.config, space) if uses_optuna(self.config) else None
        self._sampler = _sampler_of(self.config, space)
        self.trials = list(folder.read_trials())
        self._reopen_interrupted()
        # A resumed sweep gets another chance, as its error may have been corrected.
        self._failed_before = sum(trial.state == "failed" for trial in self.trials)
        self._keeper = WorkerKeeper(workspace, _LOOK_SECONDS)
        self._values: dict[str, dict[int, float]] = {}
        # The limit that all trials together have reached, and one of which too little is left for
        # a paused trial.
        self._is_full = ""
        self._lacking = ""

    def _reopen_interrupted(self) -> None:
        """Pauses trials that an earlier version ended with the budget."""
        for trial in self.trials:
            if trial.state == "stopped" and trial.reason in budget.SPENT_LIMITS:
                self._write(trial, state="paused")

    def work(self) -> bool:
        """Does one round; returns whether the sweep goes on."""
        self._keeper.look()
        is_stopping = self.folder.is_stop_requested()
        rows = {trial.run: self.store.get_run(trial.run) for trial in self.trials if trial.is_open}
        # Before a trial is settled: if the budget is used up, it is kept for a larger one.
        self._check_budget(rows)
        self._lacking = ""
        for trial in self.trials:
            if trial.run in rows:
                self._follow(trial, rows[trial.run], is_stopping=is_stopping)
        if is_stopping:
            return not self._end_if_idle("stopped", "")
        if self._is_full:
            return not self._end_if_idle("done", self._is_full)
        if self._has_failed():
            return not self._end_if_idle("failed", "trials_failed")
        if self._lacking:
            return not self._end_if_idle("done", self._lacking)
        return self._start_trials()

    def _check_budget(self, rows: Mapping[str, RunRow | None]) -> None:
        for trial in self.trials:
            if row := rows.get(trial.run):
                budget.measure(trial, row, self.workspace)
        spent = budget.add_up(self.trials)
        self._is_full = self._is_full or budget.is_used_up(self.config, spent)

    # Trials.

    def _follow(self, trial: Trial, row: RunRow | None, *, is_stopping: bool) -> None:
        if row is None:
            if not is_stopping:
                self._submit(trial)
            return
        if row.has_ended:
            self._settle(trial, row, is_stopping=is_stopping)
            return
        if trial.state == "paused" and not is_stopping:
            self._write(trial, state="active", reason="")
        if self._study and self.config.pruner != "none":
            self._judge(trial)
        is_unwanted = is_stopping or trial.is_worse or bool(self._is_full)
        if is_unwanted and row.state != "stopping":
            self._stop(trial)

    def _stop(self, trial: Trial) -> None:
        mode = self.config.prune_mode if trial.is_worse else "save"
        try:
            request_stop(self.workspace, trial.run, mode)
        except StudioError as error:
            # It has ended meanwhile; the next round sees it.
            print(f"trial {trial.number}: {error}", flush=True)

    def _settle(self, trial: Trial, row: RunRow, *, is_stopping: bool) -> None:
        """Takes the result of an ended run, or goes on with an interrupted one."""
        is_lost = _is_lost(row)
        is_unfinished = not trial.is_worse and (row.state == "stopped" or is_lost)
        reached = budget.reached_share(self.config, trial) if row.reason == LIMIT else ""
        if is_unfinished and (is_stopping or self._is_full):
            self._pause(trial, self._is_full)
        elif is_unfinished and (reached or trial.state == "paused"):
            self._go_on_if_possible(trial, reached)
        elif is_unfinished and is_lost and trial.restarts < _MOST_RESTARTS:
            self._go_on(trial, {}, trial.restarts + 1)
        else:
            self._conclude(trial, row)

    def _pause(self, trial: Trial, limit: str) -> None:
        """Keeps an unfinished trial, which a larger budget or a resumed sweep continues."""
        if trial.state != "paused" or (limit and trial.reason != limit):
            self._write(trial, state="paused", reason=limit)

    def _go_on_if_possible(self, trial: Trial, reached: str) -> None:
        """Goes on with a paused trial once there is a place and a budget for it.

        Args:
            reached: The limit at which its machine ended; "" if something else ended it.
        """
        self._pause(trial, reached)
        if self._count_places() < 1:
            return
        limits, lacking = budget.limits_of(self.config, self.trials, self._count_sharing(), trial)
        if reached and not lacking and not budget.is_raised(trial, reached, limits):
            lacking = reached
        self._lacking = self._lacking or lacking
        if not lacking:
            self._go_on(trial, limits, trial.restarts)

    def _go_on(self, trial: Trial, limits: dict[str, float], restarts: int) -> None:
        try:
            resume_run(
                self.workspace,
                trial.run,
                max_hours=limits.get("max_hours"),
                max_cost=limits.get("max_cost"),
            )
        except RunError as error:
            # Its process is about to end, perhaps; the next round tries again.
            print(f"trial {trial.number}: {error}", flush=True)
            return
        limits = limits or trial.limits
        self._write(trial, state="active", reason="", restarts=restarts, limits=limits)
        print(f"trial {trial.number}: its run goes on", flush=True)

    def _conclude(self, trial: Trial, row: RunRow) -> None:
        state, reason = row.state, row.reason
        # A run whose process dies on the way to its stop is pruned, too.
        if trial.is_worse and (row.state == "stopped" or _is_lost(row)):
            state, reason = "pruned", f"validation {trial.judged}"
        elif row.state == "lost":
            state, reason = "failed", "lost"
        values = self._validations(trial)
        trial.figures = _figures(row, self.store)
        figure = trial.figures.get(self.config.metric) if state == "done" else None
        choose = min if self.config.goal == "minimize" else max
        trial.value = figure if figure is not None else choose(values.values(), default=None)
        if state == "done" and trial.value is None:
            state, reason = "failed", "no_metric"
            trial.error = _no_metric(self.config.metric, trial.figures).to_dict()
        self._write(trial, state=state, reason=reason, error=trial.error or row.error)
        value = "" if trial.value is None else f", {self.config.metric} {trial.value:.5g}"
        why = f" ({reason})" if reason else ""
        problem = str((trial.error or row.error or {}).get("problem", ""))
        cause = f": {problem}" if problem and state == "failed" else ""
        print(f"trial {trial.number}: {state}{why}{value}{cause}", flush=True)

    def _write(self, trial: Trial, **values: Any) -> None:
        for name, value in values.items():
            setattr(trial, name, value)
        self.folder.write_trial(trial)

    # Pruning.

    def _judge(self, trial: Trial) -> None:
        values = self._validations(trial)
        while not trial.is_worse and trial.judged < len(values):
            seen = trial.judged + 1
            assert self._study is not None
            histories = [
                self._history(other, seen if other is trial else None) for other in self.trials
            ]
            is_worse, attributes = self._study.is_worse(self.trials.index(trial), histories)
            # Before the stop: a new driver would judge it among other trials.
            self._write(trial, judged=seen, is_worse=is_worse, attributes=attributes)
            if is_worse:
                print(f"trial {trial.number}: pruned at validation {seen}", flush=True)

    def _history(self, trial: Trial, most: int | None = None) -> History:
        values = self._validations(trial)
        seen = trial.judged if trial.is_open else len(values)
        most = seen if most is None else most
        state = "running" if trial.is_open else trial.state
        return History(
            trial.settings,
            "pruned" if state == "stopped" else state,
            trial.value,
            {number: value for number, value in values.items() if number <= most},
            trial.attributes,
            trial.sampler_state,
        )

    def _validations(self, trial: Trial) -> dict[int, float]:
        """Returns the metric by the number of the validation, from 1."""
        if not trial.is_open and trial.run in self._values:
            return self._values[trial.run]
        rows = self.store.metrics_since(trial.run, names=[self.config.metric])
        by_step = {row.step: row.value for row in rows}
        ordered = sorted(by_step)
        self._values[trial.run] = {place: by_step[step] for place, step in enumerate(ordered, 1)}
        return self._values[trial.run]

    # New trials.

    def _start_trials(self) -> bool:
        while self._count_places() - sum(trial.state == "paused" for trial in self.trials) > 0:
            if reason := self._start_next():
                return not self._end_if_idle("done", reason)
        return True

    def _start_next(self) -> str:
        """Starts a trial; returns why there is none, or ""."""
        if len(self.trials) >= self.config.max_runs:
            return "all_settings" if self._is_grid_complete() else "max_runs"
        limits, used_up = budget.limits_of(self.config, self.trials, self._count_sharing())
        if used_up:
            return used_up
        suggestion = self._suggest()
        if suggestion is None:
            return "all_settings"
        self._start(*suggestion, limits)
        return ""

    def _count_places(self) -> int:
        """Counts the trials that may begin or go on now."""
        return self._parallel() - sum(trial.state == "active" for trial in self.trials)

    def _count_sharing(self) -> int:
        """Counts the trials that share what is left of the budget."""
        paused = sum(trial.state == "paused" for trial in self.trials)
        coming = paused + max(0, self.config.max_runs - len(self.trials))
        return max(1, min(self._count_places(), coming))

    def _is_grid_complete(self) -> bool:
        sampler = self._sampler
        return isinstance(sampler, GridSampler) and len(self.trials) >= len(sampler)

    def _parallel(self) -> int:
        return parallel_of(self.config) or get_slots(self.store)

    def _suggest(self) -> tuple[Settings, dict[str, Any]] | None:
        """Returns the next trial's settings and sampler state; None if all were tried."""
        number, sampler = len(self.trials), self._sampler
        if isinstance(sampler, GridSampler | RandomSampler):
            settings = sampler.settings(number)
            return None if settings is None else (settings, {})
        histories = [self._history(trial) for trial in self.trials]
        if sampler:
            return sampler.suggest(number, histories)
        assert self._study is not None
        settings = self._study.suggest(number, histories)
        return None if settings is None else (settings, {})

    def _start(self, settings: Settings, state: dict[str, Any], limits: dict[str, float]) -> None:
        number = len(self.trials)
        name, run = self._free_name(number), new_run_id(self._stage.name)
        trial = Trial(number, settings, name, run, limits=limits, sampler_state=state)
        # Before the run: a new driver knows what it has to queue.
        self.folder.write_trial(trial)
        self.trials.append(trial)
        self._submit(trial)

    def _submit(self, trial: Trial) -> None:
        refresh(self.workspace)
        if self.store.get_run(trial.run):
            return
        try:
            config = self._config_of(trial)
            queue_run(
                self.workspace, self._stage.name, config, id=trial.run, cwd=self._record.cwd,
                environment=self._record.environment,
            )  # fmt: skip
        except RunError as error:
            # The worker is slow; the next round sees whether it has queued the run.
            print(f"trial {trial.number}: {error}", flush=True)
            return
        except StudioError as error:
            self._write(trial, state="failed", reason="not_started", error=error.to_dict())
            print(f"trial {trial.number}: not started: {error}", flush=True)
            return
        shown = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
        print(f"trial {trial.number}: {trial.run} with {shown}", flush=True)

    def _config_of(self, trial: Trial) -> StageConfig:
        name = {"name": trial.name} if trial.name else {}
        return self._stage.config.parse({**self._base, **trial.limits, **trial.settings, **name})

    def _free_name(self, number: int) -> str:
        kind = artifact_kind_of(self._stage.name)
        if not kind or "name" not in self._stage.config.model_fields:
            return ""
        return self.workspace.free_name(kind, f"{self.folder.name}-{number:03d}")

    # The end.

    def _has_failed(self) -> bool:
        ended = [trial for trial in self.trials if not trial.is_open]
        failed = sum(trial.state == "failed" for trial in ended)
        return failed == len(ended) and failed - self._failed_before >= _MOST_FIRST_FAILURES

    def _end_if_idle(self, state: str, reason: str) -> bool:
        if any(trial.state == "active" for trial in self.trials):
            return False
        failed = [trial for trial in self.trials if trial.state == "failed"]
        if state == "done" and len(failed) == len(self.trials):
            state, reason = "failed", "trials_failed"
        error = failed[-1].error if state == "failed" and failed else None
        self.folder.write_state(SweepState(state, reason, error, time.time()))
        print(f"the sweep is {state} {reason}".rstrip(), flush=True)
        return True


def drive(workspace: Workspace, folder: SweepFolder) -> None:
    """Drives a sweep to its end; returns at once if another driver does."""
    patience = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        with folder.lock() as held:
            if held:
                _drive(workspace, folder)
                return
        # `is_driven` holds the lock for an instant.
        if time.monotonic() > patience:
            return
        time.sleep(_LOCK_POLL_SECONDS)


def _sampler_of(
    config: SweepConfig, space: Space
) -> GridSampler | RandomSampler | EvolutionSampler | None:
    """Makes the sampler of a method; None for those of Optuna."""
    if config.method == "grid":
        return GridSampler(space)
    if config.method == "random":
        return RandomSampler(space, config.seed)
    if config.method == "qmc":
        return QuasiRandomSampler(space, config.seed)
    return EvolutionSampler(config, space) if config.method == "cmaes" else None


def _is_lost(row: RunRow) -> bool:
    """Returns whether the run's process ended without a word, so that the run can go on."""
    return row.state == "lost" or (row.state == "failed" and row.reason in _LOST_REASONS)


def _drive(workspace: Workspace, folder: SweepFolder) -> None:
    folder.write_state(SweepState())
    try:
        _work_until_ended(Driver(workspace, folder))
    except WorkspaceMovedError:
        raise
    except StudioError as error:
        folder.write_state(SweepState("failed", "error", error.to_dict(), time.time()))
        raise


def _work_until_ended(driver: Driver) -> None:
    last = ""
    while True:
        problem = ""
        try:
            if not driver.work():
                return
        except (OSError, OperationalError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem and problem != last:
            print(f"retrying after: {problem}", file=sys.stderr, flush=True)
        last = problem
        time.sleep(_RETRY_SECONDS if problem else POLL_SECONDS)


def _figures(row: RunRow, store: Store) -> dict[str, float]:
    figures = {**store.latest_metrics(row.id), **row.results}
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _no_metric(metric: str, figures: Iterable[str]) -> StudioError:
    return StudioError(
        "The trial has no value of the sweep's metric",
        expected=f"a figure named {metric}",
        received=", ".join(figures) or "no figures",
        fix="set metric to one of the run's figures",
        field="metric",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.sweeps.driver", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("name")
    options = parser.parse_args(arguments)
    load_further_stages()
    distrust_callers()
    with guarding_workspaces():
        workspace = Workspace(options.workspace)
        with private_files(workspace.root):
            return _main(workspace, SweepFolder.find(workspace, options.name))


def _main(workspace: Workspace, folder: SweepFolder) -> int:
    cwd = folder.read_record().cwd
    if os.path.isdir(cwd):
        os.chdir(cwd)
    try:
        drive(workspace, folder)
    except StudioError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:  # noqa: BLE001 -- the process ends here; the traceback goes to its log
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
