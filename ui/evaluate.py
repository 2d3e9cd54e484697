"""The Evaluate tab: minimal pairs and held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import gradio as gr

from core.config.evaluate import EvaluateConfig
from core.evaluation.documents import check_is_named, check_text
from core.evaluation.pairs import check_pairs
from core.evaluation.previewing import preview_evaluation_apart
from core.evaluation.unused import check_used
from core.models.hf import check_pretrained
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui.parts import cost, markup, where
from ui.parts.data_picker import DataPicker, PickedFile
from ui.parts.examples import architecture_of, tokenizer_of
from ui.parts.expected_time import evaluation_time
from ui.parts.result_list import render_results, results_table
from ui.parts.results import headline, results_of
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench
from ui.parts.subjects import SubjectForm, find_subject

_TASKS = {"minimal_pairs": "Minimal pairs", "text": "Held-out text"}
_NONE_YET = markup.empty_state(
    "No evaluation yet",
    "Accuracies on minimal pairs, or bits per byte of held-out text, appear here.",
)


def render(workspace: Workspace, line: gr.HTML) -> Launcher:
    """Renders the tab and returns its launcher.

    Args:
        line: Its `artifacts` event reports new models and evaluations.
    """
    form = SubjectForm(
        EvaluateConfig, "evaluate", workspace, check=lambda config: _check(config, workspace)
    )
    picker = DataPicker(
        form, workspace, [PickedFile("path", "Upload files", is_multiple=True)],
        lambda config, _: preview_evaluation_apart(config), lambda config: str(config.dataset),
    )  # fmt: skip

    def forecast(config: EvaluateConfig) -> Forecast:
        return _forecast(config, picker, workspace)

    launcher = Launcher(
        "evaluate", form, workspace, forecast, lambda config: _summarize(config, workspace),
        require=lambda config: where.require_check(config, workspace),
    )  # fmt: skip
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            data = {"Data": picker.render_preview}, {"Data": picker.render_zones}
            where.render(form, workspace, *data)
            picker.connect()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Evaluate")
    form.follow_artifacts(line)
    render_results(
        line, id="evaluate", title="Evaluations in this workspace", nothing=_NONE_YET,
        find=lambda: workspace.list("evaluation"), table=_list,
        show=lambda evaluation: results_of("evaluate", evaluation.manifest.counts),
    )  # fmt: skip
    return launcher


def _check(config: EvaluateConfig, workspace: Workspace) -> None:
    """Checks files; the run itself reads datasets on the Hub."""
    where.check_place(config)
    if folder := find_subject(config.model, workspace):
        check_pretrained(folder, config.model)
    check_used(config)
    if config.task == "text":
        check_is_named(config)
    if config.path:
        check = check_text if config.task == "text" else check_pairs
        check(config)


def _forecast(config: EvaluateConfig, picker: DataPicker, workspace: Workspace) -> Forecast:
    seen, model = picker.known(config, "path"), architecture_of(config.model, workspace)
    summary = f"{_TASKS[config.task]} · {_data_of(config)}"
    title = _summarize(config, workspace)
    if config.target or not seen or not model:
        return Forecast(title, cost.tiles_of(config), summary)
    time = evaluation_time(config, seen, model, tokenizer_of(config.model, workspace))
    facts = markup.tiles([("time, roughly", time)])
    return Forecast(title, facts, f"{time} · {summary}")


def _summarize(config: EvaluateConfig, workspace: Workspace) -> str:
    place = where.elsewhere(config, workspace)
    return f"Evaluate {config.model or 'a model'} on {_data_of(config)}{place}"


def _data_of(config: EvaluateConfig) -> str:
    if config.path:
        return PurePath(config.path).name or config.path
    return config.dataset or "a text"


def _list(evaluations: Sequence[Artifact]) -> str:
    label = "Evaluations in this workspace"
    return results_table(evaluations, origin="Model", tasks=_TASKS, headline=headline, label=label)
