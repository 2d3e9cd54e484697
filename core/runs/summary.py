"""Summarizes a run for programs."""

from __future__ import annotations

from typing import Any

from core.artifacts.locating import list_run_checkpoints
from core.records.folder import RunFolder
from core.runs.duration import run_seconds
from core.store import RunRow
from core.workspace.workspace import Workspace


def run_summary(row: RunRow, workspace: Workspace) -> dict[str, Any]:
    """Builds the JSON of `runs show`."""
    counts_steps = row.unit == "steps"
    seconds = run_seconds(workspace, row)
    return {
        "run": row.id,
        "stage": row.stage,
        "state": row.state,
        "reason": row.why,
        "pid": row.pid,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "step": int(row.done) if counts_steps else None,
        "num_train_steps": int(row.total) if counts_steps and row.total else None,
        "seconds": None if seconds is None else round(seconds, 1),
        "artifact": row.artifact or None,
        "checkpoints": list_run_checkpoints(RunFolder.of(workspace, row.id), by_step=True),
        "error": row.error,
        "mirror": row.remote.get("mirror"),
        "incarnation": row.remote.get("incarnation"),
        "phase": row.remote.get("phase"),
        "target": row.remote.get("target"),
        "cost": row.remote.get("cost"),
        "title": row.title,
        "tags": row.tags,
        "notes": row.notes,
    }
