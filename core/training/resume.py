"""What may differ between a run's first start and its resumption, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from core.config import TrainConfig
from core.errors import CheckpointError
from core.events import EVENTS_FILE, read_events
from core.training.checkpoint import TrainingState
from core.training.recipe import Plan, extend

# These may be called by another name or path; what they hold is compared by fingerprint. The
# weights a run began with are in its own checkpoints.
_REFERENCES = ("shards", "tokenizer", "checkpoint")
# Checked by itself: a run may be given more steps.
_EXTENDABLE = ("num_train_steps",)


def check_nothing_is_lost(folder: Path) -> None:
    """Refuses to start a run over whose checkpoints are gone.

    Args:
        folder: The run's folder, in which there is no checkpoint.

    Raises:
        CheckpointError: The run has reported that it saved one.
    """
    events, _ = read_events(folder / EVENTS_FILE)
    saved = [event.get("step", "?") for event in events if event["kind"] == "checkpoint"]
    if saved:
        raise CheckpointError(
            f"The checkpoints of the run {folder.name} are gone",
            expected=f"the one of step {saved[-1]} in {folder}, or one before it",
            received="none",
            fix="bring them back from a copy, or start a new run",
        )


def check_same_run(state: TrainingState, config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Refuses to go on with other settings, shards or tokenizer than the run was started with.

    How often it saves, validates and logs may differ, and so may engine, device and the number of
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
            fix="resume with the settings it was started with, or start a new run (checkpoint "
            "takes the weights over)",
            field=names[0] if names[0] in TrainConfig.model_fields else "",
        )


def resumed_plan(config: TrainConfig, plan: Plan, step: int) -> Plan:
    """Returns the plan that was pinned at the first start, with what may be set anew.

    Args:
        config: The settings of this start.
        plan: The plan so far.
        step: Steps done.

    Raises:
        CheckpointError: The settings ask for fewer steps than were planned.
    """
    wanted = config.num_train_steps or plan.num_train_steps
    if wanted < plan.num_train_steps:
        raise CheckpointError(
            "A run can be given more steps, not fewer",
            expected=f"num_train_steps={plan.num_train_steps} or more",
            received=f"num_train_steps={wanted}",
            fix="stop the run where it has learned enough: the best checkpoint is kept",
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
    """Returns a plan so many times as long with pauses as much further apart, unless they're set.

    Between checkpoints that are set, validations stay where they were, and the other way round.
    """
    if not config.eval_steps and not config.save_steps:
        plan = replace(plan, eval_steps=plan.eval_steps * times, save_steps=plan.save_steps * times)
    return replace(plan, logging_steps=plan.logging_steps * times)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that have to stay, those unknown at the time at their defaults."""
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    return {
        name: value
        for name, value in {**defaults, **values}.items()
        if name not in TrainConfig.unfingerprinted and name not in (*_REFERENCES, *_EXTENDABLE)
    }
