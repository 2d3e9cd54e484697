"""Verdicts of runs, for the web app."""

from __future__ import annotations

from core.report.verdicts import verdict_of
from core.store import RunRow
from ui.parts.run_rows import model_of

_LOOKS = {"learned": "done", "done": "done", "learned little": "alert", "not yet": "alert"}
_TABS = {
    "train_tokenizer": "tokenizer",
    "build_shards": "shards",
    "build_again": "shards",
    "train": "train",
    "add_text": "home",
}


def describe_verdict(row: RunRow) -> dict[str, str]:
    """Describes the outcome of a run and the next step: `action`, `label` and the place `go`."""
    verdict = verdict_of(row.stage, row.state, row.results, row.error, row.reason)
    model = model_of(row)
    opens = f"playground/{model}" if verdict.action == "open_playground" and model else ""
    return {
        "level": verdict.level,
        "sentence": f"{verdict.sentence}.",
        "look": _LOOKS.get(verdict.level, verdict.level),
        "action": verdict.action,
        "label": verdict.label,
        "go": opens or _TABS.get(verdict.action, ""),
    }
