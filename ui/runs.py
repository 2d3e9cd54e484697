"""The Runs tab: every run with its state, its curves, its log, and the ways to end it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import gradio as gr

from core.config import StageConfig, field_extra, title_of
from core.errors import StudioError
from core.runs.client import delete_run, read_log_tail, request_stop, resume_run
from core.runs.commands import python_lines, shell_line
from core.stages import parse_stage_config
from core.store import RunRow, Store
from core.workspace import Workspace
from ui import charts
from ui.assets import script
from ui.parts import markup
from ui.parts.run_rows import summarize
from ui.present import answering

_FIRST_RUNS = 100
_LOG_LINES = 200

_TEMPLATE = f"""
<div class="ps-runs">
  <div class="ps-runs-empty" hidden>
    {
    markup.empty_state(
        "No run yet",
        "Every tokenizer, every set of shards and every model is made by a run. Start one and "
        "watch it here; it goes on when this page is closed.",
        tab="corpus",
        link="Begin with the text",
    )
}
  </div>
  <div class="ps-runs-board" hidden>
    <table class="ps-table ps-run-table" aria-label="Runs, the newest first">
      <thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col">Progress</th>
      <th scope="col">Time</th><th scope="col">Queued</th></tr></thead>
      <tbody></tbody>
    </table>
    <section class="ps-detail" aria-label="The chosen run"></section>
  </div>
</div>
"""


def render(workspace: Workspace, store: Store) -> None:
    """Makes the tab."""
    gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("chart.js", "runs.js"),
        server_functions=[
            _list_function(store),
            _detail_function(workspace, store),
            _points_function(store),
            _log_function(workspace, store),
            _action_function(workspace),
        ],
    )


Answer = Callable[..., dict[str, Any]]


def _list_function(store: Store) -> Answer:
    @answering
    def list_runs(question: dict[str, Any]) -> dict[str, Any]:
        """Returns the runs newer than `newest`, and those `open` at the last look."""
        newest = int(question.get("newest", 0))
        listed = store.list_runs(limit=_FIRST_RUNS)
        changed = [store.get_run(str(run)) for run in question.get("open", [])[:_FIRST_RUNS]]
        rows = {
            row.id: row for row in [*listed, *changed] if row and _is_news(row, newest, changed)
        }
        return {"runs": [summarize(row) for row in rows.values()]}

    return list_runs


def _is_news(row: RunRow, newest: int, changed: list[RunRow | None]) -> bool:
    return row.position > newest or any(one and one.id == row.id for one in changed)


def _detail_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_detail(question: dict[str, Any]) -> dict[str, Any]:
        """Returns what of a run changes only with its state."""
        row = store.find_run(str(question["run"]))
        return {
            "error": row.error,
            "warnings": row.warnings,
            "settings": _settings(row),
            "commands": _commands(row, workspace),
        }

    return run_detail


def _points_function(store: Store) -> Answer:
    @answering
    def run_points(question: dict[str, Any]) -> dict[str, Any]:
        return charts.points_since(store, str(question["run"]), int(question.get("after", 0)))

    return run_points


def _log_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_log(question: dict[str, Any]) -> dict[str, Any]:
        """Returns the end of the log, or nothing where it is still what was `seen`."""
        row = store.find_run(str(question["run"]))
        text = read_log_tail(workspace, row.id, lines=_LOG_LINES)
        seen = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        return {} if seen == question.get("seen") else {"text": text, "seen": seen}

    return run_log


def _action_function(workspace: Workspace) -> Answer:
    @answering
    def act_on_run(question: dict[str, Any]) -> dict[str, Any]:
        run, action = str(question["run"]), question["action"]
        actions = {
            "save": lambda: request_stop(workspace, run, "save"),
            "abort": lambda: request_stop(workspace, run, "abort"),
            "resume": lambda: resume_run(workspace, run),
            "delete": lambda: delete_run(workspace, run),
        }
        actions[action]()
        return {}

    return act_on_run


def _settings(row: RunRow) -> list[tuple[str, str]]:
    config = _config_of(row)
    if config is None:
        return [(name, str(value)) for name, value in row.config.items()]
    return list(_listed(config))


def _listed(config: StageConfig) -> list[tuple[str, str]]:
    """Returns a config's settings by title; groups of a corpus that don't apply are left out."""
    settings: list[tuple[str, str]] = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, StageConfig):
            settings += _listed(value)
        elif _applies(config, field_extra(field)["group"]):
            settings.append((title_of(name, field), _plain(value)))
    return settings


def _applies(config: StageConfig, group: str) -> bool:
    source = getattr(config, "source", None)
    return source is None or group.lower() not in ("files", "hub") or group.lower() == source


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _commands(row: RunRow, workspace: Workspace) -> list[tuple[str, str]]:
    config = _config_of(row)
    if config is None:
        return []
    place = str(workspace.root)
    return [
        ("Shell", shell_line(row.stage, config, place)),
        ("Python", python_lines(row.stage, config, place)),
    ]


def _config_of(row: RunRow) -> StageConfig | None:
    """Returns a run's config, or None where it was written by another version of the studio."""
    try:
        return parse_stage_config(row.stage, row.config)
    except StudioError:
        return None
