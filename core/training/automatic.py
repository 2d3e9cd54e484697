"""Derives the automatic settings of training from the shards, the time budget and the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from core.architecture.family import Size
from core.artifacts.checkpoint import CHECKPOINTS_FOLDER, Checkpoints, read_state
from core.automatic.rules import Choice
from core.backends.devices import (
    choose,
    estimate_devices,
    estimate_memory,
    find_hardware,
    is_multi_process,
    memory_per_device,
)
from core.backends.processes import broadcast
from core.backends.selection import select_backend
from core.config.options import title_of
from core.config.train import TrainConfig, automatic_fields, with_usual_values
from core.errors import DeviceError, StudioError
from core.processes.cores import free_share
from core.records.events import Reporter
from core.training.planner import (
    DROPOUTS,
    MOST_EPOCHS,
    PlannedInputs,
    Suggestion,
    estimate_seconds,
    measure_cpu_speed,
    measure_speed,
    open_sizes,
    sequences_by_parameters,
    sizes_of,
    suggest,
)
from core.training.recipe import plan, preset_of
from core.training.shards_to_come import ShardsToCome
from core.training.speeds import find_speed
from core.workspace.workspace import Workspace

T = TypeVar("T", bound=TrainConfig)

_SIZE, _BATCH, _ACCUMULATION, _EPOCHS, _MASKING = (
    "size",
    "per_replica_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "intra_document_masking",
)
_USUAL_BATCH = 32
_LEAST_BATCH = 8
# FLOP/s of an accelerator that can't be timed, because several processes share the run.
_ACCELERATOR_FLOPS = 2e13


@dataclass(frozen=True)
class Device:
    """The devices that train.

    Attributes:
        flops: FLOP/s of all devices.
        replicas: Devices that share a step.
        memory_bytes: Memory of one device; None: unknown.
        basis: Source of its speed; "": a guess.
    """

    kind: str
    flops: float
    replicas: int
    memory_bytes: int | None = None
    basis: str = ""


def _fields_to_derive(config: TrainConfig) -> list[str]:
    unused = {_EPOCHS} if config.num_train_steps else set()
    return [name for name in automatic_fields(config) if name not in unused]


def resolve(
    config: TrainConfig, workspace: Workspace, reporter: Reporter | None = None
) -> TrainConfig:
    """Returns the config without automatic settings; a resumed run keeps those of its first start.

    Raises:
        ConfigError, ShardError, TokenizerError: The shards can't be used.
        DeviceError: There is no such device.
    """
    reporter = reporter or Reporter()
    if not automatic_fields(config):
        return config
    if not is_multi_process(config):
        return _with(config, _values(config, workspace, reporter))
    devices = select_backend(config)
    values = _values(config, workspace, reporter) if devices.is_first else None
    return _with(config, broadcast(values, devices))


def explain(
    config: T, workspace: Workspace, device: Device | None = None
) -> tuple[T, dict[str, Choice]]:
    """Derives automatic settings without a backend; returns the config and the reasons by setting.

    Args:
        device: The devices that will train; None: estimated.

    Raises:
        ConfigError, ShardError, TokenizerError: The shards can't be used.
    """
    names = _fields_to_derive(config)
    if not names:
        return config, {}
    device = device or estimated_device(config, workspace)
    choices = _choices(config, names, workspace, device)
    return _with(config, {name: choice.value for name, choice in choices.items()}), choices


@dataclass(frozen=True)
class Forecast:
    """Training before there are shards.

    Attributes:
        seconds: Estimate.
    """

    choices: dict[str, Choice]
    size: str
    num_train_steps: int
    seconds: float


def forecast(
    config: TrainConfig,
    workspace: Workspace,
    *,
    vocab_size: int,
    row_length: int,
    sequences: int,
    documents: int = 0,
) -> Forecast:
    """Derives the settings of a training on shards that don't exist yet.

    Args:
        row_length: Tokens per sequence.
        sequences: Training sequences.
        documents: Training documents; 0: unknown.
    """
    names = _fields_to_derive(config)
    sizes = sizes_of(config.family) if config.size == "auto" else (config.size,)
    inputs: dict[Size, PlannedInputs] = {
        size: ShardsToCome.of(
            with_usual_values(config.model_copy(update={"size": size})),
            vocab_size=vocab_size,
            row_length=row_length,
            sequences=sequences,
            documents=documents,
        )
        for size in sizes
    }
    device = estimated_device(config, workspace)
    speeds = _speeds(config, workspace, device, inputs)
    choices, size = _derived(config, inputs, names, device, speeds)
    resolved = _with(config, {name: choice.value for name, choice in choices.items()})
    planned = plan(resolved, sequences, row_length, device.replicas)
    seconds = estimate_seconds(resolved, inputs[size], planned, speeds[size], device.replicas)
    return Forecast(choices, size, planned.num_train_steps, seconds)


def _values(config: TrainConfig, workspace: Workspace, reporter: Reporter) -> dict[str, Any]:
    earlier = _first_start(reporter.folder)
    if earlier is not None:
        # Its number of epochs, too, where more steps have been set since.
        return {name: earlier[name] for name in automatic_fields(config) if name in earlier}
    if not (names := _fields_to_derive(config)):
        return {}
    choices = _choices(config, names, workspace, _measured_device(config, workspace))
    for name, choice in choices.items():
        title = title_of(name, TrainConfig.model_fields[name])
        reporter.note(f"{title} {choice.value}: {choice.reason}")
    return {name: choice.value for name, choice in choices.items()}


def _first_start(folder: Path | None) -> Mapping[str, Any] | None:
    """Returns the settings that the run's newest readable checkpoint was trained with."""
    if folder is None:
        return None
    saved = Checkpoints(folder / CHECKPOINTS_FOLDER)
    for step in saved.steps():
        try:
            return read_state(saved.path(step)).config
        except StudioError:
            continue
    return None


def _with(config: T, values: Mapping[str, Any]) -> T:
    return with_usual_values(config.model_copy(update=dict(values)))


def _choices(
    config: TrainConfig, names: list[str], workspace: Workspace, device: Device
) -> dict[str, Choice]:
    sizes = () if config.size == "auto" else (config.size,)
    inputs = open_sizes(with_usual_values(config), workspace, sizes)
    speeds = _speeds(config, workspace, device, inputs)
    return _derived(config, inputs, names, device, speeds)[0]


def _speeds(
    config: TrainConfig, workspace: Workspace, device: Device, inputs: Mapping[Size, PlannedInputs]
) -> dict[Size, float]:
    """Returns the device's FLOP/s by size, as earlier runs of the nearest hidden size differ."""

    def relative(size: Size) -> float:
        width = inputs[size].architecture.hidden_size
        own = find_speed(workspace, config, device.kind, width)
        return own / usual if own and usual else 1.0

    usual = find_speed(workspace, config, device.kind)
    return {size: device.flops * relative(size) for size in inputs}


def _derived(
    config: TrainConfig,
    inputs: Mapping[Size, PlannedInputs],
    names: list[str],
    device: Device,
    speeds: Mapping[Size, float],
) -> tuple[dict[str, Choice], Size]:
    """Returns the values and reasons by setting, and the size that they are for."""
    first = next(iter(inputs.values()))
    suggestion = _suggest(config, inputs, names, device, speeds)
    if device.kind != "cpu":
        suggestion.values.pop(_MASKING, None)  # Accelerators lose their fused attention by it.
    batch = suggestion.values[_BATCH] * suggestion.values.get(_ACCUMULATION, 1) * device.replicas
    epochs = _rounded_up(suggestion.values["num_train_steps"] * batch / first.epoch_length)
    usual = f"usual for {epochs:.3g} epochs"
    reasons = {name: sentence.removesuffix(".") for name, sentence in suggestion.reasons.items()}
    choices = {
        **{name: Choice(0.0, usual) for name in DROPOUTS},
        _MASKING: Choice(False, "sequences hold few documents"),
        _EPOCHS: Choice(epochs, reasons["num_train_steps"]),
        **{name: Choice(value, reasons[name]) for name, value in suggestion.values.items()},
    }
    wanted = [*names, *([_ACCUMULATION] if _BATCH in names else [])]
    size = choices[_SIZE].value if _SIZE in names else next(iter(inputs))
    return {name: choices[name] for name in wanted if name in choices}, size


def _rounded_up(epochs: float) -> float:
    """Rounds to two decimals; less than an epoch, which may be many steps, to three digits."""
    decimals = max(2, 2 - math.floor(math.log10(epochs)))
    return math.ceil(epochs * 10**decimals) / 10**decimals


def _suggest(
    config: TrainConfig,
    inputs: Mapping[Size, PlannedInputs],
    names: list[str],
    device: Device,
    speeds: Mapping[Size, float],
) -> Suggestion:
    first = next(iter(inputs.values()))
    per_epoch, length = first.epoch_length, first.shards.row_length
    hours: float | None = None
    tokens: int | dict[Size, int] | None = None
    given = set(TrainConfig.model_fields) - set(names)
    if config.num_train_steps and not config.evaluate_only:
        shares = device.replicas * config.gradient_accumulation_steps
        batch = config.per_replica_batch_size or _batch_for(
            config.num_train_steps, per_epoch, shares
        )
        sequences = {
            size: sequences_by_parameters(config, opened.architecture, length) or batch * shares
            for size, opened in inputs.items()
        }
        tokens = {size: config.num_train_steps * sequences[size] * length for size in inputs}
        if config.per_replica_batch_size or not preset_of(config).tokens_per_step:
            config = config.model_copy(update={_BATCH: batch})
            given.add(_BATCH)
    elif config.evaluate_only or config.num_train_epochs is not None:
        tokens = max(1, int((config.num_train_epochs or 1) * per_epoch)) * length
    else:
        hours = config.minutes / 60
    return suggest(
        config,
        inputs,
        hours=hours,
        tokens=tokens,
        flops=speeds,
        replicas=device.replicas,
        memory_bytes=device.memory_bytes,
        given=given,
    )


def _batch_for(steps: int, sequences: int, shares: int) -> int:
    """Returns the largest usual batch size that doesn't read the text too often.

    Args:
        sequences: In an epoch.
        shares: Batches of this size in a step.
    """
    batch = _USUAL_BATCH
    while batch > _LEAST_BATCH and steps * batch * shares > MOST_EPOCHS * sequences:
        batch //= 2
    return max(1, min(batch, sequences // shares))


def _measured_device(config: TrainConfig, workspace: Workspace) -> Device:
    """Times this process's device, unless earlier runs did; several processes aren't timed."""
    device = estimated_device(config, workspace)
    if device.kind == "cpu":
        return device
    if is_multi_process(config):
        devices = select_backend(config)
        flops = _ACCELERATOR_FLOPS * devices.count
    else:
        flops, devices = measure_speed(config)
    flops = find_speed(workspace, config, devices.kind) or flops
    return Device(devices.kind, flops, devices.count, memory_per_device(devices))


def estimated_device(
    config: TrainConfig, workspace: Workspace, hidden_size: int | None = None
) -> Device:
    """Estimates the device without a backend.

    Args:
        hidden_size: Earlier runs of the nearest one count; None: of any.
    """
    hardware = find_hardware()
    try:
        kind = choose(config, hardware).kind if not config.target else "accelerator"
        replicas = estimate_devices(config, hardware) if not config.target else 1
    except DeviceError:
        kind, replicas = "accelerator", 1  # The run may execute on another machine.
    flops = find_speed(workspace, config, kind, hidden_size)
    basis = "earlier runs here" if flops else ""
    if kind != "cpu":
        return Device(kind, flops or _ACCELERATOR_FLOPS * replicas, replicas, basis=basis)
    flops = (flops or measure_cpu_speed()) * free_share()
    memory = estimate_memory(config, hardware)
    return Device(kind, flops, replicas, memory, basis or "a timed matrix multiplication")
