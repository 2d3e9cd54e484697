"""Plans a run; the web app does so at every keystroke, so import no backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from core.architecture.architecture import Architecture
from core.architecture.weight_mapping import WeightMapping
from core.backends.schedule import LearningRateSchedule
from core.config.options import settled
from core.config.presets import TRAINING_PRESETS, Preset
from core.config.train import TrainConfig, with_usual_values
from core.errors import ConfigError
from core.families import find_family, weight_mappings
from core.models.constants import MAX_LOGITS_PER_CHUNK

EVAL_MLM_PROBABILITY = 0.15

# A model learns a text by heart that it reads more often and that has fewer tokens per
# parameter, embeddings excluded. Other texts lose more by dropout than they gain
# (benchmarks/trials.md).
_EPOCHS_WITHOUT_DROPOUT = 15
_FEW_TOKENS_PER_PARAMETER = 0.5

_EVALUATIONS_IN_A_RUN = 20
_LOGS_IN_A_RUN = 200

# Float32 weights, gradients and AdamW's two slots.
_BYTES_PER_PARAMETER = 4 * 4

# Sequences per step with which Muon's learning rates were tuned, and how they fall below it
# (benchmarks/trials.md).
_TUNED_BATCH, _RATE_BY_BATCH = 32, 0.75
# Peak learning rate, and the hidden size above which it scales as 1/hidden_size.
_RATES: dict[str, tuple[float, int | None]] = {
    "muon": (8e-3, 160),
    "adamw": (1e-3, 256),
    "adafactor": (5e-3, None),
}


@dataclass(frozen=True)
class Plan:
    """Resolved steps and batch size, pinned in the first checkpoint.

    Attributes:
        global_batch_size: Over all devices.
        extended_at: Step of the extension, or 0.
        extended_rate: Learning rate at that step.
        dtype_policy: Resolved `auto`; empty if configured.
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
        """Tokens per step, over all devices."""
        return self.global_batch_size * self.row_length

    @property
    def total_sequences(self) -> int:
        """Sequences read, repetitions included."""
        return self.num_train_steps * self.global_batch_size

    @property
    def total_tokens(self) -> int:
        """Tokens read, repetitions included."""
        return self.num_train_steps * self.tokens_per_step

    def tokens_per_parameter(self, parameters: int) -> float:
        """Returns the tokens read per parameter."""
        return self.total_tokens / max(1, parameters)


def is_learned_by_heart(epochs: float, tokens: int, architecture: Architecture) -> bool:
    """Returns whether a model probably overfits to a text.

    Args:
        tokens: The text's, not counting repetitions.
    """
    few = tokens < _FEW_TOKENS_PER_PARAMETER * body_parameters(architecture)
    return few and epochs > _EPOCHS_WITHOUT_DROPOUT


def dropout_hint(config: TrainConfig, plan: Plan, architecture: Architecture) -> str:
    """Returns advice for a run that reads its text often without dropout, or an empty text."""
    tokens = plan.train_rows * plan.row_length
    epochs = plan.num_train_epochs
    if config.hidden_dropout_prob or not is_learned_by_heart(epochs, tokens, architecture):
        return ""
    return (
        f"The text is read {epochs:.3g} times without dropout, and has few tokens for the "
        "parameters: hidden_dropout_prob and attention_probs_dropout_prob of 0.05 may help"
    )


def plan(
    config: TrainConfig,
    train_rows: int,
    row_length: int,
    replicas: int = 1,
    validation_rows: int = 0,
) -> Plan:
    """Computes a run's plan; by default, validation takes a tenth of the time at most.

    Args:
        config: Automatic settings have usual values.

    Raises:
        ConfigError: The training split is below one step.
    """
    config = with_usual_values(config)
    rows = min(train_rows, config.max_train_examples or train_rows)
    batch = settled(config.per_replica_batch_size) * replicas * config.gradient_accumulation_steps
    _check_batch_fits(rows, batch, config, replicas)
    steps = config.num_train_steps or max(1, int(settled(config.num_train_epochs) * rows / batch))
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
    """Extends a run; the learning rate decays from its current value.

    If decay has ended (`warmup_stable_decay`: begun), it takes the longer plan's value.
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
    """Returns a device's micro-batches per step.

    On other devices, takes the fewest that are no larger than configured, or fit (`holds`).
    """
    rows = batch // devices

    def is_possible(micro_batches: int) -> bool:
        if rows % micro_batches:
            return False
        return rows // micro_batches <= settled(config.per_replica_batch_size) or holds(
            rows // micro_batches
        )

    if batch % devices or is_possible(config.gradient_accumulation_steps):
        return config.gradient_accumulation_steps
    return next(micro_batches for micro_batches in range(1, rows + 1) if is_possible(micro_batches))


def with_planned_precision(config: TrainConfig, plan: Plan) -> TrainConfig:
    """Returns the config with the plan's precision."""
    if not plan.dtype_policy:
        return config
    return config.model_copy(update={"dtype_policy": plan.dtype_policy})


def resolve_learning_rate(
    config: TrainConfig, architecture: Architecture, batch: int = _TUNED_BATCH
) -> TrainConfig:
    """Returns the config with a peak learning rate.

    Adafactor's is relative to the weights, so independent of the hidden size.

    Source: https://arxiv.org/abs/2203.03466, table 3; values: benchmarks/trials.md.

    Args:
        batch: Sequences per step, on all devices.
    """
    if config.learning_rate is not None:
        return config
    if law := preset_of(config).learning_rate:
        rate = law(body_parameters(architecture))
        return config.model_copy(update={"learning_rate": float(f"{rate:.3g}")})
    rate, up_to = _RATES[config.optimizer]
    if up_to is not None:
        rate *= min(1.0, up_to / architecture.hidden_size)
    if config.optimizer == "muon":
        rate *= find_family(architecture.model_type).learning_rate_factor
        rate *= min(1.0, batch / _TUNED_BATCH) ** _RATE_BY_BATCH
    return config.model_copy(update={"learning_rate": rate})


def preset_of(config: TrainConfig) -> Preset:
    """Returns the preset that a config starts from; `custom` is an empty one."""
    return TRAINING_PRESETS.get(config.preset, Preset({}))


def learning_rate_schedule(config: TrainConfig, plan: Plan) -> LearningRateSchedule:
    """Returns a plan's learning-rate schedule."""
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
    """Makes rarer validations or checkpoints coincide: only saved weights can be the best."""
    if config.eval_steps:
        return config.eval_steps, config.save_steps or config.eval_steps
    often = _every(config, steps, _EVALUATIONS_IN_A_RUN)
    save_steps = config.save_steps or often
    wanted = max(often, _affordable_eval_steps(config, batch, validation_rows))
    if save_steps >= steps:
        return min(wanted, steps), save_steps
    if wanted < save_steps:
        divisors = (n for n in range(wanted, save_steps) if save_steps % n == 0)
        eval_steps = next((n for n in divisors if n % config.steps_per_execution == 0), save_steps)
    else:
        eval_steps = save_steps * -(-wanted // save_steps)
    return min(eval_steps, steps), save_steps


def _affordable_eval_steps(config: TrainConfig, batch: int, validation_rows: int) -> int:
    """Assumes that validation takes a third of the training time."""
    rows = min(validation_rows, config.max_eval_examples or validation_rows)
    return -(-rows * 10 // (3 * batch))


def body_parameters(architecture: Architecture) -> int:
    """Counts the parameters, those of embeddings excluded."""
    return sum(math.prod(tie.shape) for tie in non_embedding_weights(architecture))


def non_embedding_weights(architecture: Architecture) -> Iterator[WeightMapping]:
    """Yields the weights other than token and position embeddings."""
    return (tie for tie in weight_mappings(architecture) if not tie.path.endswith("/table"))


def predictions_per_sequence(mlm_probability: float | None, row_length: int) -> int:
    """Returns an encoder's predictions, by default at 15 %."""
    chosen = EVAL_MLM_PROBABILITY if mlm_probability is None else mlm_probability
    return max(1, round(chosen * row_length))


def estimate_memory_bytes(
    architecture: Architecture, parameters: int, config: TrainConfig, row_length: int
) -> int:
    """Estimates a device's training memory, up to a factor of two.

    Source: https://arxiv.org/abs/2205.05198, section 4.1: s·b·h·(34 + 5·a·s/h) bytes per layer at
    16 bits.
    """
    config = with_usual_values(config)
    width, heads = architecture.hidden_size, architecture.num_attention_heads
    # Cross-attention adds half to a layer's activations.
    depth = architecture.num_hidden_layers + getattr(architecture, "num_decoder_layers", 0) * 1.5
    sequences = settled(config.per_replica_batch_size)
    tokens = sequences * row_length
    per_token = 34 * width + 5 * heads * row_length
    scale = 1 if config.dtype_policy == "mixed_bfloat16" else 2
    layers = round(depth * tokens * per_token * scale)
    predictions = tokens
    if architecture.kind == "encoder":
        predictions = sequences * predictions_per_sequence(config.mlm_probability, row_length)
    # Logits, gradient and softmax; a chunk has at least one prediction per sequence.
    at_once = max(sequences * architecture.vocab_size, MAX_LOGITS_PER_CHUNK)
    logits = min(predictions * architecture.vocab_size, at_once) * 4 * 3
    return parameters * _BYTES_PER_PARAMETER + layers + logits


def _every(config: TrainConfig, steps: int, times: int) -> int:
    in_one_go = config.steps_per_execution
    return max(1, round(steps / times / in_one_go)) * in_one_go


def _warmup_steps(config: TrainConfig, steps: int) -> int:
    if config.warmup_steps is not None:
        return config.warmup_steps
    return round(settled(config.warmup_ratio) * steps)


def _check_batch_fits(rows: int, batch: int, config: TrainConfig, replicas: int) -> None:
    if rows >= batch:
        return
    accumulated = config.gradient_accumulation_steps
    devices = f" on {replicas} devices" if replicas > 1 else ""
    times = f", accumulated {accumulated} times" if accumulated > 1 else ""
    most = rows // (replicas * accumulated)
    fixes = ["build shards from more text"]
    if most:
        fixes.insert(0, f"set ⟬per_replica_batch_size⟭ to at most {most}")
    elif accumulated > 1:
        fixes.insert(0, "lower ⟬gradient_accumulation_steps⟭")
    raise ConfigError(
        "There are fewer training sequences than one step needs",
        expected=f"at least {batch} sequences: a batch size of "
        f"{config.per_replica_batch_size}{devices}{times}",
        received=f"{rows} training sequences",
        fix=", or ".join(fixes),
        field="per_replica_batch_size",
    )
