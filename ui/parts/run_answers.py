"""Answers about a run to several tabs' scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.records.events import read_by_step
from core.records.folder import RunFolder
from core.records.kinds import EVENTS
from core.store import Store
from core.workspace.workspace import Workspace
from ui import charts
from ui.present import answering, run_of

_MOST_EVENTS = 200

Answer = Callable[..., dict[str, Any]]


def points_function(workspace: Workspace, store: Store) -> Answer:
    """Returns a function that gives the new points of a run's curves."""

    @answering
    def run_points(question: dict[str, Any]) -> dict[str, Any]:
        after = int(question.get("after", 0))
        run, shape = run_of(question), str(question.get("shape", ""))
        return charts.points_since(store, run, after, shape, workspace=workspace)

    return run_points


def events_function(workspace: Workspace, store: Store) -> Answer:
    """Returns a function that gives a run's events of a kind by steps, unless they were `seen`."""

    @answering
    def run_events(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        kind = str(question.get("kind"))
        path = RunFolder.of(workspace, row.id).events
        events = read_by_step(path, kind)[-_MOST_EVENTS:] if kind in EVENTS else []
        is_seen = events and events[-1]["time"] == question.get("seen")
        return {} if is_seen else {"events": events}

    return run_events
