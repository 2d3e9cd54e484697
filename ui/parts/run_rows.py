"""Describes runs in words."""

from __future__ import annotations

import signal
from typing import Any

from core.artifacts.locating import has_checkpoint
from core.errors import StudioError
from core.runs.duration import earlier_seconds
from core.stages.registry import STAGES, artifact_kind_of, title_of_stage
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from ui.parts import remote
from ui.parts.labels import relabel
from ui.parts.markup import count

BAD_ENDINGS = ("failed", "lost")
_NEXT = {
    "clean": ("tokenizer", "Train a tokenizer on it"),
    "tokenizer": ("shards", "Build shards with it"),
    "shards": ("train", "Train a model on them"),
}


# Classes of errors without "Error", as stored in a run's reason.
_KINDS_OF_ERRORS = {
    "Config": "settings",
    "Corpus": "text",
    "Tokenizer": "tokenizer",
    "Shard": "shards",
    "Device": "device",
    "Checkpoint": "checkpoint",
    "Hub": "Hub",
    "Run": "",
    "Studio": "",
}
# By reason of a failure: the stage, and setting, of the input to make again.
_REMADE = {
    "ShardError": ("shards", "Build these shards again"),
    "data_missing": ("shards", "Build these shards again"),
    "TokenizerError": ("tokenizer", "Train this tokenizer again"),
}
_SEARCHED = 1000


def summarize(row: RunRow, workspace: Workspace) -> dict[str, Any]:
    """Summarises a run; browsers poll this every second."""
    return {
        "id": row.id,
        "position": row.position,
        "stage": row.stage,
        "tab": tab_of(row.stage),
        "title": title_of(row),
        "own_title": row.title,
        "tags": row.tags,
        "notes": row.notes,
        "state": row.state,
        "label": label_of(row),
        "progress": progress_of(row),
        "note": row.note,
        "done": 0 if remote.has_uploaded(row) else row.done,
        "total": None if remote.has_uploaded(row) else row.total,
        "eta_seconds": row.eta_seconds,
        "created": row.created,
        "started": row.started,
        "earlier_seconds": earlier_seconds(workspace, row),
        "attempt": row.attempt,
        "ended": row.ended,
        "after": row.after,
        "warning": _number_of(row.warnings[-1]) if row.warnings else 0,
        "alerts": alert_kinds(row),
        "saves": row.saves,
        "keeps_parts": row.keeps_parts,
        "extendable": is_extendable(row),
        "model": model_of(row),
        "checkpoint": checkpoint_of(row, workspace),
        "remote": remote.describe_remote(row),
        "next": next_step(row),
    }


def next_step(row: RunRow) -> tuple[str, str]:
    """Returns the place and the words of the link that goes on from a run."""
    if row.state != "done":
        return f"runs/{row.id}", "See the run"
    if model := model_of(row):
        return f"playground/{model}", "Try it in the Playground"
    return _NEXT.get(row.stage, (f"runs/{row.id}", "See the run"))


def metric_of(row: RunRow, store: Store) -> str:
    """Returns a training run's validation (else training) loss as text."""
    if row.stage != "train" or row.state == "queued":
        return ""
    measured = row.results
    if "eval_loss" not in measured:  # Not validated yet.
        measured = {**store.latest_metrics(row.id, ("loss", "eval_loss")), **measured}
    for name, label in (("eval_loss", "Validation loss"), ("loss", "Training loss")):
        if isinstance(measured.get(name), (int, float)):
            return f"{label} {measured[name]:.3f}"
    return ""


def remake_of(row: RunRow, store: Store) -> dict[str, Any] | None:
    """Returns the run that made the input which failed a run, and the words to make it again."""
    stage, words = _REMADE.get(row.reason, ("", ""))
    name = str(row.config.get(stage) or "")
    if row.state != "failed" or not name:
        return None
    for earlier in store.list_runs(limit=_SEARCHED, states=("done",)):
        if (earlier.stage, earlier.name) == (stage, name):
            return {"run": earlier.id, "tab": tab_of(stage), "words": words}
    return None


def tab_of(stage: str) -> str:
    """Returns a stage's tab id, or ""."""
    return STAGES[stage].tab if stage in STAGES else ""


def tabs_by_stage() -> dict[str, str]:
    """Returns tab ids by stage."""
    return {stage: tab_of(stage) for stage in STAGES}


def title_of(row: RunRow) -> str:
    """Returns the user's title of a run, or its stage and artifact name."""
    return row.title or f"{title_of_stage(row.stage)} {row.name}".strip()


def label_of(row: RunRow) -> str:
    """Returns the state with its reason: failed, out of memory."""
    if (row.state, row.reason) == ("stopped", "aborted"):
        return "stopped without saving" if row.saves else "stopped"
    reason = row.why if " " in row.why else _words_of_reason(row.why)
    return f"{row.state}: {reason}" if reason else row.state


def _words_of_reason(reason: str) -> str:
    """Returns a reason in words; a run that failed with an error stores the error's class."""
    kind = reason.removesuffix("Error")
    if kind == reason:
        return reason.replace("_", " ")
    return _KINDS_OF_ERRORS.get(kind, "unexpected error")


def ending_of(row: RunRow) -> str:
    """Describes how a failed run's process ended."""
    if row.state not in BAD_ENDINGS or row.reason == "dependency":
        return ""
    if row.signal is not None:
        return f"ended by signal {row.signal} ({_signal_name(row.signal)})"
    if row.exit_code is not None:
        return f"ended with exit code {row.exit_code}"
    return "the end of its process was not observed"


def alert_kinds(row: RunRow) -> list[str]:
    """Lists a run's alerts, newest first."""
    kinds = [describe_alert(warning["alert"]) for warning in row.warnings if warning.get("alert")]
    return list(dict.fromkeys(reversed(kinds)))


def describe_alert(alert: str) -> str:
    """Returns an alert's readable name."""
    return alert.replace("_", " ")


def notices_of(row: RunRow) -> list[dict[str, Any]]:
    """Returns a run's notices, shown in every tab; rising `number`s let each show once."""
    notices = [
        _notice(row, describe_alert(warning["alert"]), _number_of(warning), warning["message"])
        for warning in row.warnings
        if warning.get("alert")
    ]
    if row.state in BAD_ENDINGS and row.reason != "dependency":
        error = error_of(row)
        parts = filter(None, (error.get("problem"), error.get("fix")))
        message = " ".join(f"{text[:1].upper()}{text[1:].removesuffix('.')}." for text in parts)
        notices.append({**_notice(row, label_of(row), row.attempt, message), "bad": True})
    return notices


def error_of(row: RunRow) -> dict[str, str]:
    """Returns the parts of a run's error that have text, with form labels."""
    parts = StudioError(**row.error).rendered(relabel) if row.error else {}
    return {part: text for part, text in parts.items() if text}


def is_extendable(row: RunRow) -> bool:
    """Returns whether a run can train more steps."""
    trains = row.saves and not row.config.get("evaluate_only")
    return trains and row.state in ("done", "stopped") and bool(row.total)


def progress_of(row: RunRow) -> str:
    """Returns progress (1,180 of 2,750 steps) and activity."""
    if row.state == "queued":
        return ""
    parts = [_amount(row), row.note if row.state in ("running", "stopping") else ""]
    return " · ".join(part for part in parts if part)


def model_of(row: RunRow) -> str:
    """Returns the name of a run's model, or ""."""
    return row.name if row.artifact and artifact_kind_of(row.stage) == "model" else ""


def checkpoint_of(row: RunRow, workspace: Workspace) -> str:
    """Returns the reference of an unfinished training's best checkpoint, or ""."""
    is_unfinished = row.stage == "train" and row.state not in ("queued", "done")
    return f"{row.id}@best" if is_unfinished and has_checkpoint(row.id, workspace) else ""


def _notice(row: RunRow, kind: str, number: int, message: str) -> dict[str, Any]:
    return {
        "run": row.id,
        "title": title_of(row),
        "kind": kind,
        "number": number,
        "message": message,
        "bad": False,
        "over": row.has_ended,
    }


def _number_of(warning: dict[str, Any]) -> int:
    return int(warning.get("number", 1))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _amount(row: RunRow) -> str:
    if row.remote:
        return remote.amount_of(row)
    if not row.total or row.state == "done":
        return f"{count(row.done)} {row.unit}".strip() if row.done else ""
    return f"{count(row.done)} of {count(row.total)} {row.unit}".strip()
