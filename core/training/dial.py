"""One dial: from the hours or the tokens that there are to size, batch, steps and learning rate.

What is derived are ordinary settings, each with its reason, to be taken or changed. The choice
itself imports no engine; `measure_speed` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from core.config import Size, TrainConfig
from core.errors import ConfigError
from core.models.architecture import Architecture
from core.models.registry import FAMILY_SIZES, count_parameters
from core.training.devices import Devices, select_engine
from core.training.inputs import TrainingInputs
from core.training.recipe import predictions_per_row, settle_learning_rate

# Hoffmann et al., "Training Compute-Optimal Large Language Models",
# https://arxiv.org/abs/2203.15556, table 3: about so many tokens for each parameter.
TOKENS_PER_PARAMETER = 20
# Muennighoff et al., "Scaling Data-Constrained Language Models",
# https://arxiv.org/abs/2305.16264, section 6: up to four epochs a text is worth as much as another
# one, and from about 40 epochs on nothing more is learned from it.
_FRESH_EPOCHS = 4
_MOST_EPOCHS = 40
# With more, a model without dropout learns a small corpus by heart.
_DROPOUT_FROM_EPOCHS = 10
_FEWEST_STEPS = 2000
_BATCHES = tuple(2**power for power in range(3, 9))
# Of the speed of a plain product of matrices, what a training step came to on two CPU cores; and of
# the hours, what is left for validations, checkpoints and the start.
_SHARE_OF_PRODUCTS = 0.4
_SHARE_OF_HOURS = 0.9


@dataclass(frozen=True)
class Suggestion:
    """Settings for a run, and why.

    Attributes:
        values: By field of `TrainConfig`.
        reasons: A sentence for each.
        remarks: What else there is to say.
    """

    values: dict[str, Any]
    reasons: dict[str, str]
    remarks: list[str]


def suggest(
    config: TrainConfig,
    inputs: Mapping[Size, TrainingInputs],
    *,
    hours: float | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    replicas: int = 1,
) -> Suggestion:
    """Derives size, batch, steps and learning rate.

    Args:
        config: What stays as it is: shards, family, objective, optimizer.
        inputs: The same shards, opened for each size that may be taken.
        hours: That there are; then `flops` is needed too.
        tokens: That are to be read, repetitions counted; instead of hours.
        flops: Floating-point operations that a training step does in a second, over all devices.
        replicas: Devices that share a step.

    Raises:
        ConfigError: Neither hours nor tokens are given, or both.
    """
    if (hours is None) == (tokens is None):
        raise ConfigError(
            "The dial turns by one thing",
            expected="either the hours or the tokens that there are",
            received="both" if hours is not None else "neither",
            fix="give --hours or --tokens",
        )
    budgets = {
        size: tokens or _tokens_in(hours or 0.0, flops or 0.0, config, found)
        for size, found in inputs.items()
    }
    rows = next(iter(inputs.values()))
    corpus_tokens = len(rows.train_rows) * rows.shards.row_length
    size = _choose_size(budgets, inputs)
    architecture = inputs[size].architecture
    wanted = budgets[size]
    read = min(wanted, _MOST_EPOCHS * corpus_tokens)
    row_length = rows.shards.row_length
    parts = replicas * config.gradient_accumulation_steps
    part = max(1, _choose_batch(read // row_length, len(rows.train_rows)) // parts)
    tokens_per_step = part * parts * row_length
    steps = max(1, read // tokens_per_step)
    epochs = steps * tokens_per_step / corpus_tokens
    settled = settle_learning_rate(
        config.model_copy(update={"learning_rate": None}), architecture.hidden_size
    )
    assert settled.learning_rate is not None
    values: dict[str, Any] = {
        "size": size,
        "per_replica_batch_size": part,
        "num_train_steps": steps,
        "learning_rate": settled.learning_rate,
    }
    reasons = {
        "size": _why_size(architecture, wanted, hours, flops),
        "per_replica_batch_size": _why_batch(config, part, replicas),
        "num_train_steps": f"{read:,} tokens, of which a step reads {tokens_per_step:,}.",
        "learning_rate": f"What suits {config.optimizer} at a width of "
        f"{architecture.hidden_size} (docs/recipe.md).",
    }
    if epochs > _DROPOUT_FROM_EPOCHS:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            values[name] = 0.1
            reasons[name] = "Each text is seen so often that it could be learned by heart."
    return Suggestion(values, reasons, _remarks(epochs, wanted, read))


def sizes_of(family: str) -> tuple[Size, ...]:
    """Returns a family's sizes, the smallest first."""
    return tuple(FAMILY_SIZES[family])


def flops_per_token(config: TrainConfig, inputs: TrainingInputs) -> float:
    """Returns the floating-point operations that training does for each token of a row.

    Two for each weight on the way forward and four on the way back, those of attention besides, and
    the head's at the tokens that are predicted. There alone is an encoder's last layer computed,
    but for its keys and values.

    Source: Kaplan et al., "Scaling Laws for Neural Language Models",
        https://arxiv.org/abs/2001.08361, section 2.1.
    """
    found, length = inputs.architecture, inputs.shards.row_length
    depth = found.num_hidden_layers + getattr(found, "num_decoder_layers", 0)
    share = 1.0
    if found.kind == "encoder":
        share = predictions_per_row(config.mlm_probability, length) / length
    weights, attention = 6 * _body_parameters(found) / depth, 12 * length * found.hidden_size
    # Keys and values are a sixth of a layer's weights.
    layers = depth * (weights + attention) - (1 - share) * (weights * 5 / 6 + attention)
    return layers + 6 * found.vocab_size * found.hidden_size * share


def measure_speed(config: TrainConfig) -> tuple[float, Devices]:
    """Returns the operations that a training step may do in a second here, and on what.

    Imports an engine, and takes some seconds: a product of matrices is timed on one device.

    Raises:
        DeviceError: The device that was asked for isn't there.
    """
    from core.training.precision import choose_precision

    devices = select_engine(config)
    policy = config.dtype_policy
    if policy == "auto":
        policy, _ = choose_precision(devices)
    dtype = "bfloat16" if policy == "mixed_bfloat16" else "float32"
    side = 1024 if devices.kind == "cpu" else 8192
    one = _time_product(side, dtype)
    return 2 * side**3 / one * _SHARE_OF_PRODUCTS * devices.count, devices


def _time_product(side: int, dtype: str) -> float:
    import keras

    matrix = keras.ops.ones((side, side), dtype)
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        keras.ops.convert_to_numpy(keras.ops.matmul(matrix, matrix)[:1, :1])
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])  # The first one is compiled.


def _tokens_in(hours: float, flops: float, config: TrainConfig, inputs: TrainingInputs) -> int:
    return int(hours * 3600 * _SHARE_OF_HOURS * flops / flops_per_token(config, inputs))


def _choose_size(budgets: Mapping[Size, int], inputs: Mapping[Size, TrainingInputs]) -> Size:
    """Returns the size that comes nearest to the right number of tokens for a parameter."""

    def distance(size: Size) -> float:
        per_parameter = max(1, budgets[size]) / _body_parameters(inputs[size].architecture)
        return abs(math.log(per_parameter / TOKENS_PER_PARAMETER))

    return min(inputs, key=distance)


def _choose_batch(rows: int, train_rows: int) -> int:
    """Returns the largest batch with enough steps, or the smallest; never more than there is."""
    fitting = [one for one in _BATCHES if one <= train_rows and rows // one >= _FEWEST_STEPS]
    return max(fitting, default=min(_BATCHES[0], train_rows))


def _body_parameters(architecture: Architecture) -> int:
    """Returns the weights beside the tables of words and positions."""
    tables = architecture.vocab_size + getattr(architecture, "max_position_embeddings", 0)
    return max(1, count_parameters(architecture) - tables * architecture.hidden_size)


def _why_size(
    architecture: Architecture, tokens: int, hours: float | None, flops: float | None
) -> str:
    body = _body_parameters(architecture)
    read = f"{tokens:,} tokens"
    if hours is not None:
        read += f", which {hours:g} hours at about {(flops or 0) / 1e9:,.0f} GFLOP/s come to"
    return (
        f"It sees {read}: {tokens / body:,.0f} for each of its {body:,} parameters beside the "
        f"tables, the nearest to {TOKENS_PER_PARAMETER} that there is."
    )


def _why_batch(config: TrainConfig, part: int, replicas: int) -> str:
    why = (
        f"The most rows a step, of {_BATCHES[0]} to {_BATCHES[-1]}, with which there are "
        f"{_FEWEST_STEPS:,} steps, or the fewest."
    )
    parts = config.gradient_accumulation_steps
    if replicas * parts == 1:
        return why
    return (
        f"{why} A step reads {part * replicas * parts:,}: {part:,} x {replicas} devices x {parts} "
        "accumulation steps."
    )


def _remarks(epochs: float, wanted: int, read: int) -> list[str]:
    if read < wanted:
        return [
            f"There would be time for {wanted:,} tokens, but after {_MOST_EPOCHS} epochs the same "
            "text teaches nothing more: more text would help, or a larger model."
        ]
    if epochs > _FRESH_EPOCHS:
        return [
            f"Each text is seen {epochs:.0f} times; beyond {_FRESH_EPOCHS} times, more text would "
            "help more than more time."
        ]
    return []
