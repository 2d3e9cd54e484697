"""The Train tab: the model and its recipe, with what they come to worked out as one types."""

from __future__ import annotations

import gradio as gr

from core.config import TrainConfig
from core.models.registry import count_parameters
from core.training import recipe
from core.training.inputs import TrainingInputs, open_inputs
from core.workspace import Workspace
from ui.forms import Form
from ui.parts import markup
from ui.parts.stage import Forecast, Launcher

_NO_SHARDS = markup.empty_state(
    "No shards chosen",
    "Shards are the rows of tokens that a model is trained on. Build some, and they appear in the "
    "menu above.",
    tab="shards",
    link="Build shards",
)


def render(workspace: Workspace, line: gr.HTML) -> Form[TrainConfig]:
    """Makes the tab and returns its form.

    Args:
        workspace: Where shards are found and the run goes.
        line: The status line, whose `artifacts` event tells of new shards.
    """
    form = Form(
        TrainConfig, "train", workspace, check=lambda config: open_inputs(config, workspace)
    )
    launcher = Launcher(
        "train",
        form,
        workspace,
        forecast=lambda config: _forecast(config, workspace),
    )
    with gr.Column(elem_classes=["ps-card"]):
        form.render()
        launcher.render_facts()
        launcher.render_start("Train")
    form.follow_artifacts(line)
    return form


def _forecast(config: TrainConfig, workspace: Workspace) -> Forecast:
    if not config.shards:
        return Forecast("Train", _NO_SHARDS)
    inputs = open_inputs(config, workspace)
    if config.evaluate_only:
        rows = markup.count(len(inputs.validation_rows))
        return Forecast(f"Evaluate {config.checkpoint} on {rows} rows")
    plan = recipe.plan(config, len(inputs.train_rows), inputs.shards.row_length)
    parameters = count_parameters(inputs.architecture)
    return Forecast(
        f"Train {config.family} {_size(config)} ({markup.short_count(parameters)} parameters) for "
        f"{markup.count(plan.num_train_steps)} steps",
        _facts(config, inputs, plan, parameters),
    )


def _size(config: TrainConfig) -> str:
    return "from a config.json" if config.model_config_path else config.size


def _facts(config: TrainConfig, inputs: TrainingInputs, plan: recipe.Plan, parameters: int) -> str:
    memory = recipe.estimate_memory_bytes(
        inputs.architecture, parameters, config, inputs.shards.row_length
    )
    return markup.tiles(
        [
            ("parameters", markup.short_count(parameters)),
            ("steps", markup.count(plan.num_train_steps)),
            ("epochs", f"{plan.num_train_epochs:.3g}"),
            ("tokens a step", markup.count(plan.tokens_per_step)),
            ("tokens in all", markup.short_count(plan.total_tokens)),
            ("tokens per parameter", f"{plan.tokens_per_parameter(parameters):.3g}"),
            ("memory, roughly", markup.byte_count(memory)),
        ]
    )
