"""Output and exit codes of the commands."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from core.errors import StudioError
from core.workspace import Workspace

if TYPE_CHECKING:
    from core.store import RunRow, Store

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report_error(error: StudioError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.to_dict()}, ensure_ascii=False))
    say(f"error: {error}")
    return error.exit_code


def workspace_of(options: argparse.Namespace) -> Workspace:
    if not hasattr(options, "json"):
        options.json = False
    return Workspace(getattr(options, "workspace", None))


def named_place(workspace: Workspace) -> str:
    return "" if workspace.root == Workspace().root else str(workspace.root)


def fresh_store(options: argparse.Namespace) -> Store:
    from core.runs.client import refresh
    from core.store import Store

    workspace = workspace_of(options)
    refresh(workspace)
    return Store.open(workspace)


def print_detached(options: argparse.Namespace, runs: list[str]) -> int:
    if options.json:
        print(
            json.dumps(
                {"run": runs[-1], "runs": runs, "state": "queued", "artifact": None, "metrics": {}}
            )
        )
    else:
        print("\n".join(runs))
    return EXIT_DONE


def print_run_id(options: argparse.Namespace, run_id: str, what: str) -> int:
    print(json.dumps({"run": run_id}) if options.json else f"{run_id} {what}")
    return EXIT_DONE


def print_file(options: argparse.Namespace, path: str) -> int:
    print(json.dumps({"run": options.run, "file": path}) if options.json else path)
    return EXIT_DONE


def describe_state(row: RunRow) -> str:
    return f"{row.state}/{row.reason}" if row.reason else row.state


def describe_progress(row: RunRow) -> str:
    parts = []
    if row.total:
        parts.append(f"{100 * row.done / row.total:.0f} % of {row.total:,.0f} {row.unit}")
    elif row.done:
        parts.append(f"{row.done:,.0f} {row.unit}")
    if row.note and not row.has_ended:
        parts.append(row.note)
    if row.eta_seconds is not None:
        parts.append(f"{row.eta_seconds / 60:.1f} minutes left")
    return ", ".join(parts)
