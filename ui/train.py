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
from ui.parts.stage import Earlier, Forecast, Launcher


def render(workspace: Workspace, rows: Launcher, line: gr.HTML) -> Launcher:
    """Makes the tab and returns what starts its runs.

    Args:
        workspace: Where shards are found and the run goes.
        rows: What builds shards where there are none.
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
        summarize=_summarize,
        earlier=Earlier(rows, "shards", "Make new shards first, from the text"),
    )
    with gr.Column(elem_classes=["ps-card"]):
        form.render()
        launcher.render_facts()
        launcher.render_start("Train")
    form.follow_artifacts(line)
    return launcher


def _forecast(config: TrainConfig, workspace: Workspace) -> Forecast:
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


def _summarize(config: TrainConfig) -> str:
    if config.evaluate_only:
        return f"Evaluate {config.checkpoint}"
    return f"Train {config.family} {_size(config)} for {_length(config)}"


def _length(config: TrainConfig) -> str:
    if config.num_train_steps:
        return f"{markup.count(config.num_train_steps)} steps"
    epochs = config.num_train_epochs
    return f"{epochs:g} epoch{'' if epochs == 1 else 's'}"


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
