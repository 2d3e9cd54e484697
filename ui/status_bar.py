"""Status bar: running and queued runs, and alerts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import gradio as gr

from core.config.base import fingerprint_of
from core.runs.client import ensure_worker
from core.runs.slots import MOST_SLOTS
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts import artifacts
from ui.parts.navigation import PARENTS, STEPS, titles
from ui.parts.run_rows import next_step, notices_of, summarize, tab_of
from ui.present import answering

_WORKER_CHECK_SECONDS = 5.0
# Ended runs searched for notices.
_LOOKED_BACK = 30
_TEMPLATE = """
<a class="ps-strip" href="#runs" data-go="runs"></a>
<div class="ps-toasts" role="log" aria-label="Alerts"></div>
"""


def render(workspace: Workspace, store: Store) -> gr.HTML:
    """Renders the bar; `artifacts` fires when artifacts change."""
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("strip.js"),
        server_functions=[status_function(workspace, store)],
        elem_classes=["ps-strip-host"],
        tabs=list(titles()),
        parents=PARENTS,
        steps=list(STEPS),
        workspace=fingerprint_of(str(workspace.root)),
    )


def status_function(workspace: Workspace, store: Store) -> Callable[..., dict[str, Any]]:
    """Returns a function that describes what runs, waits and has ended."""
    keep_worker = _WorkerKeeper(workspace)
    steps = Steps(workspace)
    # A restarted app refuses menu choices it didn't offer, so open tabs must notice.
    app = uuid4().hex

    @answering
    def studio_status(_: dict[str, Any]) -> dict[str, Any]:
        running = store.list_runs(states=ACTIVE_STATES, limit=MOST_SLOTS)
        queued = store.count_runs(("queued",))
        ended = store.list_ended(_LOOKED_BACK)
        # A run that only waited for another says less.
        last = next((row for row in ended if row.reason != "dependency"), None)
        if running or queued:
            keep_worker()
        return {
            "running": [summarize(row, workspace) for row in running],
            "queued": queued,
            "last": summarize(last, workspace) if last else None,
            "notices": [notice for row in [*running, *ended] for notice in notices_of(row)],
            "artifacts": artifacts.revision(workspace),
            "steps": steps(running, ended),
            "ended": {row.id: [row.state, *next_step(row)] for row in ended},
            "app": app,
        }

    return studio_status


class _WorkerKeeper:
    """Restarts a worker that died with work left."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._next_check = 0.0

    def __call__(self) -> None:
        with self._lock:
            if time.monotonic() < self._next_check:
                return
            self._next_check = time.monotonic() + _WORKER_CHECK_SECONDS
        ensure_worker(self._workspace)


class Steps:
    """States of the way's steps: done, running, failed or none."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._seen = ""
        self._done: dict[str, str] = {}

    def __call__(self, active: Sequence[RunRow], ended: Sequence[RunRow]) -> dict[str, str]:
        """Returns the states by tab.

        Args:
            ended: The newest first.
        """
        states = dict(self._made())
        for row in reversed([*active, *ended]):
            tab = tab_of(row.stage)
            if tab in STEPS and row.stage != "preflight":
                state = "running" if row.state in ACTIVE_STATES else row.state
                states[tab] = state if state in ("running", "done") else states.get(tab, "")
        return {tab: states.get(tab, "") for tab in STEPS}

    def _made(self) -> dict[str, str]:
        """Reads the folders only if something has changed."""
        now = artifacts.revision(self._workspace, "corpus", "tokenizer", "shards", "model")
        if now != self._seen or not self._done:
            kinds = {"tokenizer": "tokenizer", "shards": "shards", "train": "model"}
            has = {tab: bool(self._workspace.list(kind)) for tab, kind in kinds.items()}
            has["corpus"] = any(has.values()) or bool(self._workspace.list("corpus"))
            self._done = {tab: "done" if there else "" for tab, there in has.items()}
            self._seen = now
        return self._done
