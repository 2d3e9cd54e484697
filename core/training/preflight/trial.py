"""Runs five real steps here, saves and reads back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from core.architecture.architecture import Architecture
from core.backends.base import Backend, BackendOptions
from core.backends.creation import build_for_training, create_backend
from core.backends.devices import Devices
from core.backends.schedule import LearningRateSchedule
from core.config.preflight import PreflightConfig
from core.errors import LossNotFiniteError, RunError
from core.models import hf
from core.models.registry import count_parameters
from core.training.batches import TrainBatches
from core.training.preflight.subject import Subject
from core.training.recipe import estimate_memory_bytes, resolve_learning_rate

STEPS = 5
_ROWS = 2
_SHARE_OF_MEMORY = 0.3
# Weights and slots as read, read back, and compared.
_COPIES_BYTES_PER_PARAMETER = 3 * 12


@dataclass(frozen=True)
class Trial:
    """Result of the trial; losses are in nats."""

    layers: int
    of_layers: int
    rows: int
    losses: list[float]
    parameters: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def try_steps(
    config: PreflightConfig, subject: Subject, devices: Devices, report: Callable[[str], None]
) -> Trial:
    """Runs five steps on small batches, with fewer layers if memory is scarce.

    Raises:
        LossNotFiniteError: The loss is not finite.
        RunError: The restored state differs.
    """
    architecture = _cut(config, subject)
    backend = _create_backend(config, architecture, devices)
    batches = TrainBatches(subject.rows, subject.objective, _ROWS * _parts_of(config), 0)
    losses: list[float] = []
    for number in range(STEPS):
        report(f"step {number + 1} of {STEPS} on this machine")
        loss = backend.train_step(backend.put(batches(number), number))
        losses.append(float(backend.fetch([loss])[0]))
    if not np.isfinite(losses).all():
        raise LossNotFiniteError(
            "The loss of the trial steps is NaN or infinite",
            expected="finite numbers",
            received=", ".join(map(str, losses)),
            fix="lower ⟬learning_rate⟭, or raise ⟬warmup_steps⟭",
        )
    report("saving and reading back")
    with tempfile.TemporaryDirectory() as folder:
        _check_saving(backend, architecture, Path(folder))
    return Trial(
        layers=architecture.num_hidden_layers,
        of_layers=subject.architecture.num_hidden_layers,
        rows=batches.batch_size,
        losses=losses,
        parameters=count_parameters(architecture),
    )


def _parts_of(config: PreflightConfig) -> int:
    return min(config.gradient_accumulation_steps, 2)


def _cut(config: PreflightConfig, subject: Subject) -> Architecture:
    room = psutil.virtual_memory().available * _SHARE_OF_MEMORY
    small = config.model_copy(update={"per_replica_batch_size": _ROWS})
    architecture = subject.architecture
    for layers in range(architecture.num_hidden_layers, 0, -1):
        architecture = replace(subject.architecture, num_hidden_layers=layers)
        parameters = count_parameters(architecture)
        needed = estimate_memory_bytes(architecture, parameters, small, subject.rows.row_length)
        if needed + parameters * _COPIES_BYTES_PER_PARAMETER <= room:
            return architecture
    return architecture


def _create_backend(
    config: PreflightConfig, architecture: Architecture, devices: Devices
) -> Backend:
    settled = resolve_learning_rate(config, architecture)
    schedule = LearningRateSchedule("linear", settled.learning_rate or 0.0, STEPS, 2 * STEPS)
    return create_backend(
        devices,
        lambda: build_for_training(config, architecture, schedule),
        BackendOptions("data", _parts_of(config)),
    )


def _check_saving(backend: Backend, architecture: Architecture, folder: Path) -> None:
    state = backend.read_state()
    weights = {tie.path for tie in hf.weight_mappings(architecture)}
    rest = {path: array for path, array in state.items() if path not in weights}
    save_file(rest, folder / "slots.safetensors")
    hf.write_weights(folder, state, architecture)
    backend.write_state(
        {**load_file(folder / "slots.safetensors"), **hf.read_weights(folder, architecture)}
    )
    _check_equal(state, backend.read_state())


def _check_equal(saved: dict[str, NDArray], restored: dict[str, NDArray]) -> None:
    different = [path for path in saved if not np.array_equal(saved[path], restored[path])]
    if different:
        raise RunError(
            "The saved training state differs from the original",
            expected="identical values, bit for bit",
            received=f"other values in {different[0]} (and {len(different) - 1} more)",
            fix="don't train with these settings; please report them as a bug",
        )
