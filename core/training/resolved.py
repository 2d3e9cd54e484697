"""Resolves settings left open."""

from __future__ import annotations

from typing import Any

from core.backends.devices import Devices
from core.config.train import TrainConfig
from core.training.inputs import TrainingInputs
from core.training.recipe import Plan, with_planned_precision

_MASKED_SHARE = ("mlm_probability", "noise_density", "mask_ratio")
_DIMENSIONS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def resolved_settings(
    config: TrainConfig, plan: Plan, inputs: TrainingInputs, devices: Devices, micro_batches: int
) -> dict[str, Any]:
    """Returns resolved values by `TrainConfig` field."""
    per_device = plan.global_batch_size // (devices.count * micro_batches)
    settings: dict[str, Any] = {
        "objective": inputs.objective.name,
        "learning_rate": config.learning_rate,
        "num_train_steps": plan.num_train_steps,
        "num_train_epochs": round(plan.num_train_epochs, 4),
        "warmup_steps": plan.warmup_steps,
        "warmup_ratio": round(plan.warmup_steps / max(1, plan.num_train_steps), 4),
        "eval_steps": plan.eval_steps,
        "save_steps": plan.save_steps,
        "logging_steps": plan.logging_steps,
        "eval_on_start": bool(inputs.checkpoint)
        if config.eval_on_start is None
        else config.eval_on_start,
        "per_replica_batch_size": per_device,
        "per_replica_eval_batch_size": config.per_replica_eval_batch_size
        or config.per_replica_batch_size,
        "gradient_accumulation_steps": micro_batches,
        "mlm_probability": _first_attribute(inputs.objective, _MASKED_SHARE),
        "mean_noise_span_length": getattr(inputs.objective, "mean_noise_span_length", None),
        "dtype_policy": with_planned_precision(config, plan).dtype_policy,
        "engine": devices.engine,
        "device": devices.kind,
        "num_devices": devices.count // devices.processes,
        "num_processes": devices.processes,
        "max_train_examples": plan.train_rows,
        "max_eval_examples": len(inputs.validation_rows),
        **{name: getattr(inputs.architecture, name, None) for name in _DIMENSIONS},
    }
    return {name: value for name, value in settings.items() if value is not None}


def _first_attribute(holder: object, names: tuple[str, ...]) -> float | None:
    return next((getattr(holder, name) for name in names if hasattr(holder, name)), None)
