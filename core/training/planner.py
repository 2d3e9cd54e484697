"""Planner: derives settings, with reasons, from hours or tokens."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
import psutil

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.architecture.family import Size
from core.architecture.weight_mapping import WeightMapping
from core.backends.devices import Devices
from core.backends.precision import choose_precision
from core.backends.selection import select_backend
from core.config.train import TrainConfig, usual_value
from core.errors import ConfigError
from core.families import find_family
from core.messages.values import byte_count
from core.models.registry import count_parameters
from core.processes.cores import free_share, usable_cores
from core.training.inputs import TrainingInputs, open_inputs, with_architecture
from core.training.recipe import (
    Plan,
    body_parameters,
    estimate_memory_bytes,
    is_learned_by_heart,
    non_embedding_weights,
    plan,
    predictions_per_sequence,
    preset_of,
    resolve_learning_rate,
)
from core.training.sources import TrainingSources, find_most_sequences
from core.workspace.workspace import Workspace

# https://arxiv.org/abs/2203.15556, table 3.
TOKENS_PER_PARAMETER = 20
# Repeated text is worth as much as new text up to four epochs, and nothing from about 40:
# https://arxiv.org/abs/2305.16264, section 6.
_FRESH_EPOCHS = 4
MOST_EPOCHS = 40
_DROPOUT = 0.05
# Weight decay for repeated text, and for one that would be learned by heart; about 30 times the
# usual value in https://arxiv.org/abs/2509.14786.
_REPEATED_DECAY, _MOST_DECAY = 0.1, 0.3
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# Measured with 3.4 documents per sequence (benchmarks/trials.md).
_MANY_DOCUMENTS = 2.0
_FEWEST_STEPS = 2000
# From the launch to the first step, on an idle CPU with JAX.
START_SECONDS = 12.0
_BATCHES = tuple(2**power for power in range(3, 9))
# Above it, old gradients would count too long: https://arxiv.org/abs/2406.19146, table 4.
_TOKENS_OF_A_LARGE_STEP = 524_288
_MOST_WARMUP = 0.1
_WARMUP = 0.05
# Prevents overflow.
_MOST_HOURS = 1_000_000
_SIZE_FIELDS = ("size", "num_attention_heads")
# Fractions: of a matmul's speed, measured on two CPU cores; of the hours, spent in steps.
_SHARE_OF_PRODUCTS = 0.4
_SHARE_OF_SMALL_PRODUCTS = 0.45
_SHARE_OF_HOURS = 0.9


class _PlannedShards(Protocol):
    @property
    def row_length(self) -> int: ...
    @property
    def max_seq_length(self) -> int: ...
    @property
    def documents_per_sequence(self) -> float: ...
    @property
    def line_by_line(self) -> bool: ...


class _PlannedObjective(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def predictions_per_sequence(self) -> int: ...


class PlannedInputs(Protocol):
    """The part of `TrainingInputs` that the planner reads."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def shards(self) -> _PlannedShards: ...
    @property
    def objective(self) -> _PlannedObjective: ...
    @property
    def epoch_length(self) -> int: ...
    @property
    def sources(self) -> TrainingSources: ...


@dataclass(frozen=True)
class Suggestion:
    """Settings by `TrainConfig` field, with reasons."""

    values: dict[str, Any]
    reasons: dict[str, str]
    remarks: list[str]


def suggest(
    config: TrainConfig,
    inputs: Mapping[Size, PlannedInputs],
    *,
    hours: float | None = None,
    tokens: int | Mapping[Size, int] | None = None,
    flops: float | Mapping[Size, float] | None = None,
    replicas: int = 1,
    memory_bytes: int | None = None,
    given: Collection[str] = (),
) -> Suggestion:
    """Derives settings from a budget.

    Args:
        inputs: The same shards, opened for each size.
        hours: Requires `flops`.
        tokens: Repetitions included; of each size, if they differ.
        flops: FLOP/s over all devices; of each size, if they differ.
        memory_bytes: Per device; None: no limit.
        given: Fields that the user set; a batch size among them is kept.

    Raises:
        ConfigError: There is not exactly one budget, or it is below one step.
    """
    _check_budget(hours, tokens is not None)
    rows = next(iter(inputs.values()))
    train_rows, row_length = rows.epoch_length, rows.shards.row_length
    smallest = config.model_copy(update={"per_replica_batch_size": 1, "num_train_steps": 1})
    fewest_tokens = plan(smallest, train_rows, row_length, replicas).tokens_per_step
    speeds = flops if isinstance(flops, Mapping) else dict.fromkeys(inputs, flops or 0.0)
    corpus_tokens = train_rows * row_length
    allowed = _find_allowed_tokens(config, rows)
    most = min(allowed, MOST_EPOCHS * corpus_tokens)
    given_batch = config.per_replica_batch_size if "per_replica_batch_size" in given else None
    micro_batches = replicas * config.gradient_accumulation_steps
    budgets = {
        size: tokens[size]
        if isinstance(tokens, Mapping)
        else tokens
        if tokens is not None
        else _tokens_in(
            hours or 0.0, speeds[size], config, opened, most, replicas, given_batch
        )
        for size, opened in inputs.items()
    }  # fmt: skip
    reads = {size: min(budget, most) for size, budget in budgets.items()}
    held = {
        size: opened
        for size, opened in inputs.items()
        if _fits_in_memory(config, opened.architecture, 1, row_length, memory_bytes)
    }
    wished, size = _choose_size(reads, inputs), _choose_size(reads, held or inputs)
    wanted, read = budgets[size], reads[size]
    _check_one_step_is_allowed(config, allowed, fewest_tokens)
    _check_one_step_is_affordable(read, fewest_tokens, hours)
    architecture = inputs[size].architecture
    if given_batch:
        whole = batch_size = given_batch
    else:
        whole = _choose_batch(config, inputs[size], read, micro_batches)
        batch_size = _batch_size_in_memory(config, architecture, whole, row_length, memory_bytes)
    accumulated = config.gradient_accumulation_steps * (whole // batch_size)
    micro_batches = replicas * accumulated
    tokens_per_step = batch_size * micro_batches * row_length
    steps = max(1, read // tokens_per_step)
    epochs = steps * tokens_per_step / corpus_tokens
    unsettled = config.model_copy(update={"learning_rate": None})
    settled = resolve_learning_rate(unsettled, architecture, batch_size * micro_batches)
    assert settled.learning_rate is not None
    is_limited = read == allowed < wanted
    seen = _describe_token_budget(
        architecture, read, wanted, hours, speeds[size], epochs=read / corpus_tokens
    )
    remarks = [_too_often(config, wanted, read)] if is_limited else _remarks(epochs, wanted, read)
    if wished not in held:
        remarks.append(_too_large(wished, memory_bytes))
    settings: dict[str, tuple[Any, str]] = {
        "size": (size, f"{seen}, of all sizes the nearest to {TOKENS_PER_PARAMETER}."),
        "per_replica_batch_size": (
            batch_size,
            _why_batch(config, architecture, batch_size, replicas, accumulated),
        ),
        "num_train_steps": (
            steps,
            f"{read:,} tokens at {tokens_per_step:,} tokens per step.",
        ),
        "learning_rate": (
            settled.learning_rate,
            _by_parameters(architecture)
            if preset_of(config).learning_rate
            else f"Tuned for {config.optimizer} with a hidden size of {architecture.hidden_size} "
            f"and {batch_size * micro_batches} sequences a step (docs/recipe.md).",
        ),
        **_more_accumulation(config, accumulated, whole, memory_bytes),
        **_shorter_warmup(config, steps, given),
        **_by_tokens(config, architecture, read, tokens_per_step),
        **_regularisation(config, architecture, epochs, corpus_tokens),
        **_separate_documents(config, rows),
    }
    if has_dimensions(config):
        del settings["size"]
        remarks = [f"{seen}.", *remarks]
    values, reasons = ({name: pair[i] for name, pair in settings.items()} for i in (0, 1))
    return Suggestion(values, reasons, remarks)


def sizes_of(family: str) -> tuple[Size, ...]:
    """Lists a family's sizes, smallest first."""
    return tuple(find_family(family).sizes)


def open_sizes(
    config: TrainConfig, workspace: Workspace, sizes: Collection[Size] = ()
) -> dict[Size, TrainingInputs]:
    """Opens the shards once, for each of some sizes or of all possible ones; raises ConfigError."""
    if has_dimensions(config):
        return {sizes_of(config.family)[0]: open_inputs(config, workspace)}
    by_size: dict[Size, TrainingInputs] = {}
    refused: list[ConfigError] = []
    for size in sizes or sizes_of(config.family):
        try:
            sized = config.model_copy(update={"size": size})
            opened = next(iter(by_size.values()), None)
            by_size[size] = (
                open_inputs(sized, workspace)
                if opened is None
                else with_architecture(opened, sized)
            )
        except ConfigError as error:
            if error.field not in _SIZE_FIELDS:
                raise
            refused.append(error)
    if not by_size:
        raise refused[0]
    return by_size


def flops_per_token(config: TrainConfig, inputs: PlannedInputs) -> float:
    """Returns training FLOPs per token.

    An encoder computes its head, and most of its last layer, only at predicted tokens.

    Source: Kaplan et al., https://arxiv.org/abs/2001.08361, section 2.1.
    """
    architecture, length = inputs.architecture, inputs.shards.row_length
    if isinstance(architecture, EncoderDecoderArchitecture):
        return _encoder_decoder_flops(architecture, inputs) / length
    return stack_flops_per_token(config, architecture, length)


def stack_flops_per_token(config: TrainConfig, architecture: Architecture, length: int) -> float:
    """Returns the FLOPs of an encoder or a decoder, as `flops_per_token`.

    Args:
        length: Tokens per sequence.
    """
    depth = architecture.num_hidden_layers
    share = 1.0
    if architecture.kind == "encoder":
        share = predictions_per_sequence(config.mlm_probability, length) / length
    weights = 6 * body_parameters(architecture) / depth
    attention = 12 * length * architecture.hidden_size
    # Keys and values are a sixth of a layer's weights.
    layers = depth * (weights + attention) - (1 - share) * (weights * 5 / 6 + attention)
    return layers + 6 * architecture.vocab_size * architecture.hidden_size * share


def _encoder_decoder_flops(
    architecture: EncoderDecoderArchitecture, inputs: PlannedInputs
) -> float:
    encoded, decoded = inputs.shards.max_seq_length, inputs.objective.predictions_per_sequence
    weights = sum(
        math.prod(tie.shape) * (decoded if _is_for_decoded(tie) else encoded)
        for tie in non_embedding_weights(architecture)
    )
    attention = architecture.num_hidden_layers * encoded**2
    attention += architecture.num_decoder_layers * decoded * (decoded + encoded)
    width = architecture.num_attention_heads * architecture.head_size
    return (
        6 * weights
        + 12 * width * attention
        + 6 * architecture.vocab_size * architecture.hidden_size * decoded
    )


def _is_for_decoded(tie: WeightMapping) -> bool:
    return "/decoder/" in tie.path and "/cross_attention/kv/" not in tie.path


def flops_per_update(config: TrainConfig, architecture: Architecture, replicas: int = 1) -> float:
    """Returns about the FLOPs by which a step changes the weights, whatever its batch size.

    Each device repeats Muon's five iterations of three products. The others' are negligible.
    """
    if config.optimizer != "muon":
        return 0.0
    sides = [
        sorted(tie.shape)
        for tie in non_embedding_weights(architecture)
        if tie.path.endswith("/kernel") and len(tie.shape) == 2
    ]
    return replicas * 5 * sum(4 * short**2 * long + 2 * short**3 for short, long in sides)


def flops_per_step(
    config: TrainConfig, inputs: PlannedInputs, tokens_per_step: int, replicas: int
) -> float:
    """Returns the training FLOPs of a step over all devices, its update included."""
    update = flops_per_update(config, inputs.architecture, replicas)
    return tokens_per_step * flops_per_token(config, inputs) + update


def measure_speed(config: TrainConfig) -> tuple[float, Devices]:
    """Estimates the devices' training FLOP/s by a matmul."""
    devices = select_backend(config)
    policy = config.dtype_policy
    if policy == "auto":
        policy, _ = choose_precision(devices)
    dtype = "bfloat16" if policy == "mixed_bfloat16" else "float32"
    side = 1024 if devices.kind == "cpu" else 8192
    matmul_seconds = _time_matmul(side, dtype)
    # Several devices of one CPU share its cores.
    together = devices.processes if devices.kind == "cpu" else devices.count
    return 2 * side**3 / matmul_seconds * _SHARE_OF_PRODUCTS * together, devices


def _time_matmul(side: int, dtype: str) -> float:
    import keras

    matrix = keras.ops.ones((side, side), dtype)
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        keras.ops.convert_to_numpy(keras.ops.matmul(matrix, matrix)[:1, :1])
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])  # The first run compiles.


def has_dimensions(config: TrainConfig) -> bool:
    """Returns whether files decide the size of the model."""
    return bool(config.checkpoint or config.model_config_path)


def _check_budget(hours: float | None, has_tokens: bool) -> None:
    if (hours is not None) == has_tokens:
        raise ConfigError(
            "Give exactly one of --hours, --tokens and --dollars",
            expected="a budget in hours, tokens or dollars",
            received="several" if hours is not None else "none",
            fix="give --hours, --tokens or --dollars",
        )
    if hours is not None and hours > _MOST_HOURS:
        raise ConfigError(
            "The time budget is too large",
            expected=f"at most {_MOST_HOURS:,} hours",
            received=f"{hours:g} hours",
            fix="give fewer hours",
        )


def _find_allowed_tokens(config: TrainConfig, inputs: PlannedInputs) -> int:
    sequences = find_most_sequences(config, inputs.sources)
    return sys.maxsize if sequences is None else sequences * inputs.shards.row_length


def _check_one_step_is_allowed(config: TrainConfig, allowed: int, fewest: int) -> None:
    if allowed >= fewest:
        return
    raise ConfigError(
        "One training step reads a source of the mixture too often",
        expected=f"at most {config.max_source_epochs:g} epochs of each source",
        received=f"a step of {fewest:,} tokens, of which the limit allows {allowed:,}",
        fix="raise ⟬max_source_epochs⟭, or add text to the smallest source",
        field="max_source_epochs",
    )


def _check_one_step_is_affordable(read: int, fewest: int, hours: float | None) -> None:
    if read >= fewest:
        return
    come_to = f" in {hours:g} hours" if hours is not None else ""
    raise ConfigError(
        "The budget is smaller than one training step",
        expected=f"at least {fewest:,} tokens, which is one sequence per device and accumulation "
        "step",
        received=f"{read:,} tokens{come_to}",
        fix="give more hours" if hours is not None else "give more tokens",
    )


def _tokens_in(
    hours: float, flops: float, config: TrainConfig, inputs: PlannedInputs, most: int,
    replicas: int, batch_size: int | None,
) -> int:  # fmt: skip
    """Returns the tokens that training reads in some hours.

    Args:
        most: Tokens, for the choice of a batch size.
        batch_size: Per device and micro-batch; None: as is chosen for the tokens.
    """
    budget = hours * 3600 * _SHARE_OF_HOURS * flops
    per_token = flops_per_token(config, inputs)
    per_update = flops_per_update(config, inputs.architecture, replicas)
    micro_batches = replicas * config.gradient_accumulation_steps
    tokens = budget / per_token
    while True:
        # Fewer tokens make smaller batches, with more updates per token.
        batch = batch_size or _choose_batch(config, inputs, int(min(tokens, most)), micro_batches)
        tokens_per_step = batch * micro_batches * inputs.shards.row_length
        affordable = budget / (per_token + per_update / tokens_per_step)
        if affordable >= tokens:
            return int(tokens)
        tokens = affordable


def estimate_seconds(
    config: TrainConfig, inputs: PlannedInputs, planned: Plan, flops: float, replicas: int = 1
) -> float:
    """Estimates a run's duration at a speed in FLOP/s over all devices."""
    per_step = flops_per_step(config, inputs, planned.tokens_per_step, replicas)
    return seconds_for(planned.total_tokens, per_step / planned.tokens_per_step, flops)


def seconds_for(total_tokens: float, flops_per_token: float, flops: float) -> float:
    """Returns the duration of training at a speed in FLOP/s."""
    return total_tokens * flops_per_token / (_SHARE_OF_HOURS * flops)


def expected_cpu_speed() -> float:
    """Estimates the CPU's training FLOP/s beside what runs now."""
    return measure_cpu_speed() * free_share()


@functools.cache
def measure_cpu_speed() -> float:
    """Estimates the training FLOP/s of an idle CPU without a backend."""
    # So small that the library uses one thread: threads wait for each other on a busy machine.
    side = 64
    matrix = np.ones((side, side), np.float32)
    seconds = []
    for _ in range(400):
        # The thread's own time on a processor: other programs don't count.
        began = time.thread_time()
        matrix @ matrix
        seconds.append(time.thread_time() - began)
    cores = min(usable_cores(), psutil.cpu_count(logical=False) or 1)
    return 2 * side**3 / min(seconds) * cores * _SHARE_OF_SMALL_PRODUCTS


def _choose_size(budgets: Mapping[Size, int], inputs: Mapping[Size, PlannedInputs]) -> Size:
    def distance(size: Size) -> float:
        per_parameter = max(1, budgets[size]) / body_parameters(inputs[size].architecture)
        return abs(math.log(per_parameter / TOKENS_PER_PARAMETER))

    return min(inputs, key=distance)


def sequences_by_parameters(
    config: TrainConfig, architecture: Architecture, row_length: int
) -> int | None:
    """Returns the sequences per step of all devices, if the preset derives them from the model."""
    law = preset_of(config).tokens_per_step
    if law is None or config.per_replica_batch_size:
        return None
    sequences = law(body_parameters(architecture)) / row_length
    return max(1, round(sequences / _BATCHES[0])) * _BATCHES[0]


def _choose_batch(
    config: TrainConfig, inputs: PlannedInputs, tokens: int, micro_batches: int
) -> int:
    """Returns the sequences of a micro-batch of one device, at least one.

    Args:
        tokens: Read in all, repetitions included.
        micro_batches: Per step, of all devices.
    """
    length, train_rows = inputs.shards.row_length, inputs.epoch_length
    rows = tokens // length
    if wanted := sequences_by_parameters(config, inputs.architecture, length):
        sequences = min(wanted, train_rows, rows)
    else:
        fitting = [
            batch for batch in _BATCHES if batch <= train_rows and rows // batch >= _FEWEST_STEPS
        ]
        sequences = max(fitting, default=min(_BATCHES[0], train_rows, rows))
    return max(1, sequences // micro_batches)


def _batch_size_in_memory(
    config: TrainConfig,
    architecture: Architecture,
    rows: int,
    row_length: int,
    memory_bytes: int | None,
) -> int:
    while rows > 1 and not _fits_in_memory(config, architecture, rows, row_length, memory_bytes):
        rows //= 2
    return rows


def _fits_in_memory(
    config: TrainConfig,
    architecture: Architecture,
    rows: int,
    row_length: int,
    memory_bytes: int | None,
) -> bool:
    if memory_bytes is None:
        return True
    batch = config.model_copy(update={"per_replica_batch_size": rows})
    parameters = count_parameters(architecture)
    return estimate_memory_bytes(architecture, parameters, batch, row_length) <= memory_bytes


def _too_large(size: Size, memory_bytes: int | None) -> str:
    return (
        f"By a rough estimate, a single sequence with {size} needs more than the "
        f"{byte_count(memory_bytes or 0)} of a device. A preflight check measures it."
    )


def _more_accumulation(
    config: TrainConfig, accumulated: int, rows: int, memory_bytes: int | None
) -> dict[str, tuple[Any, str]]:
    if accumulated == config.gradient_accumulation_steps:
        return {}
    why = (
        f"By a rough estimate, {rows:,} sequences at once need more than the "
        f"{byte_count(memory_bytes or 0)} of a device."
    )
    return {"gradient_accumulation_steps": (accumulated, why)}


def _shorter_warmup(
    config: TrainConfig, steps: int, given: Collection[str]
) -> dict[str, tuple[Any, str]]:
    published = config.warmup_steps or 0
    if "warmup_steps" in given or published <= _MOST_WARMUP * steps:
        return {}
    why = f"{100 * _WARMUP:.0f} % of the steps: the preset's {published:,} suit a longer run."
    return {"warmup_steps": (round(_WARMUP * steps), why)}


def _by_tokens(
    config: TrainConfig, architecture: Architecture, read: int, tokens_per_step: int
) -> dict[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {}
    if config.warmup_ratio is None and config.warmup_steps is None:
        parameters = body_parameters(architecture)
        ratio = float(f"{min(_MOST_WARMUP, parameters / read):.3g}")
        why = f"A token for each of {parameters:,} parameters, at most a tenth of the steps."
        settings["warmup_ratio"] = (ratio, why)
    if config.adam_beta2 is None:
        is_large = tokens_per_step >= _TOKENS_OF_A_LARGE_STEP
        settings["adam_beta2"] = (0.95 if is_large else 0.99, f"{tokens_per_step:,} tokens a step.")
    return settings


def _by_parameters(architecture: Architecture) -> str:
    return f"The preset's for {body_parameters(architecture):,} non-embedding parameters."


def _regularisation(
    config: TrainConfig, architecture: Architecture, epochs: float, corpus_tokens: int
) -> dict[str, tuple[Any, str]]:
    reads = f"The text is read {epochs:.3g} times"
    if not is_learned_by_heart(epochs, corpus_tokens, architecture):
        decay = _REPEATED_DECAY if epochs > _FRESH_EPOCHS else usual_value("weight_decay")
        return {} if config.weight_decay is not None else {"weight_decay": (decay, f"{reads}.")}
    why = f"{reads}, and has few tokens for the parameters: the model would learn it by heart."
    few = [name for name in DROPOUTS if (getattr(config, name) or 0) < _DROPOUT]
    decay = {} if config.weight_decay is not None else {"weight_decay": (_MOST_DECAY, why)}
    return {**dict.fromkeys(few, (_DROPOUT, why)), **decay}


def _separate_documents(config: TrainConfig, inputs: PlannedInputs) -> dict[str, tuple[Any, str]]:
    documents = inputs.shards.documents_per_sequence
    is_set = config.intra_document_masking or inputs.objective.name != "mlm"
    if is_set or documents < _MANY_DOCUMENTS or inputs.shards.line_by_line:
        return {}
    why = f"A sequence has {documents:.1f} documents, which say little about each other."
    return {"intra_document_masking": (True, why)}


def _describe_token_budget(
    architecture: Architecture,
    read: int,
    wanted: int,
    hours: float | None,
    flops: float,
    *,
    epochs: float,
) -> str:
    body = body_parameters(architecture)
    seen = f"It trains on {read:,} tokens"
    if read < wanted:
        seen += f", {epochs:.3g} epochs of the text"
    elif hours is not None:
        time_budget = f"{hours:.3g} hours" if hours >= 1 else f"{60 * hours:.3g} minutes"
        seen += f" in {time_budget} at about {flops / 1e9:,.0f} GFLOP/s"
    ratio = read / body
    per_parameter = f"{ratio:,.0f}" if ratio >= 1 else f"{ratio:.1g}"
    return f"{seen}: {per_parameter} for each of its {body:,} non-embedding parameters"


def _why_batch(
    config: TrainConfig,
    architecture: Architecture,
    batch_size: int,
    replicas: int,
    accumulated: int,
) -> str:
    why = (
        _by_parameters(architecture)
        if preset_of(config).tokens_per_step
        else f"Largest batch ({_BATCHES[0]}–{_BATCHES[-1]}) with {_FEWEST_STEPS:,} or more steps, "
        "or the smallest."
    )
    if replicas * accumulated == 1:
        return why
    return (
        f"{why} A step trains on {batch_size * replicas * accumulated:,} sequences: "
        f"{batch_size:,} x {replicas} devices x {accumulated} accumulation steps."
    )


def _too_often(config: TrainConfig, wanted: int, read: int) -> str:
    return (
        f"The budget allows {wanted:,} tokens, but after {read:,} a source of the mixture has been "
        f"read {config.max_source_epochs:g} times, the limit max_source_epochs; more text of this "
        "source or a lower weight helps."
    )


def _remarks(epochs: float, wanted: int, read: int) -> list[str]:
    if read < wanted:
        return [
            f"The budget allows {wanted:,} tokens, but more than {MOST_EPOCHS} epochs of the "
            "same text bring no gain; more text helps."
        ]
    if epochs > _FRESH_EPOCHS:
        return [
            f"The run takes {epochs:.0f} epochs; beyond {_FRESH_EPOCHS}, more text helps more "
            "than more time."
        ]
    return []
