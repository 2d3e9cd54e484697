"""Checks what may change when a run resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts.checkpoint import TrainingState
from core.config.train import TrainConfig
from core.errors import CheckpointError
from core.records.events import EVENTS_FILE, read_events
from core.training.recipe import Plan, extend

# Compared by fingerprint, or not read on a resume.
_REFERENCES = ("shards", "mixture", "tokenizer", "checkpoint")
# Checked by `resumed_plan`.
_EXTENDABLE = ("num_train_steps",)


def check_nothing_is_lost(folder: Path) -> None:
    """Raises CheckpointError if saved checkpoints are missing."""
    events, _ = read_events(folder / EVENTS_FILE)
    saved = [event.get("step", "?") for event in events if event["kind"] == "checkpoint"]
    if saved:
        raise CheckpointError(
            f"The checkpoints of the run {folder.name} are missing",
            expected=f"the checkpoint of step {saved[-1]} in {folder}, or an earlier one",
            fix="restore them from a copy, or start a new run",
        )


def check_same_run(state: TrainingState, config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Raises CheckpointError if settings or inputs differ from the first start's."""
    before = {**_settings(state.config), **state.fingerprints}
    now = {**_settings(config.model_dump(mode="json")), **fingerprints}
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        raise CheckpointError(
            "This run was started with other settings",
            expected=", ".join(f"⟬{name}={before.get(name)!r}⟭" for name in names),
            received=", ".join(f"⟬{name}={now.get(name)!r}⟭" for name in names),
            fix="resume with the original settings, or start a new run from the weights with "
            "⟬--checkpoint⟭",
            field=names[0] if names[0] in TrainConfig.model_fields else "",
        )


def resumed_plan(config: TrainConfig, plan: Plan, step: int) -> Plan:
    """Updates the first plan; CheckpointError if shortened."""
    wanted = config.num_train_steps or plan.num_train_steps
    if wanted < plan.num_train_steps:
        raise CheckpointError(
            "A run can be extended, but not shortened",
            expected=f"⟬num_train_steps={plan.num_train_steps}⟭ or more",
            received=f"⟬num_train_steps={wanted}⟭",
            fix="to end the run early, stop it: the best checkpoint is kept",
            field="num_train_steps",
        )
    if wanted > plan.num_train_steps:
        plan = _less_often(
            config, extend(config, plan, step, wanted), wanted // plan.num_train_steps
        )
    return replace(
        plan,
        eval_steps=config.eval_steps or plan.eval_steps,
        save_steps=config.save_steps or plan.save_steps,
        logging_steps=config.logging_steps or plan.logging_steps,
    )


def _less_often(config: TrainConfig, plan: Plan, times: int) -> Plan:
    if not config.eval_steps and not config.save_steps:
        plan = replace(plan, eval_steps=plan.eval_steps * times, save_steps=plan.save_steps * times)
    return replace(plan, logging_steps=plan.logging_steps * times)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    defaults |= TrainConfig.implied_values()
    ignored = {*TrainConfig.fields_outside_identity(), *_REFERENCES, *_EXTENDABLE}
    return {name: value for name, value in {**defaults, **values}.items() if name not in ignored}
