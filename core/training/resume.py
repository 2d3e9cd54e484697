"""Checks what may change when a run resumes, and updates its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from core.config import TrainConfig
from core.errors import CheckpointError
from core.events import EVENTS_FILE, read_events
from core.training.checkpoint import TrainingState
from core.training.recipe import Plan, extend

# Compared by fingerprint, so names and paths may change. A resumed run reads its own checkpoints,
# not the model that it started from.
_REFERENCES = ("shards", "tokenizer", "checkpoint")
# Checked by `resumed_plan`: a run can be extended.
_EXTENDABLE = ("num_train_steps",)


def check_nothing_is_lost(folder: Path) -> None:
    """Checks that a run without a checkpoint has never saved one.

    Raises:
        CheckpointError: The run has reported a save.
    """
    events, _ = read_events(folder / EVENTS_FILE)
    saved = [event.get("step", "?") for event in events if event["kind"] == "checkpoint"]
    if saved:
        raise CheckpointError(
            f"The checkpoints of the run {folder.name} are missing",
            expected=f"the checkpoint of step {saved[-1]} in {folder}, or an earlier one",
            received="none",
            fix="restore them from a copy, or start a new run",
        )


def check_same_run(state: TrainingState, config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Checks that settings, shards and tokenizer equal those at the run's first start.

    The intervals of saving, validation and logging may differ, as may backend, device and number of
    steps (`resumed_plan`).

    Raises:
        CheckpointError: With every difference.
    """
    before = {**_settings(state.config), **state.fingerprints}
    now = {**_settings(config.model_dump(mode="json")), **fingerprints}
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        raise CheckpointError(
            "This run was started with other settings",
            expected=", ".join(f"{name}={before.get(name)!r}" for name in names),
            received=", ".join(f"{name}={now.get(name)!r}" for name in names),
            fix="resume with the original settings, or start a new run from the weights with "
            "--checkpoint",
            field=names[0] if names[0] in TrainConfig.model_fields else "",
        )


def resumed_plan(config: TrainConfig, plan: Plan, step: int) -> Plan:
    """Updates the plan of the first start with the settings that may change.

    Raises:
        CheckpointError: The settings ask for fewer steps than planned.
    """
    wanted = config.num_train_steps or plan.num_train_steps
    if wanted < plan.num_train_steps:
        raise CheckpointError(
            "A run can be extended, but not shortened",
            expected=f"num_train_steps={plan.num_train_steps} or more",
            received=f"num_train_steps={wanted}",
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
    """Scales the intervals of an extended plan, unless they are set.

    If either eval_steps or save_steps is set, both keep their values.
    """
    if not config.eval_steps and not config.save_steps:
        plan = replace(plan, eval_steps=plan.eval_steps * times, save_steps=plan.save_steps * times)
    return replace(plan, logging_steps=plan.logging_steps * times)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that must not change; ones unknown at the first start get defaults."""
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    ignored = {*TrainConfig.fields_outside_identity(), *_REFERENCES, *_EXTENDABLE}
    return {name: value for name, value in {**defaults, **values}.items() if name not in ignored}
