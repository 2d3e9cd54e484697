"""Reads and writes the files of a run's folder.

run.json       the request
process.json   its processes
events.jsonl   its events
log.txt        its output
stop.json      a stop request
follower.log   output of a remote run's follower
mirror.json    publication progress
exit.json      exit code or signal
notes.json     title, tags and notes of the user
run.lock       held by the running process
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.errors import RunError, StudioError
from core.foreign_files import LARGEST_EXACT, parse_bounded_json, read_regular
from core.messages.redaction import has_password
from core.processes import reporters
from core.records.events import (
    EVENTS_FILE,
    STOP_FILE,
    StopMode,
    read_notes,
    read_resolved,
)
from core.records.process import ProcessIdentity
from core.workspace.atomic import write_atomically
from core.workspace.keys import make_keys, read_keys
from core.workspace.locks import file_lock
from core.workspace.names import is_run_id
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

# Variables that a run inherits, never secrets.
_CARRIED_PREFIXES = (
    "HF_", "JAX_", "XLA_", "TF_", "TPU_", "CUDA_", "STUDIO_", "LIBTPU_", "KERAS_",
    *reporters.PREFIXES,
)  # fmt: skip
# Variables that can neither name code or files nor lead to another host.
_HARMLESS = frozenset(
    (
        "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "JAX_PLATFORMS", "JAX_ENABLE_X64",
        "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS",
        "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET",
    )
)  # fmt: skip
# A follower's exit code if its member of a pool can't be used: EX_UNAVAILABLE.
EXIT_UNUSABLE = 69
_WORD = re.compile(r"[A-Za-z0-9_,-]{0,64}")
_SIGNATURE = "environment_signature"
_MOST_JSON_BYTES = 16 << 20
_LAST_LINES = 3
_FOUND_LINES = 500
_MOST_LINE_BYTES = 1 << 16
_LONGEST_LAST_WORDS = 600
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "AUTH", "KEY", "DATABASE_URL", "WEBHOOK")


@dataclass(frozen=True)
class RunRecord:
    """A request to run a stage.

    Attributes:
        created: Unix seconds.
        cwd: Base of relative paths.
        follows: Mirror address of a remote run.
        machine: Address of the member that executes it, of a pool.
        is_isolated: Whether it has a workspace of its own in its folder, and no credentials: a run
            from somebody else's mirror.
    """

    id: str
    stage: str
    config: dict[str, Any]
    after: list[str] = field(default_factory=list)
    created: float = 0.0
    cwd: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    follows: str = ""
    machine: str = ""
    is_isolated: bool = False

    @property
    def target(self) -> str:
        """The address of the machine elsewhere, a pool's while it has chosen none, or ""."""
        target = str(self.config.get("target") or "")
        return self.machine if self.machine in target.split() else target

    def in_cwd(self) -> AbstractContextManager[None]:
        """Changes to the folder at which relative paths of the config begin, if it exists."""
        return chdir(self.cwd if self.cwd and Path(self.cwd).is_dir() else ".")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, workspace: Workspace, run_id: str) -> RunFolder:
        """Returns a run's folder; raises RunError for an invalid id."""
        if not is_run_id(run_id):
            raise RunError(
                "The run id is not valid",
                expected="the name of a folder in runs/",
                received=ascii(run_id)[:100],
                fix="list the runs with: python -m core runs list",
            )
        return cls(workspace.runs / run_id)

    @property
    def events(self) -> Path:
        return self.path / EVENTS_FILE

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def follower_log(self) -> Path:
        return self.path / "follower.log"

    @property
    def stop_file(self) -> Path:
        return self.path / STOP_FILE

    def isolated_workspace(self) -> Workspace:
        """Returns the workspace of a run that sees no other one."""
        return Workspace(self.path / "workspace")

    def write_record(self, record: RunRecord) -> None:
        make_folder(self.path)
        signed = signed_environment(self.path, record.environment)
        _write_json(self.path / "run.json", {**asdict(record), **signed})

    def is_there(self) -> bool:
        return (self.path / "run.json").is_file()

    def read_record(self) -> RunRecord:
        """Reads `run.json`; raises RunError if missing or damaged."""
        path = self.path / "run.json"
        if not path.exists():
            raise RunError(
                f"The folder of the run {self.path.name} is missing",
                expected=str(path),
                received="no such file" if self.path.exists() else "no such folder",
                fix="if the workspace was moved or copied while the run was being created, move "
                f"its folder from runs/ of the old workspace to {self.path}; otherwise start a "
                "new run",
            )
        values = _read_json(path)
        try:
            environment = pop_environment(self.path, values or {})
            return _checked(RunRecord(**{**(values or {}), "environment": environment}))
        except TypeError as error:
            raise RunError(
                f"{path} can't be read",
                expected="the JSON that this program wrote",
                received="no JSON object" if values is None else "an object with other fields",
                fix="restore the file from a copy, or start a new run",
            ) from error

    def write_processes(self, **identities: ProcessIdentity | None) -> None:
        """Writes the run's process identities."""
        known = {name: identity.to_json() for name, identity in identities.items() if identity}
        _write_json(self.path / "process.json", known)

    def read_process(self, name: str = "run") -> ProcessIdentity | None:
        values = _read_json(self.path / "process.json") or {}
        return ProcessIdentity.from_json(values.get(name))

    def is_running(self) -> bool:
        """Returns whether the run's process or supervisor is alive."""
        identities = (self.read_process("run"), self.read_process("supervisor"))
        return any(identity is not None and identity.is_alive() for identity in identities)

    def device(self) -> str:
        """Returns the newest attempt's device and its reason."""
        # Importing this takes half a second.
        from core.backends.devices import is_description

        return next(filter(is_description, reversed(read_notes(self.events))), "")

    def resolved(self) -> dict[str, Any]:
        """Returns the newest attempt's values for `auto` settings."""
        return read_resolved(self.events)

    def request_stop(self, mode: StopMode, reason: str = "") -> None:
        because = {"reason": reason} if reason else {}
        _write_json(self.stop_file, {"mode": mode, "time": time.time(), **because})

    def write_exit(self, code: int | None, signal: int | None) -> None:
        _write_json(self.path / "exit.json", {"code": code, "signal": signal, "time": time.time()})

    def write_notes(self, values: Mapping[str, Any]) -> None:
        _write_json(self.path / "notes.json", values)

    def read_notes(self) -> dict[str, Any]:
        """Returns the user's notes, unchecked; {} if missing or damaged."""
        return _read_json(self.path / "notes.json") or {}

    def read_exit(self) -> dict[str, Any] | None:
        """Returns `{"code", "signal", "time"}`; None before the exit."""
        values = _read_json(self.path / "exit.json") or {}
        codes = values.get("code"), values.get("signal")
        is_valid = all(code is None or type(code) is int for code in codes)
        return values if is_valid and _is_time(values.get("time")) else None

    def was_started(self) -> bool:
        return self.events.exists() or (self.path / "process.json").exists()

    def count_attempts(self) -> int:
        """Returns the number of attempts, including the current one."""
        return 1 + len({path.name.split("-")[1] for path in self.path.glob("attempt-*-*.json")})

    def archive_attempt(self, attempt: int) -> None:
        """Renames an ended attempt's records."""
        for name in ("exit.json", "process.json", STOP_FILE):
            if (path := self.path / name).exists():
                path.replace(self.path / f"attempt-{attempt}-{name}")

    def find_in_log(self, text: str) -> tuple[list[str], int]:
        """Returns the last lines of the log that contain a text, in any case, and their number."""
        return _find_lines(self.log, text.casefold())

    def log_end(self, most_bytes: int) -> str:
        """Returns the log, or the end of a longer one."""
        return _read_end(self.log, most_bytes)

    def log_tail(self, lines: int = 200) -> str:
        return _read_tail(self.log, lines)

    def try_lock(self) -> AbstractContextManager[bool]:
        """Tries to lock the run; yields True if held."""
        return file_lock(self.path / "run.lock", wait=False)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run's lock; raises RunError if taken."""
        with self.try_lock() as held:
            if not held:
                raise RunError(
                    f"The run {self.path.name} is already running",
                    expected="one process per run",
                    fix="wait for its end, or stop it",
                )
            yield


def log_tail_line(log: Path) -> str:
    """Returns the log tail on one line."""
    lines = [line.strip() for line in _read_tail(log).splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-_LONGEST_LAST_WORDS:]


def new_run_id(stage: str) -> str:
    """Returns an id that sorts by time within a stage."""
    return f"{stage}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def carried_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Selects the settings that a run inherits, never secrets."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_CARRIED_PREFIXES)
        and not any(word in name for word in _SECRET_WORDS)
        and not has_password(value)
    }


def _checked(record: RunRecord) -> RunRecord:
    """Raises TypeError for a record with values of other types."""
    texts = (record.id, record.stage, record.cwd, record.follows, record.machine, *record.after)
    is_valid = all(isinstance(text, str) for text in texts) and isinstance(record.after, list)
    is_valid &= isinstance(record.is_isolated, bool)
    if not is_valid or not _is_time(record.created) or not isinstance(record.config, dict):
        raise TypeError("a value of another type")
    return record


def _is_time(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and abs(seconds) < LARGEST_EXACT  # NaN isn't.


def signed_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a record in a run's or sweep's folder that keep its environment."""
    if not environment:
        return {"environment": {}}
    keys = make_keys(folder.parent.parent)
    signature = keys.sign(*_statement(folder, environment))
    return {"environment": dict(environment), _SIGNATURE: signature}


def pop_environment(folder: Path, values: dict[str, Any]) -> dict[str, str]:
    """Removes a record's environment; returns what of it a process here may get.

    Only what this workspace has signed is trusted: in a folder from elsewhere, a variable could
    name code, or an address that gets tokens.
    """
    signature, environment = values.pop(_SIGNATURE, ""), values.pop("environment", None)
    if not isinstance(environment, dict):
        return {}
    known = {name: value for name, value in environment.items() if isinstance(value, str)}
    if known == environment:
        keys = read_keys(folder.parent.parent)
        if keys.has_signed(*_statement(folder, known), signature):
            return carried_environment(known)
    return {
        name: value for name, value in known.items() if name in _HARMLESS and _WORD.fullmatch(value)
    }


def _statement(folder: Path, environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Returns the name and data that are signed for an environment."""
    name = f"environment of {folder.parent.name}/{folder.name}"
    return name, json.dumps(environment, sort_keys=True).encode()


def _read_tail(log: Path, lines: int = 200) -> str:
    if not log.is_file():  # Reading a pipe would block.
        return ""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - lines * 400))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _find_lines(log: Path, text: str) -> tuple[list[str], int]:
    newest_lines: deque[str] = deque(maxlen=_FOUND_LINES)
    count = 0
    if log.is_file():  # Reading a pipe would block.
        with suppress(OSError), log.open("rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                shown = line.decode("utf-8", "replace").rstrip("\r\n")
                if text in shown.casefold():
                    count += 1
                    newest_lines.append(shown)
    return list(newest_lines), count


def _read_end(log: Path, most_bytes: int) -> str:
    if not log.is_file():
        return ""
    with suppress(OSError), log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes).decode("utf-8", "replace")
    return ""


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values = parse_bounded_json(read_regular(path, _MOST_JSON_BYTES))
    except (StudioError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
