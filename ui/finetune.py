"""The Fine-tune tab: classification, regression and tagging."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import gradio as gr

from core.architecture.heads import Kind
from core.config.finetune import FinetuneConfig
from core.corpus.table_preview import TablePreview
from core.finetuning.data import check_files
from core.finetuning.glue import GLUE, with_glue
from core.finetuning.names import is_of_finetuning
from core.finetuning.previewing import preview_examples_apart
from core.finetuning.search import count_trainings
from core.finetuning.subjects import check_tunable
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui.parts import cost, markup, where
from ui.parts.data_picker import DataPicker, PickedFile
from ui.parts.examples import architecture_of, tokenizer_of
from ui.parts.expected_time import finetuning_time
from ui.parts.result_list import render_results, results_table
from ui.parts.results import finetuning_headline, results_of
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench
from ui.parts.subjects import SubjectForm, find_subject

_TASKS = {
    "classification": "Classification",
    "regression": "Regression",
    "token_classification": "Token classification",
}
_NONE_YET = markup.empty_state(
    "No fine-tuned model yet",
    "Its metrics appear here, beside those of the majority class and of random weights.",
)


_FILES = (
    PickedFile("train_path", "Training file"),
    PickedFile("validation_path", "Development file"),
    PickedFile("test_path", "Test file"),
)


class _TuningForm(SubjectForm[FinetuneConfig]):
    """A form that offers fine-tuned models, too, after the pretrained ones."""

    def _names(self, kind: str) -> list[str]:
        names = super()._names(kind)
        tuned = _fine_tuned(self._workspace) if kind == "model" else []
        return [*names, *(model.name for model in tuned)]


def render(workspace: Workspace, line: gr.HTML) -> Launcher:
    """Renders the tab and returns its launcher.

    Args:
        line: Its `artifacts` event reports new models.
    """
    form = _TuningForm(
        FinetuneConfig, "finetune", workspace, check=lambda config: _check(config, workspace)
    )
    picker = DataPicker(form, workspace, _FILES, _preview, _dataset_of)

    def forecast(config: FinetuneConfig) -> Forecast:
        return _forecast(config, picker, workspace)

    launcher = Launcher(
        "finetune", form, workspace, forecast, lambda config: _summarize(config, workspace),
        require=lambda config: where.require_check(config, workspace),
    )  # fmt: skip
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            data = {"Data": picker.render_preview}, {"Data": picker.render_zones}
            where.render(form, workspace, *data)
            picker.connect()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Fine-tune")
    form.follow_artifacts(line)
    render_results(
        line, id="finetune", title="Fine-tuned models in this workspace",
        nothing=_NONE_YET, find=lambda: _fine_tuned(workspace), table=_list, show=_show,
    )  # fmt: skip
    return launcher


def _check(config: FinetuneConfig, workspace: Workspace) -> None:
    where.check_place(config)
    folder = find_subject(config.model, workspace)
    config = with_glue(config)
    if folder:
        kind: Kind = "token" if config.task == "token_classification" else "sequence"
        check_tunable(folder, kind, config.model)
    check_files(config)


def _preview(config: FinetuneConfig, field: str) -> TablePreview:
    return preview_examples_apart(config, field.removesuffix("_path"))


def _dataset_of(config: FinetuneConfig) -> str:
    return GLUE if config.glue else config.dataset_name


def _forecast(config: FinetuneConfig, picker: DataPicker, workspace: Workspace) -> Forecast:
    rates, seeds = len(config.rates), config.num_seeds
    seen, model = picker.known(config, "train_path"), architecture_of(config.model, workspace)
    time = (
        finetuning_time(config, seen, model, tokenizer_of(config.model, workspace))
        if seen and model and not config.target
        else "unknown"
    )
    figures = [
        ("time, roughly", time),
        ("learning rates", markup.count(rates)),
        ("seeds", markup.count(seeds)),
        ("trainings, half from random weights", markup.count(2 * count_trainings(config))),
    ]
    known = f"{time} · " if seen and not config.target else ""
    summary = f"{known}{2 * count_trainings(config)} trainings · {_TASKS[config.task]}"
    facts = markup.tiles(figures) + cost.tiles_of(config)
    return Forecast(_summarize(config, workspace), facts, summary)


def _summarize(config: FinetuneConfig, workspace: Workspace) -> str:
    place = where.elsewhere(config, workspace)
    return f"Fine-tune {config.model or 'a model'} on {_data_of(config)}{place}"


def _data_of(config: FinetuneConfig) -> str:
    if config.glue:
        return f"GLUE {config.glue}"
    return PurePath(config.train_path).name or config.dataset_name or "a file"


def _fine_tuned(workspace: Workspace) -> list[Artifact]:
    return [model for model in workspace.list("model") if is_of_finetuning(model.manifest)]


def _list(models: Sequence[Artifact]) -> str:
    label = "Fine-tuned models in this workspace"
    shown = finetuning_headline
    return results_table(models, origin="From", tasks=_TASKS, headline=shown, label=label)


def _show(model: Artifact) -> str:
    return results_of("finetune", model.manifest.counts) + markup.links_of_model(model.name)
