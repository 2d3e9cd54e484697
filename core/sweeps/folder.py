"""Reads and writes the files of a sweep's folder.

sweep.json     its config
state.json     its state
trials/N.json  its trials
stop.json      a stop request
driver.lock    held by the running driver
driver.log     its output
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.config.sweep import MOST_TRIALS, SweepConfig
from core.errors import RunError, StudioError
from core.foreign_files import parse_bounded_json, read_regular
from core.records.folder import pop_environment, signed_environment
from core.sweeps.samplers import Settings
from core.workspace.atomic import write_atomically
from core.workspace.locks import file_lock
from core.workspace.names import check_name
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_MOST_JSON_BYTES = 4 << 20
# A trial goes on: its run is queued, running, or was interrupted.
OPEN_STATES = ("active", "paused")

# In `sweep.json` since the automatic settings that a sweep derives are all in its base.
_MARK = "holds_derived_settings"
_DERIVED_AT_FIRST = {
    "hidden_dropout_prob", "attention_probs_dropout_prob", "intra_document_masking",
}  # fmt: skip
# Defaults, by preset, before these settings were automatic.
_EARLIER_DEFAULTS: dict[str, dict[str, Any]] = {
    "fast": {
        "per_replica_batch_size": 32, "num_train_epochs": 1.0, "weight_decay": 0.01,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "custom": {
        "per_replica_batch_size": 8, "num_train_epochs": 1.0,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
}  # fmt: skip


@dataclass
class Trial:
    """One trial.

    Attributes:
        name: Name of the artifact; "" if the stage makes none.
        run: The run's id, chosen before the run is queued.
        state: active, paused, done, pruned, stopped or failed. A paused one goes on when the sweep
            does, or when the budget has room for it.
        judged: Validations that the pruner has seen.
        attributes: The pruner's own.
        sampler_state: The sampler's own.
        is_worse: Whether the pruner ended it.
        restarts: How often its lost run was resumed.
        value: The metric; for a trial without a result its best validation.
        figures: Results of the run.
        hours, cost: Hours, and US dollars if known.
        limits: Limits of its machine, max_hours and max_cost.
    """

    number: int
    settings: Settings
    name: str
    run: str
    state: str = "active"
    reason: str = ""
    judged: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    is_worse: bool = False
    restarts: int = 0
    value: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    hours: float = 0.0
    cost: float | None = None
    error: dict[str, str] | None = None
    limits: dict[str, float] = field(default_factory=dict)
    sampler_state: dict[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass
class SweepState:
    """State of a sweep: running, done, stopped or failed."""

    state: str = "running"
    reason: str = ""
    error: dict[str, str] | None = None
    ended: float | None = None


@dataclass(frozen=True)
class SweepRecord:
    """A sweep's config, and the folder that its relative paths begin at."""

    config: SweepConfig
    created: float
    cwd: str
    environment: dict[str, str]


def _with_earlier_values(config: SweepConfig) -> SweepConfig:
    """Adds the defaults with which an earlier version ran the trials before."""
    if config.stage != "train":
        return config
    known = {*config.base, *config.options}
    defaults = _EARLIER_DEFAULTS.get(config.base.get("preset", "fast"), {})
    if known >= _DERIVED_AT_FIRST:
        earlier = {name: value for name, value in defaults.items() if name == "weight_decay"}
    else:
        earlier = {**defaults, "intra_document_masking": False}
        if not known & {"checkpoint", "model_config_path"}:
            earlier["size"] = "mini"
    added = {name: value for name, value in earlier.items() if name not in known}
    return config.model_copy(update={"base": {**added, **config.base}})


class SweepFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, workspace: Workspace, name: str) -> SweepFolder:
        """Returns a sweep's folder; raises ConfigError for an invalid name."""
        check_name(name)
        return cls(workspace.sweeps / name)

    @classmethod
    def find(cls, workspace: Workspace, name: str) -> SweepFolder:
        """Returns an existing sweep's folder; raises RunError."""
        folder = cls.of(workspace, name)
        if not folder.exists():
            known = ", ".join(folder.name for folder in cls.list(workspace)[:10]) or "none yet"
            raise RunError(
                f"The sweep {name} was not found",
                expected=f"the name of a sweep: {known}",
                received=name,
                fix="list the sweeps with: studio sweep list",
            )
        return folder

    @classmethod
    def list(cls, workspace: Workspace) -> Sequence[SweepFolder]:
        """Lists sweeps, newest first."""
        folders = [cls(path.parent) for path in workspace.sweeps.glob("[!.]*/sweep.json")]
        return sorted(folders, key=lambda folder: -folder._created())

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / "driver.log"

    def exists(self) -> bool:
        return (self.path / "sweep.json").is_file()

    def lock(self) -> AbstractContextManager[bool]:
        """Tries to become the driver; yields True if the lock is held."""
        return file_lock(self.path / "driver.lock", wait=False)

    def is_driven(self) -> bool:
        with self.lock() as free:
            return not free

    def write_record(self, record: SweepRecord) -> None:
        make_folder(self.path / "trials")
        values = {
            "config": record.config.model_dump(mode="json"),
            "created": record.created,
            "cwd": record.cwd,
            _MARK: True,
            **signed_environment(self.path, record.environment),
        }
        _write_json(self.path / "sweep.json", values)

    def read_record(self) -> SweepRecord:
        """Reads `sweep.json`; raises RunError if it is damaged."""
        values = _read_json(self.path / "sweep.json")
        try:
            config = SweepConfig.parse(values["config"])
            if not values.get(_MARK):
                config = _with_earlier_values(config)
            environment = pop_environment(self.path, values)
            return SweepRecord(config, float(values["created"]), str(values["cwd"]), environment)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(self.path / "sweep.json", error) from error

    def read_state(self) -> SweepState:
        path = self.path / "state.json"
        if not path.exists():
            return SweepState()
        try:
            return SweepState(**_read_json(path))
        except TypeError as error:
            raise _damaged(path, error) from error

    def write_state(self, state: SweepState) -> None:
        _write_json(self.path / "state.json", asdict(state))

    def read_trials(self) -> Sequence[Trial]:
        """Reads the trials by number; raises RunError if one is damaged."""
        paths = sorted((self.path / "trials").glob("[0-9]*.json"))
        return [_read_trial(path) for path in paths[:MOST_TRIALS]]

    def write_trial(self, trial: Trial) -> None:
        _write_json(self.path / "trials" / f"{trial.number:04d}.json", asdict(trial))

    def request_stop(self) -> None:
        _write_json(self.path / "stop.json", {"time": time.time()})

    def is_stop_requested(self) -> bool:
        return (self.path / "stop.json").exists()

    def clear_stop(self) -> None:
        (self.path / "stop.json").unlink(missing_ok=True)

    def _created(self) -> float:
        try:
            return (self.path / "sweep.json").stat().st_mtime
        except OSError:
            return 0.0


def _read_trial(path: Path) -> Trial:
    try:
        return Trial(**_read_json(path))
    except TypeError as error:
        raise _damaged(path, error) from error


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = parse_bounded_json(read_regular(path, _MOST_JSON_BYTES))
    except (StudioError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not isinstance(values, dict):
        raise _damaged(path, TypeError(f"a {type(values).__name__}"))
    return values


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} can't be read",
        expected="the JSON that this program wrote",
        received=f"{type(error).__name__}: {error}"[:300],
        fix="restore the file from a copy, or start a new sweep",
    )
