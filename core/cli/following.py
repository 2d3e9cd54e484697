"""Opens the database of runs, and follows runs until they end."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from core.cli.output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    named_place,
    say,
    say_error,
    workspace_of,
)
from core.cli.progress import Progress, open_progress
from core.errors import RunError, StudioError
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import WorkerKeeper, refresh
from core.stages.registry import STAGES, summarize_results
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

_FOLLOW_SECONDS = 0.3
# Marks of the notes that the command line prints.
_SHOWN_NOTES = ("reading", "cleaning", "mixture")
_LOOK_SECONDS = 5.0


def fresh_store(options: argparse.Namespace) -> Store:
    """Opens the database once it has the newest events."""
    workspace = workspace_of(options)
    refresh(workspace)
    return Store.open(workspace)


def follow(
    workspace: Workspace,
    *runs: str,
    as_json: bool,
    quiet: bool = False,
    flags: Mapping[str, str] | None = None,
) -> int:
    """Follows runs; returns the first non-zero exit code."""
    store = Store.open(workspace)
    codes = []
    for run_id in runs:
        try:
            row = Follower(workspace, store, run_id, quiet=quiet).until_the_end()
        except KeyboardInterrupt:
            following = runs[runs.index(run_id) + 1 :]
            later = [name for name in following if not store.find_run(name).has_ended]
            names = f"{run_id} and {later[-1]} continue" if later else f"{run_id} continues"
            line = stop_line(workspace, [run_id, *later][-1])
            say(f"\n{names} in the background. Stop {'the latter' if later else 'it'} with: {line}")
            return EXIT_INTERRUPTED
        _print_end(row, as_json=as_json, is_last=run_id == runs[-1])
        if row.error:
            say_error(StudioError(**row.error), flags)
        codes.append(_exit_code(row))
        if codes[-1] and not as_json:
            break  # The others need this one.
    return next((code for code in codes if code), EXIT_DONE)


def stop_line(workspace: Workspace, run_id: str) -> str:
    folder = named_place(workspace)
    named = ["--workspace", folder] if folder else []
    return shlex.join(["python", "-m", "core", "runs", "stop", run_id, *named])


def _print_end(row: RunRow, *, as_json: bool, is_last: bool) -> None:
    if as_json and is_last:
        print(json.dumps(_stage_result(row), ensure_ascii=False), flush=True)
    elif row.state == "done":
        end = summarize_results(row.stage, row.results, row.artifact)
        print(end, file=sys.stderr if as_json else sys.stdout, flush=True)


class Follower:
    def __init__(
        self, workspace: Workspace, store: Store, run_id: str, *, quiet: bool = False
    ) -> None:
        self._workspace = workspace
        self._store = store
        self._run_id = run_id
        self._quiet = quiet
        self._last_metric = 0
        self._warned = 0
        self._events_read = 0

    def until_the_end(self) -> RunRow:
        """Waits for the run's end, restarting workers; raises RunError."""
        keeper = WorkerKeeper(self._workspace, _LOOK_SECONDS)
        with open_progress(quiet=self._quiet) as progress:
            while True:
                row = self._read_row()
                self._print_news(row, progress)
                if row.has_ended:
                    return row
                keeper.look()
                time.sleep(_FOLLOW_SECONDS)

    def _read_row(self) -> RunRow:
        row = self._store.get_run(self._run_id)
        if row is None:
            raise RunError(
                f"The run {self._run_id} no longer exists",
                expected="a run to follow",
                received="no such run: the run or the database was deleted",
                fix="start it again, or rebuild the database from the run folders: python -m "
                "core runs rebuild",
            )
        return row

    def _print_news(self, row: RunRow, progress: Progress) -> None:
        for line in self._note_lines():
            progress.note(line)
        for warning in row.warnings[self._warned :]:
            progress.warn(str(warning["message"]))
        self._warned = len(row.warnings)
        for step, values in self._new_metrics():
            progress.metrics(step, values)
        progress.update(row)

    def _note_lines(self) -> list[str]:
        events = RunFolder.of(self._workspace, self._run_id).events
        new, self._events_read = read_events(events, self._events_read)
        return shown_notes(new)

    def _new_metrics(self) -> list[tuple[int, dict[str, float]]]:
        by_event: dict[tuple[int, int], dict[str, float]] = {}
        for row in self._store.metrics_since(self._run_id, self._last_metric):
            self._last_metric = row.number
            by_event.setdefault((row.number, row.step), {})[row.name] = row.value
        return [(step, values) for (_, step), values in by_event.items()]


def shown_notes(events: Iterable[dict[str, Any]]) -> list[str]:
    """Returns the notes among a run's events that the command line prints."""
    notes = [event for event in events if event["kind"] == "note"]
    return [str(note["message"]) for note in notes if any(map(note.get, _SHOWN_NOTES))]


def _stage_result(row: RunRow) -> dict[str, Any]:
    is_flat = row.stage in STAGES and STAGES[row.stage].reports_top_level
    figures = row.results if is_flat else {"metrics": row.results}
    return {
        **(figures or {}),
        "run": row.id,
        "state": row.state,
        "artifact": row.artifact or None,
        **({"error": row.error} if row.error else {}),
    }


def _exit_code(row: RunRow) -> int:
    if row.state == "done":
        return EXIT_DONE
    return row.exit_code if row.exit_code and row.exit_code > 0 else EXIT_FAILED
