"""The Sweeps tab: trials with their settings and figures, and the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from core.config.base import StageConfig, fingerprint_of
from core.config.confining import confine, confine_value
from core.config.metrics import is_share
from core.config.options import title_of
from core.config.sweep import SweepConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.report.titles import metric_title
from core.stages.registry import STAGES, find_stage, title_of_stage
from core.store import Store
from core.sweeps.client import (
    LIMITS,
    create_sweep,
    parse_example,
    parse_sweep,
    resume_sweep,
    start_sweep,
    stop_sweep,
)
from core.sweeps.view import config_of_trial, describe_sweep, list_sweeps
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts import markup, sweep_form
from ui.parts.events import QUIET
from ui.parts.stage import Launcher
from ui.parts.where import require_check
from ui.present import answering, escape, guarded

_MOST_SWEEPS = 200
_LONGEST_TEXT = 1 << 16
_TEMPLATE = f"""
<div class="ps-sweeps">
  <div class="ps-sweeps-empty" hidden>
    {
    markup.empty_state(
        "No sweep yet",
        "A sweep runs a stage with several settings and shows which are best. Its trials are "
        "ordinary runs, and go on when you close this page.",
    )
}
  </div>
  <div class="ps-sweeps-board" hidden>
    <label class="ps-sweep-choice">Sweep <select aria-label="Sweep"></select></label>
    <section class="ps-sweep" aria-label="The selected sweep"></section>
  </div>
  <details class="ps-card ps-sweep-new" hidden>
    <summary>New sweep</summary>
    <form novalidate></form>
  </details>
</div>
"""


def render(workspace: Workspace, store: Store, training: Launcher) -> gr.HTML:
    """Renders the tab and returns its board, for `connect`."""
    form = training.form
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("sweeps.js"),
        server_functions=[
            _list_function(workspace),
            _show_function(workspace, store),
            _action_function(workspace),
            _start_function(workspace),
            _compose_function(workspace, training),
            _read_function(workspace),
        ],
        form=form.id,
        fields=sweep_form.list_fields(),
        settings=sweep_form.list_settings(),
        longest=_LONGEST_TEXT,
    )


def connect(board: gr.HTML, workspace: Workspace, launchers: Sequence[Launcher]) -> None:
    """Fills in the stage's form with the settings of a trial."""
    by_stage = {launcher.stage: launcher for launcher in launchers}

    def take(event: gr.EventData) -> dict[Any, Any]:
        name, number = str(event._data["sweep"]), int(event._data["trial"])
        stage, config = config_of_trial(workspace, name, number)
        if stage not in by_stage:
            raise ConfigError(
                f"The page has no form for the stage {stage}",
                expected="one of " + ", ".join(by_stage),
                received=stage,
                fix=f"use the command line: python -m core {stage}",
            )
        gr.Info(f"The settings of trial {number} of {escape(name)} are in the form.")
        return by_stage[stage].updates(config)

    outputs = [component for launcher in launchers for component in launcher.outputs]
    board.take(guarded(take), None, list(dict.fromkeys(outputs)), **QUIET)


Answer = Callable[..., dict[str, Any]]


def _list_function(workspace: Workspace) -> Answer:
    @answering
    def list_all_sweeps(question: dict[str, Any]) -> dict[str, Any]:
        sweeps = list_sweeps(workspace)[:_MOST_SWEEPS]
        names = [{"sweep": sweep["sweep"], "state": sweep["state"]} for sweep in sweeps]
        return {"sweeps": names}

    return list_all_sweeps


def _show_function(workspace: Workspace, store: Store) -> Answer:
    @answering
    def show_sweep(question: dict[str, Any]) -> dict[str, Any]:
        """Returns a sweep, or nothing if it is as the browser has `seen` it."""
        sweep = describe_sweep(workspace, store, str(question["sweep"]))
        model = STAGES[sweep["stage"]].config if sweep["stage"] in STAGES else StageConfig
        fields = model.model_fields
        shown = {
            **sweep,
            "metric_title": metric_title(sweep["metric"]),
            "metric_is_share": is_share(sweep["metric"]),
            "stage_title": title_of_stage(sweep["stage"]),
            "tab": STAGES[sweep["stage"]].tab if sweep["stage"] in STAGES else "",
            "titles": {
                name: title_of(name, fields[name]) for name in sweep["options"] if name in fields
            },
        }
        del shown["base"]
        seen = fingerprint_of(shown)
        return {} if seen == question.get("seen") else {"shown": shown, "seen": seen}

    return show_sweep


def _action_function(workspace: Workspace) -> Answer:
    @answering
    def act_on_sweep(question: dict[str, Any]) -> dict[str, Any]:
        name = str(question["sweep"])
        if question["action"] == "resume":
            resume_sweep(workspace, name, _read_limits(question.get("limits")))
        else:
            stop_sweep(workspace, name)
        return {}

    return act_on_sweep


def _read_limits(values: Any) -> dict[str, Any]:
    given = values if isinstance(values, dict) else {}
    return {name: given[name] for name in LIMITS if name in given}


def _start_function(workspace: Workspace) -> Answer:
    @answering
    def start_new_sweep(question: dict[str, Any]) -> dict[str, Any]:
        config = parse_sweep(str(question["text"])[:_LONGEST_TEXT])
        example = _confine(config, workspace)
        if isinstance(example, TrainConfig):
            require_check(example, workspace)
        folder = create_sweep(workspace, config)
        start_sweep(workspace, folder)
        return {"sweep": folder.name}

    return start_new_sweep


def _compose_function(workspace: Workspace, training: Launcher) -> Answer:
    @answering
    def compose_sweep(question: dict[str, Any]) -> dict[str, Any]:
        return sweep_form.compose(question, training.form, training.forecast, workspace)

    return compose_sweep


def _read_function(workspace: Workspace) -> Answer:
    @answering
    def read_sweep(question: dict[str, Any]) -> dict[str, Any]:
        return sweep_form.read(str(question["text"])[:_LONGEST_TEXT], workspace)

    return read_sweep


def _confine(config: SweepConfig, workspace: Workspace) -> StageConfig:
    """Confines the paths and artifacts of the base, and of each value of an option.

    Returns:
        The config of a possible trial.
    """
    fields = find_stage(config.stage).config.model_fields
    named = list(config.base.items())
    for name, values in config.options.items():
        listed = values.get("values", ()) if isinstance(values, dict) else values
        named += [(name, value) for value in listed] if isinstance(listed, list) else []
    # Before anything reads a file, and whether or not a trial with this value is valid.
    for name, value in named:
        if name in fields:
            for reference in value if isinstance(value, list) else [value]:
                if isinstance(reference, str):
                    confine_value(name, fields[name], reference, workspace)
    # Parsing finds those in tables and lists of the base. It may need values of options.
    example = parse_example(config, workspace)
    confine(example, workspace)
    return example
