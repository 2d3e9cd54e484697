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
from collections.abc import Iterable
from typing import Any

from sqlalchemy.exc import OperationalError

from core.config import StageConfig
from core.errors import RunError, StudioError
from core.outbound import distrust_callers
from core.redaction import hide_secrets_in_output
from core.runs.client import WorkerKeeper, queue_run, refresh, request_stop, resume_run
from core.runs.folder import new_run_id
from core.runs.slots import get_slots
from core.stages.registry import artifact_kind_of, find_stage, load_further_stages
from core.store import RunRow, Store
from core.sweeps import budget
from core.sweeps.folder import SweepFolder, SweepState, Trial
from core.sweeps.samplers import GridSampler, RandomSampler, Settings
from core.sweeps.space import parse_space
from core.sweeps.study import History, Study
from core.workspace import Workspace
from core.workspace.places import WorkspaceMovedError, guarding_workspaces, private_files

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
        self._space = parse_space(
            stage.config, self._base, self.config.options, is_grid=self.config.method == "grid"
        )
        uses_optuna = self.config.method == "tpe" or self.config.pruner != "none"
        self._study = Study(self.config, self._space) if uses_optuna else None
        self._grid = GridSampler(self._space)
        self._random = RandomSampler(self._space, self.config.seed)
        self.trials = list(folder.read_trials())
        # A resumed sweep gets another chance, as its error may have been corrected.
        self._failed_before = sum(one.state == "failed" for one in self.trials)
        self._keeper = WorkerKeeper(workspace, _LOOK_SECONDS)
        self._values: dict[str, dict[int, float]] = {}
        self._is_full = ""

    def work(self) -> bool:
        """Does one round; returns whether the sweep goes on."""
        self._keeper.look()
        is_stopping = self.folder.is_stop_requested()
        for trial in self.trials:
            if trial.is_open:
                self._follow(trial, is_stopping=is_stopping)
        spent = budget.add_up(self.trials)
        self._is_full = self._is_full or budget.is_used_up(self.config, spent)
        if is_stopping:
            return not self._end_if_idle("stopped", "")
        if self._is_full:
            return not self._end_if_idle("done", self._is_full)
        if self._has_failed():
            return not self._end_if_idle("failed", "trials_failed")
        return self._start_trials()

    # Trials.

    def _follow(self, trial: Trial, *, is_stopping: bool) -> None:
        row = self.store.get_run(trial.run)
        if row is None:
            if not is_stopping:
                self._submit(trial)
            return
        budget.measure(trial, row, self.workspace)
        if row.has_ended:
            self._settle(trial, row, is_stopping=is_stopping)
            return
        if trial.state == "paused" and not is_stopping:
            self._write(trial, state="active")
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
        is_paused = trial.state == "paused" and row.state in ("stopped", "lost")
        if is_stopping and not trial.is_worse and (row.state == "stopped" or is_lost):
            self._write(trial, state="paused")
            return
        can_go_on = not trial.is_worse and not self._is_full
        if is_paused and can_go_on:
            self._go_on(trial, trial.restarts)
        elif is_lost and can_go_on and trial.restarts < _MOST_RESTARTS:
            self._go_on(trial, trial.restarts + 1)
        else:
            self._conclude(trial, row)

    def _go_on(self, trial: Trial, restarts: int) -> None:
        try:
            resume_run(self.workspace, trial.run)
        except RunError as error:
            # Its process is about to end, perhaps; the next round tries again.
            print(f"trial {trial.number}: {error}", flush=True)
            return
        self._write(trial, state="active", restarts=restarts)
        print(f"trial {trial.number}: its run goes on", flush=True)

    def _conclude(self, trial: Trial, row: RunRow) -> None:
        state, reason = row.state, row.reason
        # A run whose process dies on the way to its stop is pruned, too.
        if trial.is_worse and (row.state == "stopped" or _is_lost(row)):
            state, reason = "pruned", f"validation {trial.judged}"
        elif row.state == "stopped" and self._is_full:
            reason = self._is_full
        elif row.state == "lost":
            state, reason = "failed", "lost"
        values = self._validations(trial)
        trial.figures = _figures(row, self.store)
        found = trial.figures.get(self.config.metric) if state == "done" else None
        choose = min if self.config.direction == "minimize" else max
        trial.value = found if found is not None else choose(values.values(), default=None)
        if state == "done" and trial.value is None:
            state, reason = "failed", "no_metric"
            trial.error = _no_metric(self.config.metric, trial.figures).to_dict()
        self._write(trial, state=state, reason=reason, error=trial.error or row.error)
        value = "" if trial.value is None else f", {self.config.metric} {trial.value:.5g}"
        print(f"trial {trial.number}: {state} {reason}{value}", flush=True)

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
            histories = [self._history(one, seen if one is trial else None) for one in self.trials]
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
        while (places := self._parallel() - sum(one.is_open for one in self.trials)) > 0:
            if reason := self._start_next(places):
                return not self._end_if_idle("done", reason)
        return True

    def _start_next(self, places: int) -> str:
        """Starts a trial; returns why there is none, or ""."""
        if len(self.trials) >= self.config.max_runs:
            is_whole = self.config.method == "grid" and len(self.trials) >= len(self._grid)
            return "all_settings" if is_whole else "max_runs"
        limits, used_up = budget.limits_of_next(self.config, self.trials, places)
        if used_up:
            return used_up
        settings = self._next_settings()
        if settings is None:
            return "all_settings"
        self._start(settings, limits)
        return ""

    def _parallel(self) -> int:
        if self.config.parallel:
            return self.config.parallel
        return 1 if self.config.base.get("target") else get_slots(self.store)

    def _next_settings(self) -> Settings | None:
        number = len(self.trials)
        if self.config.method == "grid":
            return self._grid.settings(number)
        if self.config.method == "random":
            return self._random.settings(number)
        assert self._study is not None
        return self._study.suggest(number, [self._history(one) for one in self.trials])

    def _start(self, settings: Settings, limits: dict[str, float]) -> None:
        number = len(self.trials)
        name = self._free_name(number)
        trial = Trial(number, settings, name, new_run_id(self._stage.name), limits=limits)
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
        ended = [one for one in self.trials if not one.is_open]
        failed = sum(one.state == "failed" for one in ended)
        return failed == len(ended) and failed - self._failed_before >= _MOST_FIRST_FAILURES

    def _end_if_idle(self, state: str, reason: str) -> bool:
        if any(one.state == "active" for one in self.trials):
            return False
        failed = [one for one in self.trials if one.state == "failed"]
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
    found = {**store.latest_metrics(row.id), **row.results}
    return {
        name: value
        for name, value in found.items()
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
    hide_secrets_in_output()
    sys.exit(main())
