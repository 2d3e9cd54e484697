"""The Runs tab: all runs with state, curves, log and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import gradio as gr

from core.errors import ConfigError, StudioError
from core.records.folder import RunFolder
from core.report.page import report_page
from core.report.settings import list_settings, read_settings, settings_file
from core.runs.client import (
    annotate_run,
    choose_slots,
    config_of,
    delete_run,
    read_log_tail,
    request_stop,
    resume_run,
)
from core.runs.commands import python_lines, shell_line
from core.runs.search import HELP, find_runs
from core.runs.slots import MOST_SLOTS, get_slots
from core.stages.registry import parse_stage_config, title_of_stage
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts import compare, markup, remote
from ui.parts.cleaning import describe_report as describe_cleaning
from ui.parts.events import QUIET
from ui.parts.nodes import nodes_of
from ui.parts.preflight import describe_report, is_report, take_batch_size
from ui.parts.results import results_of
from ui.parts.run_answers import events_function, points_function
from ui.parts.run_rows import (
    BAD_ENDINGS,
    describe_alert,
    ending_of,
    error_of,
    metric_of,
    remake_of,
    summarize,
)
from ui.parts.stage import Launcher
from ui.parts.verdicts import describe_verdict
from ui.present import answering, escape, guarded, is_link, run_of

_FIRST_RUNS = 100
_LOG_LINES = 200
_MOST_LOG_BYTES = 8 << 20
_MOST_SEARCH_CHARACTERS = 200
_LINES_OF_A_BAD_END = 12
_FIGURES = (
    "eval_loss", "eval_perplexity", "eval_accuracy", "frequency_baseline_loss", "best_step",
)  # fmt: skip

_TEMPLATE = f"""
<div class="ps-runs">
  <div class="ps-runs-empty" hidden>
    {
    markup.empty_state(
        "No run yet",
        "A run trains a tokenizer, builds shards or trains a model. Start one and watch it here. "
        "It continues when you close this page.",
        tab="corpus",
        link="Choose a corpus",
    )
}
  </div>
  <div class="ps-runs-board" hidden>
    <div class="ps-run-list">
      <div class="ps-queue"><span></span><label>Runs at a time <select></select></label>
      <button type="button" class="ps-link ps-machines-open">Machines</button></div>
      <form class="ps-search" role="search">
      <label>Filter<input type="search" name="filter" autocomplete="off" spellcheck="false"
        maxlength="400" placeholder="state=done learning_rate&gt;1e-4"
        aria-describedby="ps-search-help"></label>
      <label>Sort<select name="sort">
        <option value="">Newest first</option><option value="sort:created">Oldest first</option>
        <option value="sort:name">Name</option>
        <option value="sort:eval_loss">Validation loss</option>
        <option value="sort:-eval_accuracy">Accuracy</option>
        <option value="sort:-duration">Duration</option></select></label>
      <button type="button" class="ps-help-inline" aria-expanded="false"
        aria-controls="ps-search-help" aria-label="Help about the filter">?</button>
      <p id="ps-search-help" class="ps-note" hidden>{escape(HELP)}</p>
      <div class="ps-search-problem" role="status"></div></form>
      <div class="ps-selection"><button type="button" class="ps-button ps-compare-open" disabled>
      Compare</button><span aria-live="polite">Select two or more runs.</span></div>
      <div class="ps-scroll">
      <table class="ps-table ps-run-table" aria-label="Runs, the newest first">
        <thead><tr><th scope="col">Run</th><th scope="col">State</th>
        <th scope="col">Progress</th></tr></thead>
        <tbody></tbody>
      </table>
      <p class="ps-older" hidden>
      <button type="button" class="ps-button">Show older runs</button></p>
      </div>
    </div>
    <section class="ps-detail" aria-label="The selected run"></section>
  </div>
  <section class="ps-compare" aria-label="Comparison of runs" hidden></section>
  <dialog class="ps-machines" aria-labelledby="ps-machines-title">
    <h3 id="ps-machines-title">Machines of your runs</h3>
    <p class="ps-note">What still exists at each target that a run has used.</p>
    <div class="ps-machines-list" aria-live="polite"></div>
    <form method="dialog">
    <button type="button" class="ps-button ps-machines-again">Look again</button>
    <button class="ps-button">Close</button></form>
  </dialog>
</div>
"""


def render(workspace: Workspace, store: Store) -> gr.HTML:
    """Renders the tab and returns its board, for `connect`."""
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("runs.js"),
        server_functions=[
            _list_function(workspace, store),
            _detail_function(workspace, store),
            points_function(workspace, store),
            compare.comparison_function(workspace, store),
            compare.curves_function(workspace, store),
            compare.table_function(workspace, store),
            _log_function(workspace, store),
            _log_search_function(workspace, store),
            _log_file_function(workspace, store),
            events_function(workspace, store),
            _action_function(workspace),
            _search_function(workspace, store),
            _notes_function(workspace),
            _slots_function(workspace),
            _report_function(workspace, store),
            _export_function(store),
            remote.notebook_function(workspace, store),
            remote.phases_function(workspace, store),
            remote.machines_function(workspace),
            remote.deletion_function(workspace),
        ],
    )


def connect(board: gr.HTML, importer: gr.HTML, store: Store, launchers: Sequence[Launcher]) -> None:
    """Fills in forms with cloned or imported settings.

    Args:
        board: Result of `render`.
        importer: Its `settings` event brings a file.
    """
    by_stage = {launcher.stage: launcher for launcher in launchers}

    def clone(event: gr.EventData) -> dict[Any, Any]:
        return _clone(run_of(event._data), store, by_stage)

    def take_settings(event: gr.EventData) -> dict[Any, Any]:
        return _take_settings(str(event._data["text"]), by_stage)

    outputs = [component for launcher in launchers for component in launcher.outputs]
    for listen, handler in ((board.clone, clone), (importer.settings, take_settings)):
        listen(
            guarded(handler),
            None,
            list(dict.fromkeys(outputs)),
            **QUIET,
        )
    if "train" in by_stage:
        take_batch_size(board, by_stage["train"].form)


def _clone(run: str, store: Store, launchers: Mapping[str, Launcher]) -> dict[Any, Any]:
    row = store.find_run(run)
    config = parse_stage_config(row.stage, row.config)
    launcher = _launcher_of(row.stage, launchers)
    gr.Info(f"The settings of {escape(row.id)} are in the form; the name is left to be chosen.")
    return launcher.updates(config.model_copy(update={"name": ""}))


def _take_settings(text: str, launchers: Mapping[str, Launcher]) -> dict[Any, Any]:
    stage, config = read_settings(text)
    launcher = _launcher_of(stage, launchers)
    gr.Info(f"The settings are in the form of the {title_of_stage(stage)}.")
    return launcher.updates(config)


def _launcher_of(stage: str, launchers: Mapping[str, Launcher]) -> Launcher:
    if stage not in launchers:
        raise ConfigError(
            f"The page has no form for the stage {stage}",
            expected="one of " + ", ".join(launchers),
            received=stage,
            fix=f"use the command line: python -m core {stage} --config FILE",
        )
    return launchers[stage]


Answer = Callable[..., dict[str, Any]]


def _list_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def list_runs(question: dict[str, Any]) -> dict[str, Any]:
        """Returns runs after `newest` or before `before`, plus active and `open` ones.

        `gone` lists deleted `open` runs; `oldest` is the lowest position, 0 at the end.
        """
        newest, before = int(question.get("newest", 0)), int(question.get("before", 0))
        listed = store.list_runs(limit=_FIRST_RUNS, before=before or None)
        new = [row for row in listed if before or row.position > newest]
        active = store.list_runs(states=ACTIVE_STATES, limit=MOST_SLOTS)
        asked = [str(run) for run in question.get("open", [])[:_FIRST_RUNS]]
        rows_by_id = {run: store.get_run(run) for run in asked}
        rows = {row.id: row for row in [*new, *active, *rows_by_id.values()] if row}
        return {
            "runs": [
                {**summarize(row, workspace), "metric": metric_of(row, store)}
                for row in rows.values()
            ],
            "gone": [run for run, row in rows_by_id.items() if row is None],
            "oldest": listed[-1].position if len(listed) == _FIRST_RUNS else 0,
            "active": store.count_runs(ACTIVE_STATES),
            "queued": store.count_runs(("queued",)),
            "slots": get_slots(store),
        }

    return list_runs


def _search_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def search_runs(question: dict[str, Any]) -> dict[str, Any]:
        """Returns the ids of the runs that fit a query, in order, and the first of the runs."""
        text = f"{question.get('filter', '')} {question.get('sort', '')}"
        rows = find_runs(workspace, store, text)
        return {
            "ids": [row.id for row in rows],
            "runs": [
                {**summarize(row, workspace), "metric": metric_of(row, store)}
                for row in rows[:_FIRST_RUNS]
            ],
        }

    return search_runs


def _notes_function(workspace: Workspace) -> Answer:
    @answering
    def annotate(question: dict[str, Any]) -> dict[str, Any]:
        annotate_run(
            workspace,
            run_of(question),
            title=str(question.get("title", "")),
            tags=str(question.get("tags", "")).split(","),
            notes=str(question.get("notes", "")),
        )
        return {}

    return annotate


def _detail_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_detail(question: dict[str, Any]) -> dict[str, Any]:
        """Returns facts that change only with the state."""
        row = store.find_run(run_of(question))
        folder = RunFolder.of(workspace, row.id)
        return {
            "error": error_of(row) or None,
            "ending": ending_of(row),
            "remake": remake_of(row, store),
            "verdict": describe_verdict(row) if row.has_ended else None,
            "log_end": _log_end(workspace, row),
            "figures": _figures(row),
            "has_samples": bool(row.config.get("sample_predictions")),
            "warnings": [_warning(warning) for warning in reversed(row.warnings)],
            "devices": folder.device(),
            "preflight": _preflight(row),
            "results": nodes_of(results_of(row.stage, {**row.results, "artifact": row.artifact})),
            "cleaning": _cleaning(row, workspace),
            "published": _published(row),
            "settings": _settings(row, folder.resolved()),
            "commands": _commands(row, workspace),
        }

    return run_detail


def _log_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_log(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        text = read_log_tail(workspace, row.id, lines=_LOG_LINES)
        seen = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        return {} if seen == question.get("seen") else {"text": text, "seen": seen}

    return run_log


def _log_search_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def search_log(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        text = str(question.get("text", ""))[:_MOST_SEARCH_CHARACTERS]
        lines, count = RunFolder.of(workspace, row.id).find_in_log(text)
        return {"text": "\n".join(lines[-_LOG_LINES:]), "count": count}

    return search_log


def _log_file_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def log_file(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        text = RunFolder.of(workspace, row.id).log_end(_MOST_LOG_BYTES)
        return {"name": f"{row.id}.log.txt", "text": text}

    return log_file


def _action_function(workspace: Workspace) -> Answer:
    @answering
    def act_on_run(question: dict[str, Any]) -> dict[str, Any]:
        run, action = run_of(question), question["action"]
        actions: dict[Any, Callable[[], object]] = {
            "save": lambda: request_stop(workspace, run, "save"),
            "abort": lambda: request_stop(workspace, run, "abort"),
            "resume": lambda: remote.resume(workspace, run, question),
            "extend": lambda: _extend(workspace, run, str(question.get("steps", ""))),
            "delete": lambda: delete_run(workspace, run),
        }
        actions[action]()
        return {}

    return act_on_run


def _report_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def run_report(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        return {"name": f"{row.id}.html", "text": report_page(workspace, store, row)}

    return run_report


def _export_function(store: Store) -> Answer:
    @answering
    def run_settings(question: dict[str, Any]) -> dict[str, Any]:
        row = store.find_run(run_of(question))
        return {"name": f"{row.id}.json", "text": settings_file(row)}

    return run_settings


def _slots_function(workspace: Workspace) -> Answer:
    @answering
    def set_run_slots(question: dict[str, Any]) -> dict[str, Any]:
        choose_slots(workspace, int(question["slots"]))
        return {}

    return set_run_slots


def _extend(workspace: Workspace, run: str, steps: str) -> None:
    digits = re.sub(r"[\s,_]", "", steps)
    if not digits.isdecimal():
        raise ConfigError(
            "That is not a number of steps",
            expected="a whole number: the steps in all, those that are done included",
            received=steps or "nothing",
            field="num_train_steps",
        )
    resume_run(workspace, run, num_train_steps=int(digits))


def _log_end(workspace: Workspace, row: RunRow) -> str:
    if row.state not in BAD_ENDINGS:
        return ""
    return read_log_tail(workspace, row.id, lines=_LINES_OF_A_BAD_END)


def _preflight(row: RunRow) -> dict[str, Any] | None:
    if not is_report(row.results):
        return None
    return describe_report(row.results, row.config, row.config.get("price_per_chip_hour"))


def _cleaning(row: RunRow, workspace: Workspace) -> dict[str, Any] | None:
    """Describes the report of a cleaned corpus, as long as that exists."""
    if row.stage != "clean" or row.state != "done":
        return None
    try:
        return describe_cleaning(workspace.find_own("corpus", row.name))
    except StudioError:
        return None


def _figures(row: RunRow) -> dict[str, float]:
    """The model may be from a step before the last."""
    if row.stage != "train" or row.state != "done":
        return {}
    figures = {name: row.results.get(name) for name in _FIGURES}
    return {name: value for name, value in figures.items() if isinstance(value, int | float)}


def _published(row: RunRow) -> list[str]:
    if row.stage != "push" or row.results.get("dry_run", True):
        return []
    results = row.results
    pages = (results.get("url") if results.get("commit") else "", results.get("space_url"))
    return [str(page) for page in pages if is_link(page)]


def _warning(warning: dict[str, Any]) -> dict[str, Any]:
    kind = describe_alert(warning.get("alert", ""))
    return {"kind": kind, "message": warning["message"], "time": warning["time"]}


def _settings(row: RunRow, resolved: Mapping[str, Any]) -> list[tuple[str, str]]:
    config = config_of(row)
    if config is None:
        return [(name, str(value)) for name, value in row.config.items()]
    return list_settings(config, resolved)


def _commands(row: RunRow, workspace: Workspace) -> list[tuple[str, str]]:
    config = config_of(row)
    if config is None:
        return []
    place = str(workspace.root)
    return [
        ("Shell", shell_line(row.stage, config, place)),
        ("Python", python_lines(row.stage, config, place)),
    ]
