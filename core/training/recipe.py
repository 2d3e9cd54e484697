"""The numbers of a training run, worked out before anything is spent: steps, schedule, memory.

No engine is imported here: the page asks for a plan at every keystroke.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np

from core.config import TrainConfig
from core.errors import ConfigError
from core.models.architecture import Architecture
from core.models.constants import LOGITS_AT_ONCE

# Validation is always measured at BERT's 15 %, so that runs can be compared.
EVAL_MLM_PROBABILITY = 0.15

_EVALUATIONS_IN_A_RUN = 20
_LOGS_IN_A_RUN = 200

# Weights, gradients and AdamW's two slots, each in float32.
_BYTES_PER_PARAMETER = 4 * 4

# Peak learning rates up to a width, from which on they fall with it; None: they don't.
_RATES: dict[str, tuple[float, int | None]] = {
    "muon": (8e-3, 160),
    "adamw": (1e-3, 256),
    "adafactor": (5e-3, None),
}
# Factor on the peak learning rate of Muon by family; the trials are in benchmarks/trials.md.
_FAMILY_FACTORS = {"roberta": 1.5, "bert": 1.5, "gpt2": 2.0, "bart": 2.0, "t5": 0.5}

ScheduleKind = Literal["linear", "cosine", "constant", "warmup_stable_decay"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """Linear warm-up from 0, then a straight line or a cosine down to 0, a constant, or both.

    Attributes:
        kind: What follows the warm-up.
        peak: The rate that the warm-up ends at.
        warmup_steps: Steps of the warm-up.
        num_train_steps: The step at which linear and cosine reach 0.
        extended_at: The step at which the run was given more steps; 0 where it wasn't.
        extended_rate: The rate of that step, from which linear and cosine go on to 0.
        decay_ratio: warmup_stable_decay's share of the steps after the warm-up, or after the step
            of the extension, in which it falls to 0 in a straight line.
    """

    kind: ScheduleKind
    peak: float
    warmup_steps: int
    num_train_steps: int
    extended_at: int = 0
    extended_rate: float = 0.0
    decay_ratio: float = 0.2

    @property
    def numbers(self) -> tuple[float, ...]:
        """All in which schedules of one kind differ, as `at` takes it."""
        start = max(self.warmup_steps, self.extended_at)
        return (
            self.peak,
            float(self.warmup_steps),
            self.extended_rate if self.extended_at else self.peak,
            float(start),
            float(max(1, self.num_train_steps - start)),
            self.decay_ratio,
        )

    def at(self, step: Any, ops: ModuleType = np, numbers: Any = None) -> Any:
        """Returns the rate of the update that follows `step` finished ones.

        Args:
            step: A number, or a tensor of `ops`.
            ops: numpy or `keras.ops`: one formula for the log and for the compiled step.
            numbers: `numbers` as a tensor (6,), which a compiled step can be given and needn't
                hold; None: this schedule's.

        Source: transformers' `get_linear_schedule_with_warmup`, `get_cosine_schedule_with_warmup`
            and `get_constant_schedule_with_warmup`, which the presets' originals use;
            warmup_stable_decay: https://arxiv.org/abs/2404.06395, section 4.
        """
        peak, warmup_steps, later_peak, start, steps, decay_ratio = (
            self.numbers if numbers is None else numbers
        )
        warmup = peak * step / ops.maximum(warmup_steps, 1.0)
        progress = ops.clip((step - start) / steps, 0.0, 1.0)
        later = later_peak * self._decay(progress, decay_ratio, ops)
        return ops.where(step < warmup_steps, warmup, later)

    def _decay(self, progress: Any, decay_ratio: Any, ops: ModuleType) -> Any:
        if self.kind == "linear":
            return 1.0 - progress
        if self.kind == "cosine":
            return 0.5 * (1.0 + ops.cos(np.pi * progress))
        if self.kind == "warmup_stable_decay":
            return ops.minimum((1.0 - progress) / decay_ratio, 1.0)
        return ops.ones_like(progress)


@dataclass(frozen=True)
class Plan:
    """What a training config comes to on these rows. Pinned in the first checkpoint.

    Attributes:
        num_train_steps: Updates of the weights.
        num_train_epochs: Passes over the training rows that they come to.
        train_rows: Rows that are trained on.
        row_length: Tokens in a row.
        global_batch_size: Rows in a step, over all devices.
        warmup_steps: Steps in which the learning rate rises.
        eval_steps: Steps from one validation to the next.
        save_steps: Steps from one checkpoint to the next.
        logging_steps: Steps from one log line to the next.
        extended_at: The step at which the run was given more steps; 0 where it wasn't.
        extended_rate: The learning rate of that step, from which it goes on.
        dtype_policy: What `auto` came to; empty where the settings name a precision.
    """

    num_train_steps: int
    num_train_epochs: float
    train_rows: int
    row_length: int
    global_batch_size: int
    warmup_steps: int
    eval_steps: int
    save_steps: int
    logging_steps: int
    extended_at: int = 0
    extended_rate: float = 0.0
    dtype_policy: str = ""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step reads, over all devices."""
        return self.global_batch_size * self.row_length

    @property
    def total_tokens(self) -> int:
        """Tokens that the run reads, repetitions counted."""
        return self.num_train_steps * self.tokens_per_step

    def tokens_per_parameter(self, parameters: int) -> float:
        """Returns how many tokens the run reads for each parameter."""
        return self.total_tokens / max(1, parameters)


def plan(
    config: TrainConfig,
    train_rows: int,
    row_length: int,
    replicas: int = 1,
    validation_rows: int = 0,
) -> Plan:
    """Works out a run's steps.

    The rows are read as one endless sequence of epochs: the rows that don't fill the last batch of
    an epoch begin the first batch of the next, so that none is left out.

    Args:
        config: The training config.
        train_rows: Training rows in the shards.
        row_length: Tokens in a row.
        replicas: Devices that share a step.
        validation_rows: Validation rows in the shards. Where the settings don't say how often to
            validate, it takes no more than about a tenth of the time.

    Raises:
        ConfigError: There are fewer rows than a step takes.
    """
    rows = min(train_rows, config.max_train_examples or train_rows)
    batch = config.per_replica_batch_size * replicas * config.gradient_accumulation_steps
    _check_batch_fits(rows, batch, config, replicas)
    steps = config.num_train_steps or max(1, int(config.num_train_epochs * rows / batch))
    eval_steps, save_steps = _pauses(config, steps, batch, validation_rows)
    return Plan(
        num_train_steps=steps,
        num_train_epochs=steps * batch / rows,
        train_rows=rows,
        row_length=row_length,
        global_batch_size=batch,
        warmup_steps=_warmup_steps(config, steps),
        eval_steps=eval_steps,
        save_steps=save_steps,
        logging_steps=config.logging_steps or _every(config, steps, _LOGS_IN_A_RUN),
    )


def extend(config: TrainConfig, plan: Plan, step: int, num_train_steps: int) -> Plan:
    """Gives a run more steps; the learning rate goes on from where it is and falls over the rest.

    A run that had come to its end has a rate of 0 to go on from: there it takes the rate that the
    longer plan would have had at this step. So does one of `warmup_stable_decay` whose rate had
    begun to fall.

    Args:
        config: The training config.
        plan: The plan so far.
        step: Steps done.
        num_train_steps: Steps in all.
    """
    longer = replace(
        plan,
        num_train_steps=num_train_steps,
        num_train_epochs=plan.num_train_epochs * num_train_steps / plan.num_train_steps,
    )
    if step <= plan.warmup_steps:
        return longer
    rate = float(learning_rate_schedule(config, plan).at(step))
    if rate <= 0 or config.lr_scheduler_type == "warmup_stable_decay":
        planned = replace(longer, extended_at=0, extended_rate=0.0)
        rate = max(rate, float(learning_rate_schedule(config, planned).at(step)))
    return replace(longer, extended_at=step, extended_rate=rate)


def accumulation_steps(
    config: TrainConfig, batch: int, devices: int, holds: Callable[[int], bool]
) -> int:
    """Returns in how many parts each device works through its rows of a step.

    As many as are set, unless a run that was planned for other devices goes on: then as few as
    divide the rows, and hold no more of them than a device took before, or has room for.

    Args:
        config: The training config.
        batch: Rows of a step, over all devices, as planned.
        devices: That share a step.
        holds: Tells whether a device has room for so many rows at once.
    """
    rows = batch // devices

    def is_possible(parts: int) -> bool:
        if rows % parts:
            return False
        return rows // parts <= config.per_replica_batch_size or holds(rows // parts)

    if batch % devices or is_possible(config.gradient_accumulation_steps):
        return config.gradient_accumulation_steps
    return next(parts for parts in range(1, rows + 1) if is_possible(parts))


def with_planned_precision(config: TrainConfig, plan: Plan) -> TrainConfig:
    """Returns the config with the precision that was settled at the first start."""
    if not plan.dtype_policy:
        return config
    return config.model_copy(update={"dtype_policy": plan.dtype_policy})


def settle_learning_rate(config: TrainConfig, architecture: Architecture) -> TrainConfig:
    """Returns the config with a peak learning rate: its own, or the one that suits the model.

    Matrices of twice the width take half the rate; Adafactor's is relative to the weights anyway.

    Args:
        config: The settings.
        architecture: The model's dimensions.

    Source: Yang et al., "Tensor Programs V", https://arxiv.org/abs/2203.03466, table 3; the rates
        are those of benchmarks/trials.md.
    """
    if config.learning_rate is not None:
        return config
    rate, up_to = _RATES[config.optimizer]
    if up_to is not None:
        rate *= min(1.0, up_to / architecture.hidden_size)
    if config.optimizer == "muon":
        rate *= _FAMILY_FACTORS.get(architecture.model_type, 1.0)
    return config.model_copy(update={"learning_rate": rate})


def learning_rate_schedule(config: TrainConfig, plan: Plan) -> LearningRateSchedule:
    """Returns the schedule of a config's learning rate over a plan's steps."""
    assert config.learning_rate is not None, "it is settled at the start of a run"
    return LearningRateSchedule(
        kind=config.lr_scheduler_type,
        peak=config.learning_rate,
        warmup_steps=plan.warmup_steps,
        num_train_steps=plan.num_train_steps,
        extended_at=plan.extended_at,
        extended_rate=plan.extended_rate,
        decay_ratio=config.decay_ratio,
    )


def _pauses(config: TrainConfig, steps: int, batch: int, validation_rows: int) -> tuple[int, int]:
    """Returns how many steps lie between validations, and how many between checkpoints.

    Where the settings don't say how often to validate, checkpoints come as often however long a
    validation takes, and the two meet at every one of those that are rarer: only weights that are
    saved can be the best.
    """
    if config.eval_steps:
        return config.eval_steps, config.save_steps or config.eval_steps
    often = _every(config, steps, _EVALUATIONS_IN_A_RUN)
    save_steps = config.save_steps or often
    wanted = max(often, _affordable_eval_steps(config, batch, validation_rows))
    if save_steps >= steps:
        return min(wanted, steps), save_steps  # The only one is at the end, as is a validation.
    if wanted < save_steps:
        parts = (n for n in range(wanted, save_steps) if save_steps % n == 0)
        eval_steps = next((n for n in parts if n % config.steps_per_execution == 0), save_steps)
    else:
        eval_steps = save_steps * -(-wanted // save_steps)
    return min(eval_steps, steps), save_steps


def _affordable_eval_steps(config: TrainConfig, batch: int, validation_rows: int) -> int:
    """Returns how many steps have to lie between validations to keep these to a tenth of the time.

    A validation goes forward only, which takes about a third of what as many rows take in training.
    """
    rows = min(validation_rows, config.max_eval_examples or validation_rows)
    return -(-rows * 10 // (3 * batch))


def predictions_per_row(mlm_probability: float | None, row_length: int) -> int:
    """Returns how many tokens of a row an encoder predicts; None is as published."""
    chosen = EVAL_MLM_PROBABILITY if mlm_probability is None else mlm_probability
    return max(1, round(chosen * row_length))


def estimate_memory_bytes(
    architecture: Architecture, parameters: int, config: TrainConfig, row_length: int
) -> int:
    """Returns roughly what a device needs for training, in bytes.

    Weights, gradients and optimizer slots are exact for float32 weights; activations are an
    estimate, without what the compiler saves or wastes: take it as good to a factor of two.

    Args:
        architecture: The model's dimensions.
        parameters: Its number of parameters.
        config: Batch size, masking and precision.
        row_length: Tokens in a row.

    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
        https://arxiv.org/abs/2205.05198, section 4.1: a layer keeps s·b·h·(34 + 5·a·s/h) bytes
        at 16 bits.
    """
    width, heads = architecture.hidden_size, architecture.num_attention_heads
    # A layer that looks at an encoder as well has half as much again to keep.
    depth = architecture.num_hidden_layers + getattr(architecture, "num_decoder_layers", 0) * 1.5
    tokens = config.per_replica_batch_size * row_length
    per_token = 34 * width + 5 * heads * row_length
    scale = 1 if config.dtype_policy == "mixed_bfloat16" else 2
    layers = round(depth * tokens * per_token * scale)
    # Decoders predict every token.
    predictions = tokens
    if architecture.kind == "encoder":
        predictions = config.per_replica_batch_size * predictions_per_row(
            config.mlm_probability, row_length
        )
    # Logits, their gradient, and the softmax between them, in float32.
    # Pieces hold a prediction of each row, at least.
    at_once = max(config.per_replica_batch_size * architecture.vocab_size, LOGITS_AT_ONCE)
    logits = min(predictions * architecture.vocab_size, at_once) * 4 * 3
    return parameters * _BYTES_PER_PARAMETER + layers + logits


def _every(config: TrainConfig, steps: int, times: int) -> int:
    """Returns how many steps lie between pauses; between two, executions are whole."""
    in_one_go = config.steps_per_execution
    return max(1, round(steps / times / in_one_go)) * in_one_go


def _warmup_steps(config: TrainConfig, steps: int) -> int:
    if config.warmup_steps is not None:
        return config.warmup_steps
    return round(config.warmup_ratio * steps)


def _check_batch_fits(rows: int, batch: int, config: TrainConfig, replicas: int) -> None:
    if rows >= batch:
        return
    accumulated = config.gradient_accumulation_steps
    devices = f" on {replicas} devices" if replicas > 1 else ""
    times = f", accumulated {accumulated} times" if accumulated > 1 else ""
    most = rows // (replicas * accumulated)
    fixes = ["build shards from more text"]
    if most:
        fixes.insert(0, f"set per_replica_batch_size to at most {most}")
    elif accumulated > 1:
        fixes.insert(0, "set fewer gradient_accumulation_steps")
    raise ConfigError(
        "There are fewer training rows than one step takes",
        expected=f"at least {batch} rows, the batch size of "
        f"{config.per_replica_batch_size}{devices}{times}",
        received=f"{rows} training rows",
        fix=", or ".join(fixes),
        field="per_replica_batch_size",
    )
