"""What may differ between a run's first start and its resumption, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.config import TrainConfig
from core.errors import CheckpointError
from core.training.checkpoint import TrainingState
from core.training.recipe import Plan

# These may be called by another name or path; what they hold is compared by fingerprint. The
# weights a run began with are in its own checkpoints.
_REFERENCES = ("shards", "tokenizer", "checkpoint")


def check_same_run(state: TrainingState, config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Refuses to go on with other settings, shards or tokenizer than the run was started with.

    How often it saves, validates and logs may differ, and so may engine and device.

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


def resumed_plan(config: TrainConfig, plan: Plan) -> Plan:
    """Returns the plan that was pinned at the first start, with intervals that were set anew."""
    return replace(
        plan,
        eval_steps=config.eval_steps or plan.eval_steps,
        save_steps=config.save_steps or plan.save_steps,
        logging_steps=config.logging_steps or plan.logging_steps,
    )


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that have to stay, those unknown at the time at their defaults."""
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    return {
        name: value
        for name, value in {**defaults, **values}.items()
        if name not in TrainConfig.unfingerprinted and name not in _REFERENCES
    }
