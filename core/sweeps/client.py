"""Creates, starts, resumes and stops sweeps."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts.finding import with_family
from core.config.base import StageConfig
from core.config.options import field_extra
from core.config.sweep import SweepConfig
from core.config.toml_file import parse_toml, read_toml
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError, StudioError
from core.messages.redaction import HIDDEN, redact_forms
from core.records.folder import carried_environment, log_tail_line
from core.runs.start import start_in_own_session
from core.stages.registry import find_stage
from core.sweeps import budget
from core.sweeps.evolution import check_ranges
from core.sweeps.folder import SweepFolder, SweepRecord, SweepState
from core.sweeps.metrics import check_metric
from core.sweeps.packages import check_packages
from core.sweeps.space import example_trial, parse_space
from core.targets.saved import with_saved_machine
from core.workspace.names import check_name
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_DYING_SECONDS = 0.2
_TABLES = ("base", "options")
# Limits that may change when a sweep goes on.
LIMITS = ("max_runs", "max_hours", "max_cost", "parallel")


def load_sweep(path: str | Path) -> SweepConfig:
    """Reads a sweep's TOML file; its name is the default name.

    Raises:
        ConfigError: With the file and the key.
    """
    file = Path(path)
    values = read_toml(file, "The file of the sweep", field="config")
    return _parsed(values, str(file), file.stem)


def parse_sweep(text: str) -> SweepConfig:
    """Parses a sweep's TOML text; raises ConfigError."""
    values = parse_toml(text.encode("utf-8", "replace"), "The sweep", field="config")
    return _parsed(values, "", "sweep")


def create_sweep(workspace: Workspace, config: SweepConfig) -> SweepFolder:
    """Checks a sweep and makes its folder, but starts nothing.

    Raises:
        ConfigError: With the key that is wrong.
    """
    config, example = _checked(config, workspace)
    config = _with_derived(config, example, workspace)
    folder = SweepFolder.of(workspace, config.name)
    if folder.path.exists():
        raise ConfigError(
            f"The sweep {config.name} exists already",
            expected="a new name",
            received=config.name,
            fix=f"choose another name, or go on with it: studio sweep --resume {config.name}",
            field="name",
        )
    workspace.make_root()
    make_folder(workspace.sweeps)
    record = SweepRecord(config, time.time(), os.getcwd(), carried_environment(os.environ))
    folder.write_record(record)
    return folder


def _with_derived(config: SweepConfig, example: StageConfig, workspace: Workspace) -> SweepConfig:
    """Derives the base's automatic settings once, so that trials differ in their options only."""
    if not isinstance(example, TrainConfig):
        return config
    from core.training.automatic import explain

    try:
        _, choices = explain(example, workspace)
    except StudioError:
        return config  # Shards elsewhere are opened by the trials.
    derived = {name: choice.value for name, choice in choices.items() if name not in config.options}
    return config.model_copy(update={"base": {**config.base, **derived}})


def checked(config: SweepConfig, workspace: Workspace) -> SweepConfig:
    """Checks everything that can be checked before the first trial."""
    return _checked(config, workspace)[0]


def parse_example(config: SweepConfig, workspace: Workspace) -> StageConfig:
    """Returns the config of a possible trial; raises ConfigError, as `checked` does."""
    return _checked(config, workspace)[1]


def _checked(config: SweepConfig, workspace: Workspace) -> tuple[SweepConfig, StageConfig]:
    """Returns the sweep with its complete base, and the config of a possible trial."""
    if config.name:
        check_name(config.name)
    stage = find_stage(config.stage)
    base = with_saved_machine(config.base, stage.config.model_fields, workspace)
    if issubclass(stage.config, TrainConfig) and "family" not in config.options:
        base = with_family(base, workspace)
    if "name" in base:
        raise ConfigError(
            "The sweep names its trials itself",
            expected="the sweep's name at the top of the file",
            received=f"base.name = {base['name']!r}",
            fix="remove base.name, or move it above the table base",
            field="base.name",
        )
    for name, value in base.items():
        _check_no_secret(stage.config, name, value)
    space = parse_space(stage.config, base, config.options, is_grid=config.method == "grid")
    check_metric(config.model_copy(update={"base": base}))
    if config.method == "cmaes":
        check_ranges(space)
    check_packages(config)
    example = example_trial(stage.config, base, space, stage.check_config)
    return config.model_copy(update={"base": base}), example


def _check_no_secret(model: type[StageConfig], name: str, value: Any) -> None:
    """Raises ConfigError for a secret, which the sweep's folder would hold."""
    field = model.model_fields.get(name)
    shown = HIDDEN if field and field_extra(field)["secret"] else redact_forms(str(value))
    if value and shown != str(value):
        raise ConfigError(
            f"base.{name} holds a password, a token or a secret address",
            expected="settings without secrets",
            received=shown[:200],
            fix="log in instead, or set the secret in the environment (docs/settings.md)",
            field=f"base.{name}",
        )


def start_sweep(workspace: Workspace, folder: SweepFolder) -> None:
    """Starts a sweep's driver unless it runs; raises RunError."""
    if _is_driven(folder):
        return
    arguments = ["core.sweeps.driver", "--workspace", str(workspace.root), folder.name]
    process = start_in_own_session(arguments, folder.log)
    deadline = time.monotonic() + _START_SECONDS
    while not folder.is_driven() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if process.poll():
        raise _not_started(folder, process)


def resume_sweep(
    workspace: Workspace, name: str, changes: Mapping[str, Any] | None = None
) -> SweepFolder:
    """Goes on with a sweep: finished trials stay, interrupted ones resume.

    Args:
        changes: New limits, see LIMITS; None: as before.

    Raises:
        RunError: There is none of this name.
        ConfigError: A limit is invalid, or leaves nothing to do.
    """
    folder = SweepFolder.find(workspace, name)
    if changes and folder.is_driven():
        raise RunError(
            f"The sweep {name} is running",
            expected="a sweep that has ended or was stopped, to change its limits",
            fix=f"stop it first: studio sweep stop {name}",
        )
    if changes is not None and not folder.is_driven():
        record = folder.read_record()
        config = SweepConfig.parse({**record.config.model_dump(), **changes})
        _check_room(config, folder)
        folder.write_record(replace(record, config=config))
    folder.clear_stop()
    if not folder.is_driven():
        folder.write_state(SweepState())
    start_sweep(workspace, folder)
    return folder


def _check_room(config: SweepConfig, folder: SweepFolder) -> None:
    """Raises ConfigError if the limits leave nothing to do."""
    trials = folder.read_trials()
    spent = budget.add_up(trials)
    name = budget.is_used_up(config, spent)
    is_unfinished = any(trial.is_open or trial.reason in budget.SPENT_LIMITS for trial in trials)
    if not name and not is_unfinished and len(trials) >= config.max_runs:
        name = "max_runs"
    if name:
        used = {"max_runs": spent.runs, "max_hours": spent.hours, "max_cost": spent.cost}[name]
        raise ConfigError(
            f"The sweep {folder.name} has used up ⟬{name}⟭",
            expected=f"more than {used:g}, which its trials have used",
            received=f"{getattr(config, name):g}",
            fix=f"raise ⟬{name}⟭",
            field=name,
        )


def stop_sweep(workspace: Workspace, name: str) -> SweepFolder:
    """Has a sweep save and stop its trials; raises RunError."""
    folder = SweepFolder.find(workspace, name)
    if not folder.is_driven():
        state = folder.read_state().state
        raise RunError(
            f"The sweep {name} can't be stopped",
            expected="a sweep that is running",
            received="its driver was killed" if state == "running" else f"a sweep that is {state}",
            fix="stop its runs with: studio runs stop RUN"
            if state == "running"
            else "no action is needed",
        )
    folder.request_stop()
    return folder


def _is_driven(folder: SweepFolder) -> bool:
    """Looks twice: a killed driver's threads hold its lock for a moment."""
    if not folder.is_driven():
        return False
    time.sleep(_DYING_SECONDS)
    return folder.is_driven()


def _parsed(values: dict[str, Any], file: str, name: str) -> SweepConfig:
    for table in _TABLES:
        if not isinstance(values.get(table, {}), dict):
            raise ConfigError(
                f"{table} is no table in the sweep {file}".rstrip(),
                expected=f"[{table}], and keys below it",
                received=f"{table} = {values[table]!r}"[:200],
                fix=f"make it a table: [{table}]",
                field=table,
            )
    config = SweepConfig.parse(values)
    if config.name:
        return config
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "sweep"
    return config.model_copy(update={"name": plain})


def _not_started(folder: SweepFolder, process: subprocess.Popen[bytes]) -> RunError:
    return RunError(
        f"The driver of the sweep {folder.name} can't be started",
        expected="a background process that keeps running",
        received=f"exit code {process.poll()}; its log ends: {log_tail_line(folder.log)}",
        fix=f"read {folder.log}, correct the problem, and resume the sweep",
    )
