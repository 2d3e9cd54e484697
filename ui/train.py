"""The Train tab, with live estimates and the TPU check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr

from core.artifacts.finding import must_be_fetched
from core.backends.devices import choose, estimate_devices, find_hardware
from core.config.options import option_label, split_references
from core.config.preflight import PreflightConfig
from core.config.presets import write_up_of
from core.config.shards import ShardConfig
from core.config.train import TrainConfig
from core.errors import DeviceError, StudioError
from core.families import list_family_names, objectives_of_family
from core.models.registry import count_parameters
from core.pretraining.explain import explain_automatic
from core.shards.read import is_remote, open_shards
from core.store import Store
from core.tokenizer.loading import load
from core.training import automatic, preflight, recipe
from core.training.compatibility import check_layout, incompatibilities
from core.training.inputs import TrainingInputs, objective_name, open_inputs
from core.training.interim_options import check_used
from core.training.mixture import BLOCK
from core.training.planner import START_SECONDS, estimate_seconds
from core.training.sources import check_epochs
from core.workspace.workspace import Workspace
from ui.forms import Form, labelled
from ui.parts import cost, markup, planner, where
from ui.parts.events import QUIET, listen
from ui.parts.labels import relabel
from ui.parts.preflight import render_report
from ui.parts.stage import Earlier, Forecast, Launcher, main_column, side_column, workbench
from ui.present import escape

_CHECK = """
<p class="ps-note">Compiles the training step with the settings above for a TPU that need not be
attached, and estimates memory, time and cost. Runs on this machine; nothing is booked.</p>
"""
_FETCHED_FIRST = """
<p class="ps-note">The shards or the checkpoint aren't on this machine. The run fetches them first
and then checks that they fit together.</p>
"""
_NO_SHARDS = """
<p class="ps-note ps-without-shards">No shards are chosen: enter a vocabulary size and a sequence
length.</p>
"""


class TrainForm(Form[TrainConfig]):
    """A form that ignores the chosen shards where a mixture is typed."""

    def _values(self, typed: Any) -> dict[str, Any]:
        values = super()._values(typed)
        return {**values, "shards": ""} if str(values.get("mixture") or "").strip() else values


def render(
    workspace: Workspace, store: Store, rows: Launcher, line: gr.HTML
) -> tuple[Launcher, Launcher]:
    """Renders the tab; returns the training and preflight launchers."""
    form = TrainForm(
        TrainConfig, "train", workspace, check=lambda config: _check(config, workspace)
    )
    launcher = Launcher(
        "train",
        form,
        workspace,
        forecast=lambda config: forecast_training(config, workspace),
        summarize=lambda config: _summarize(config, workspace),
        earlier=Earlier(rows, "shards", "Build new shards first", _check_shards_fit, "mixture"),
        require=lambda config: where.require_check(config, workspace),
        explain=explain_automatic,
    )
    with workbench():
        with main_column():
            planner_place = gr.Column()
            with gr.Column(elem_classes=["ps-card"]):
                where.render(form, workspace)
                fitting = gr.HTML(elem_id="train-fitting")
        with side_column():
            launcher.render_facts()
            launcher.render_start("Train")
            _render_hardware(form)
    with planner_place:
        planner.render(form, workspace)
    form.follow_artifacts(line)
    _offer_what_fits(form, fitting, launcher.anew, workspace)
    return launcher, _render_preflight(workspace, store, form)


def _check(config: TrainConfig, workspace: Workspace) -> None:
    check_used(config)
    where.check_place(config)
    if not config.target:
        choose(config, find_hardware())
    if not _is_far(config, workspace):
        open_inputs(config, workspace)


def _check_shards_fit(rows: ShardConfig, config: TrainConfig) -> None:
    check_layout(objective_name(config, config.family), rows.objective)


def _offer_what_fits(
    form: Form[TrainConfig], fitting: gr.HTML, anew: gr.Checkbox | None, workspace: Workspace
) -> None:
    chosen = [form.components[name] for name in ("shards", "family", "objective", "preset")]
    shards, family, objective, _ = chosen
    made_anew = [anew] if anew else []

    def offer(
        name: str, current: str, aim: str, preset: str, typed: Any, anew: bool = False
    ) -> list[Any]:
        reasons = {} if anew else _family_incompatibilities(name, workspace)
        families = list_family_names()
        offered = [name for name in families if not reasons.get(name)] or families
        choices = labelled(TrainConfig.model_fields["family"], offered)
        value = current if current in offered else offered[0]
        is_trainable = aim == "auto" or aim in objectives_of_family(value)
        return [
            gr.update(choices=choices, value=value),
            gr.skip() if is_trainable else "auto",
            _say_why(name, offered, reasons),
            *(
                [gr.skip()] * len(form.preset_outputs)
                if value == current
                else form.followed(preset, value, typed)
            ),
        ]

    listen(
        partial(gr.on, [shards.change, *(box.change for box in made_anew)]),
        offer,
        [*chosen, form.typed, *made_anew],
        [family, objective, fitting, *form.preset_outputs],
    )


def _family_incompatibilities(name: str, workspace: Workspace) -> dict[str, str]:
    if not name:
        return {}
    try:
        workspace.confine_artifact("shards", name, field="shards")
        if is_remote(name, workspace):
            return {}
        shards = open_shards(name, workspace)
        if shards.tokenizer_folder is None:
            return {}
        return incompatibilities(shards, load(str(shards.tokenizer_folder), workspace))
    except StudioError:
        return {}  # The forecast shows the error.


def _say_why(name: str, offered: list[str], reasons: dict[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for family in list_family_names():
        if family not in offered:
            by_reason.setdefault(reasons[family], []).append(family)
    if not by_reason:
        return ""
    parts = "; ".join(f"{_names(them)}: {relabel(reason)}" for reason, them in by_reason.items())
    return (
        f'<p class="ps-note">Families that can learn from {escape(name)}: '
        f"<b>{escape(_names(offered))}</b>. Not offered: {escape(parts)}.</p>"
    )


def _names(families: list[str]) -> str:
    field = TrainConfig.model_fields["family"]
    return ", ".join(option_label(field, family) for family in families)


def _render_hardware(form: Form[TrainConfig]) -> None:
    shown = gr.HTML(elem_id="train-hardware")

    def look(*raw: str) -> str:
        try:
            config = form.parse(*raw)
        except StudioError:
            return _hardware(None)
        return _write_up(config) + _hardware(config)

    gr.on(
        form.changes,
        look,
        inputs=form.inputs,
        outputs=shown,
        trigger_mode="always_last",
        **QUIET,
    )


def _write_up(config: TrainConfig) -> str:
    if config.preset == "fast":
        filled = TrainConfig.preset_values({"preset": "fast", "family": config.family})
        # Encoders only.
        masking = "more masking, " if filled["mlm_probability"] else ""
        return (
            '<p class="ps-note"><b>Fast</b> is our recipe for the lowest loss in a given time: '
            f"Muon, no dropout, {masking}and token embeddings from co-occurrence.</p>"
        )
    write_up = write_up_of(config.preset, config.family)
    if write_up is None:
        return ""
    return (
        f'<p class="ps-note">The values of <b>{escape(config.preset.capitalize())}</b> are from '
        f'<a href="{escape(write_up.source)}" target="_blank" rel="noreferrer">its write-up</a>: '
        f"{escape(write_up.setting)}; {escape(write_up.result)}.</p>"
    )


def _hardware(config: TrainConfig | None) -> str:
    if config is not None and config.target:
        return cost.place_note(config)
    hardware = find_hardware()
    has = f"This machine: {escape(hardware.describe())}."
    if config is None:
        return f'<p class="ps-note">{has}</p>'
    try:
        choice = choose(config, hardware)
    except StudioError as error:
        texts = error.rendered(relabel)
        words = escape(f"{texts['problem']}: {texts['received']}. What to do: {texts['fix']}.")
        return f'<p class="ps-note">{has}</p><p class="ps-warning">{words}</p>'
    engine = {"tensorflow": "TensorFlow", "jax": "JAX"}[choice.engine]
    return (
        f'<p class="ps-note">{has} The run uses <b>{engine} on the {choice.kind.upper()}</b>: '
        f"{escape(choice.reason)}.</p>"
    )


def _render_preflight(workspace: Workspace, store: Store, base: Form[TrainConfig]) -> Launcher:
    form = Form(
        PreflightConfig,
        "preflight",
        workspace,
        base=base,
        check=lambda config: _check_on_tpu(config, workspace),
    )
    launcher = Launcher("preflight", form, workspace, _estimate_check, _summarize_check)
    launcher.section = gr.Accordion(
        "Check on a TPU before you pay for it",
        open=False,
        elem_id="preflight-section",
        elem_classes=["ps-card", "ps-section", "ps-preflight-form"],
    )
    with launcher.section:
        gr.HTML(_CHECK)
        form.render()
        launcher.render_facts()
        launcher.render_start("Check on a TPU", "secondary")
        render_report(workspace, store, form)
    return launcher


def _check_on_tpu(config: PreflightConfig, workspace: Workspace) -> None:
    if not _is_far(config, workspace):
        preflight.check(config, workspace)


def _estimate_check(config: PreflightConfig) -> Forecast:
    return Forecast(_summarize_check(config), "" if config.shards else _NO_SHARDS)


def _summarize_check(config: PreflightConfig) -> str:
    return f"Check on a TPU {config.topology}"


def _is_far(config: TrainConfig, workspace: Workspace) -> bool:
    """No form should wait for a download."""
    shards = [config.shards, *split_references(config.mixture)]
    is_far = any(is_remote(reference, workspace) for reference in shards)
    return is_far or must_be_fetched(config.checkpoint, workspace)


def forecast_training(config: TrainConfig, workspace: Workspace) -> Forecast:
    """Describes the run that a form starts; raises StudioError."""
    if _is_far(config, workspace):
        return Forecast(_summarize(config, workspace), _FETCHED_FIRST)
    config, _ = automatic.explain(config, workspace)
    inputs = open_inputs(config, workspace)
    if config.evaluate_only:
        sequences = markup.count(len(inputs.validation_rows))
        return Forecast(f"Evaluate {config.checkpoint} on {sequences} sequences")
    plan = recipe.plan(
        config, inputs.epoch_length, inputs.shards.row_length, replicas=_replicas(config)
    )
    check_epochs(config, inputs.sources, plan.total_sequences)
    parameters = count_parameters(inputs.architecture)
    seconds, basis = _estimate_seconds(config, workspace, inputs, plan)
    hours = cost.estimate_hours(config, workspace)
    size = f"{markup.short_count(parameters)} parameters"
    steps = f"{markup.count(plan.num_train_steps)} steps"
    return Forecast(
        f"Train {_model(config)} ({size}) for {steps}{where.elsewhere(config, workspace)}",
        _facts(config, inputs, plan, parameters, _describe_time(seconds, hours), basis, hours),
        " · ".join(filter(None, [_describe_time(seconds, hours), size, steps])),
        seconds or (3600 * max(hours) if hours else None),
        where.known_price(config) if config.target else None,
    )


def _estimate_seconds(
    config: TrainConfig, workspace: Workspace, inputs: TrainingInputs, plan: recipe.Plan
) -> tuple[float | None, str]:
    """Returns seconds and their basis, for a device of this machine whose speed is known."""
    device = automatic.estimated_device(config, workspace, inputs.architecture.hidden_size)
    if config.target or not device.basis:
        return None, ""
    seconds = estimate_seconds(config, inputs, plan, device.flops, device.replicas)
    return seconds + START_SECONDS, device.basis


def _describe_time(seconds: float | None, hours: Sequence[float]) -> str:
    return markup.rough_duration(seconds) if seconds else cost.describe_hours(hours)


def _replicas(config: TrainConfig) -> int:
    if config.target:
        topology = cost.topology_of(config)
        return config.num_devices or (topology.cores if topology else 1)
    try:
        return estimate_devices(config, find_hardware())
    except DeviceError:
        return 1  # The hardware note shows the error.


def _summarize(config: TrainConfig, workspace: Workspace) -> str:
    if config.evaluate_only:
        return f"Evaluate {config.checkpoint}"
    return f"Train {_model(config)} for {_length(config)}{where.elsewhere(config, workspace)}"


def _length(config: TrainConfig) -> str:
    if config.num_train_steps:
        return f"{markup.count(config.num_train_steps)} steps"
    epochs = config.num_train_epochs
    if epochs is None:
        return f"about {config.minutes:g} minutes"
    return f"{epochs:g} epoch{'' if epochs == 1 else 's'}"


def _model(config: TrainConfig) -> str:
    family = option_label(TrainConfig.model_fields["family"], config.family)
    size = "" if config.size == "auto" else config.size
    return f"{family} {'from a config.json' if config.model_config_path else size}".strip()


def _facts(
    config: TrainConfig,
    inputs: TrainingInputs,
    plan: recipe.Plan,
    parameters: int,
    time: str,
    basis: str,
    hours: Sequence[float],
) -> str:
    settled = recipe.resolve_learning_rate(config, inputs.architecture, plan.global_batch_size)
    memory = recipe.estimate_memory_bytes(
        inputs.architecture, parameters, config, inputs.shards.row_length
    )
    figures = [
        ("time, roughly", time or "unknown"),
        ("memory, roughly", markup.byte_count(memory)),
        ("parameters", markup.short_count(parameters)),
        ("steps", markup.count(plan.num_train_steps)),
    ]
    details = [
        ("epochs", f"{plan.num_train_epochs:.3g}"),
        ("tokens per step", markup.count(plan.tokens_per_step)),
        ("total tokens", markup.short_count(plan.total_tokens)),
        ("tokens per parameter", f"{plan.tokens_per_parameter(parameters):.3g}"),
        ("peak learning rate", f"{settled.learning_rate:.3g}"),
    ]
    if basis:
        details.insert(0, ("time from", basis))
    details += _source_rows(inputs, plan)
    if config.target:
        details[:0] = cost.cost_rows(config, hours)
    return markup.tiles(figures) + markup.tiles(details, rows=True)


def _source_rows(inputs: TrainingInputs, plan: recipe.Plan) -> list[tuple[str, str]]:
    """Shows each source of a mixture with its share and epochs."""
    if not inputs.sources.from_mixture:
        return []
    epochs = inputs.sources.epochs(plan.total_sequences)
    return [
        (
            f"{source.name}, {source.share / BLOCK:.1%} of the mixture",
            f"{epochs[source.name]:.3g} epochs",
        )
        for source in inputs.sources.all
    ]
