"""Describes runs on other machines: place, phases, cost and limits, and the machines themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from core.config.targets import place_of_target
from core.errors import ConfigError, RunError
from core.records.events import read_phases
from core.records.folder import RunFolder
from core.runs.client import resume_run
from core.store import ENDED_STATES, RunRow, Store
from core.targets.machines import ListedMachine, delete_machine, list_machines
from core.targets.phases import CAPACITY, CHECKING, UPLOADING, limit_of
from core.targets.target import LABELS
from core.workspace.workspace import Workspace
from ui.parts import markup
from ui.present import answering, hide_secrets, run_of

_MOST_PHASES = 300
# Phases before a machine reports by itself.
_EARLY = (CHECKING, UPLOADING, CAPACITY)

# Events have times in milliseconds.
_CLOCK_SECONDS = 0.001

Answer = Callable[..., dict[str, Any]]


def describe_remote(row: RunRow) -> dict[str, Any] | None:
    """Describes where and how a run on another machine goes; None for one of this machine."""
    if not row.remote:
        return None
    known, has_ended = row.remote, row.state in ENDED_STATES
    phase = "" if has_ended or row.state == "queued" else str(known.get("phase", ""))
    return {
        "place": place_of(row),
        "target": known.get("target", ""),
        "mirror": known.get("mirror", ""),
        "notebook": str(known.get("target", "")).startswith("notebook://"),
        "phase": phase,
        "since": known.get("since"),
        "limit": limit_of(phase),
        "error": phase_error(row) if phase.startswith(_EARLY) else None,
        "incarnation": known.get("incarnation") or 0,
        "launch": known.get("launch") or 0,
        "spent": spent_of(row),
        "amount": amount_of(row),
        "limits": limits_of(row),
        "at_limit": row.state == "stopped" and row.reason == "limit",
    }


def phase_error(row: RunRow) -> dict[str, Any] | None:
    """Returns the last error of the current phase, which is waited out, with its time."""
    since = float(row.remote.get("since") or 0.0)
    errors = [warning for warning in row.warnings if warning.get("alert") == "unreachable"]
    if not errors or errors[-1]["time"] < since - _CLOCK_SECONDS:
        return None
    return {"message": hide_secrets(errors[-1]["message"]), "time": errors[-1]["time"]}


def place_of(row: RunRow) -> str:
    """Names the machine: SSH machine gpu-box, Cloud TPU v5e-8."""
    address = str(row.remote.get("target") or row.remote.get("mirror", ""))
    if not row.remote.get("target"):
        return "another machine"
    scheme = urlsplit(address).scheme
    return f"{LABELS.get(scheme, scheme)} {place_of_target(address)}".strip()


def spent_of(row: RunRow) -> str:
    """Returns hours and cost so far with their limits: 1.25 of 5 h · $1.00 of $4.00."""
    hours, cost = row.remote.get("hours"), row.remote.get("cost")
    limits = {name: row.config.get(name) for name in ("max_hours", "max_cost")}
    parts = []
    if hours is not None:
        most = f" of {limits['max_hours']:g}" if limits["max_hours"] else ""
        parts.append(f"{hours:.2f}{most} h")
    if cost is not None:
        most = f" of {markup.dollars(limits['max_cost'])}" if limits["max_cost"] else ""
        parts.append(f"{markup.dollars(cost)}{most}")
    elif limits["max_cost"]:
        parts.append(f"at most {markup.dollars(limits['max_cost'])}")
    return " · ".join(parts)


def is_uploading(row: RunRow) -> bool:
    return bool(row.remote) and row.unit == "bytes" and row.remote.get("phase") == UPLOADING


def has_uploaded(row: RunRow) -> bool:
    """Returns whether the progress is that of an upload that is over."""
    return bool(row.remote) and row.unit == "bytes" and not is_uploading(row)


def amount_of(row: RunRow) -> str:
    """Returns the bytes sent, or the steps done, of a run on another machine."""
    if has_uploaded(row) or row.state == "queued":
        return ""
    if is_uploading(row):
        total = f" of {markup.byte_count(row.total)}" if row.total else ""
        return f"{markup.byte_count(row.done)}{total}"
    total = f" of {markup.count(row.total)}" if row.total and row.state != "done" else ""
    return f"{markup.count(row.done)}{total} {row.unit}" if row.done else ""


def limits_of(row: RunRow) -> dict[str, float]:
    """Returns the limits that are set, by option."""
    values = {name: row.config.get(name) for name in ("max_hours", "max_cost")}
    return {name: float(value) for name, value in values.items() if value is not None}


def resume(workspace: Workspace, run: str, question: Mapping[str, Any]) -> None:
    """Resumes a run, with other limits if the question has them."""
    hours, cost = (_number(question, name) for name in ("max_hours", "max_cost"))
    resume_run(workspace, run, max_hours=hours, max_cost=cost)


def _number(question: Mapping[str, Any], name: str) -> float | None:
    typed = str(question.get(name, "")).strip()
    try:
        return float(typed.lstrip("$")) if typed else None
    except ValueError:
        raise ConfigError(
            "The new limit isn't a number",
            expected="a number above what the run has used, such as 2.5",
            received=typed,
            fix="correct it",
            field=name,
        ) from None


def notebook_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_notebook(question: dict[str, Any]) -> dict[str, Any]:
        """Returns the notebook of the run's newest launch."""
        row = store.find_run(run_of(question))
        notebooks = RunFolder.of(workspace, row.id).path.glob("*.ipynb")
        newest = max(notebooks, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            raise RunError(
                "The notebook of this run isn't written yet",
                expected="a run that has checked its mirror and sent its inputs",
                received=str(row.remote.get("phase") or row.state),
                fix="wait for the next phase",
            )
        return {"name": newest.name, "text": newest.read_text("utf-8")}

    return run_notebook


def phases_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_phases(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        return {"phases": list_phases(RunFolder.of(workspace, row.id).events)}

    return run_phases


def list_phases(events: Path) -> list[dict[str, Any]]:
    """Lists when each phase began, the newest last."""
    phases: list[dict[str, Any]] = []
    for event in read_phases(events):
        phase = {name: event.get(name) for name in ("phase", "incarnation", "launch")}
        if phases and {**phases[-1], "since": None} == {**phase, "since": None}:
            continue
        phases.append({**phase, "since": event.get("since", event["t"])})
    return phases[-_MOST_PHASES:]


def machines_function(workspace: Workspace) -> Answer:
    @answering
    def show_machines(_: dict[str, Any]) -> dict[str, Any]:
        """Asks each known target, which may take a minute."""
        return {"machines": [_describe_machine(machine) for machine in list_machines(workspace)]}

    return show_machines


def deletion_function(workspace: Workspace) -> Answer:
    @answering
    def delete_one_machine(question: dict[str, Any]) -> dict[str, Any]:
        delete_machine(workspace, str(question["id"]), str(question["target"]))
        return {}

    return delete_one_machine


def _describe_machine(machine: ListedMachine) -> dict[str, Any]:
    return {
        "target": machine.target,
        "id": machine.id,
        "run": machine.run_id,
        "launch": machine.launch,
        "created": machine.created,
        "detail": machine.detail,
        "error": machine.error,
    }
