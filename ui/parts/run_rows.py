"""A run as the page shows it: its title, its state, how far it is, in words."""

from __future__ import annotations

from typing import Any

from core.stages import ARTIFACT_KINDS
from core.store import RunRow
from ui.parts.markup import count

_TITLES = {"tokenizer": "Tokenizer", "shards": "Shards", "train": "Training"}
# Stages that can save what they have done so far when they are stopped.
_SAVING = ("train",)


def summarize(row: RunRow) -> dict[str, Any]:
    """Returns what a line about a run says, small enough to be sent every second."""
    return {
        "id": row.id,
        "position": row.position,
        "stage": row.stage,
        "title": title_of(row),
        "state": row.state,
        "label": label_of(row),
        "progress": progress_of(row),
        "done": row.done,
        "total": row.total,
        "eta_seconds": row.eta_seconds,
        "created": row.created,
        "started": row.started,
        "ended": row.ended,
        "after": row.after,
        "warnings": len(row.warnings),
        "saves": row.stage in _SAVING,
        "model": model_of(row),
    }


def title_of(row: RunRow) -> str:
    """Returns what a run is called: its stage and what it makes."""
    stage = _TITLES.get(row.stage, row.stage.replace("_", " ").capitalize())
    return f"{stage} {row.name}".strip()


def label_of(row: RunRow) -> str:
    """Returns the state with its reason: failed, out of memory."""
    reason = row.reason.replace("_", " ")
    return f"{row.state}: {reason}" if reason else row.state


def progress_of(row: RunRow) -> str:
    """Returns how far a run is: 1,180 of 2,750 steps, and what it is doing."""
    if row.state == "queued":
        return ""
    parts = [_amount(row), row.note if row.state in ("running", "stopping") else ""]
    return " · ".join(part for part in parts if part)


def model_of(row: RunRow) -> str:
    """Returns the name of the model that a run has made, or an empty text."""
    return row.name if row.artifact and ARTIFACT_KINDS.get(row.stage) == "model" else ""


def _amount(row: RunRow) -> str:
    if not row.total or row.state == "done":
        return f"{count(row.done)} {row.unit}".strip() if row.done else ""
    return f"{count(row.done)} of {count(row.total)} {row.unit}".strip()
