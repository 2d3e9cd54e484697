"""Compiles the training step for a TPU that is not attached.

The step and its shardings are those of `core.backends.jax.step`. Import this module only after the
backend was chosen.

Source: https://docs.jax.dev/en/latest/aot.html.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from core.backends.base import BackendOptions, dropout_seeds
from core.backends.jax.mesh import DeviceMesh
from core.backends.jax.step import TrainState, make_train_step
from core.backends.optimizers import build_optimizer
from core.models.head import LanguageModel
from core.objectives.objective import Batch

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]{1,20})([KMGT]?)"
# The compiler's out-of-memory messages.
_REFUSALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"{_SIZE} exceeds {_SIZE}"),
)


class Costs(NamedTuple):
    """The compiler's cost analysis per device; it counts the body of a loop once."""

    flops: float
    bytes_accessed: float

    @classmethod
    def of(cls, compiled: Any) -> Costs:
        costs = compiled.cost_analysis() or {}
        return cls(float(costs.get("flops", 0.0)), float(costs.get("bytes accessed", 0.0)))


class Program(NamedTuple):
    """A compiled step: the memory that it needs per device, its costs, and its schedule as HLO."""

    bytes_per_core: float
    costs: Costs
    text: str


class StepTooLargeError(Exception):
    """The compiler's refusal of a step, in bytes per device; the message is its first line."""

    def __init__(
        self, message: str, bytes_per_core: float, bytes_available_per_core: float
    ) -> None:
        super().__init__(message.splitlines()[0])
        self.bytes_per_core = bytes_per_core
        self.bytes_available_per_core = bytes_available_per_core


class LoweredStep:
    """A training step, lowered for the compiler.

    Args:
        create: Creates the model; called in a scope without initialisation.
        optimizer: Not yet built.
        devices: See `describe_devices`.
        options: Sharding and micro-batches.
        example: A batch of one sequence, for its shapes.
        batch_size: Sequences per device in a micro-batch.

    Attributes:
        state_bytes_per_core: Bytes of weights and slots per device.
    """

    def __init__(
        self,
        create: Callable[[], LanguageModel],
        optimizer: keras.optimizers.Optimizer,
        devices: list[Any],
        options: BackendOptions,
        example: Batch,
        batch_size: int,
    ) -> None:
        parts = options.gradient_accumulation_steps
        mesh = DeviceMesh(devices, options.sharding)
        # Shapes are enough: skip the initialisation of weights.
        with keras.StatelessScope(initialize_variables=False):
            model = create()
            build_optimizer(optimizer, model)
        state = TrainState(
            _shapes(model.trainable_variables, mesh),
            _shapes(model.non_trainable_variables, mesh),
            _shapes(optimizer.variables, mesh),
        )
        left = TrainState(*[[array.sharding for array in values] for values in state])
        self.state_bytes_per_core = sum(map(_bytes_per_device, jax.tree.leaves(state)))
        step = jax.jit(
            mesh.within(make_train_step(model, optimizer, parts)),
            donate_argnums=0,
            out_shardings=(left, mesh.whole()),
        )
        batch = _batch_shapes(example, mesh, batch_size, parts)
        # In a scope again, or the first scope that the step opens would initialise all weights.
        with keras.StatelessScope(initialize_variables=False):
            self._lowered = step.lower(state, batch)
            self._update = _lower_update(optimizer, mesh, state, left) if parts > 1 else None

    def programs(self) -> list[str]:
        """Returns the programs that are to be compiled, as text."""
        return [program.as_text() for program in (self._lowered, self._update) if program]

    def compile_update(self) -> Costs:
        """Compiles the optimizer's update alone, which is the same for any batch size."""
        assert self._update is not None, "the batch comes in parts"
        return Costs.of(self._update.compile())

    def compile(self) -> Program:
        """Compiles the step, which takes minutes for a model of base size.

        The costs count one micro-batch.

        Raises:
            StepTooLargeError: The step doesn't fit.
        """
        # `as_text` fails for programs with asynchronous collectives; the compiler's files don't.
        with tempfile.TemporaryDirectory() as folder:
            dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
            try:
                compiled = self._lowered.compile(compiler_options=dump)
            except jax.errors.JaxRuntimeError as error:
                refusal = _refusal(str(error))
                if refusal is None:
                    raise
                raise refusal from error
            schedules = sorted(Path(folder).rglob("*.after_codegen.txt"))
            text = schedules[-1].read_text("utf-8", "replace") if schedules else ""
        return Program(_bytes_per_core(compiled), Costs.of(compiled), text)


def _bytes_per_core(compiled: Any) -> float:
    memory = compiled.memory_analysis()
    return float(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def _refusal(message: str) -> StepTooLargeError | None:
    """Returns the compiler's out-of-memory message as an error; None for other messages."""
    sizes = next((match for pattern in _REFUSALS if (match := pattern.search(message))), None)
    if sizes is None:
        return None
    used, unit, available, other_unit = sizes.groups()
    return StepTooLargeError(
        message, float(used) * _UNITS[unit], float(available) * _UNITS[other_unit]
    )


def libtpu_version() -> str | None:
    """Returns the version of libtpu, or None if it isn't installed."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return None


def compiler_versions() -> tuple[str, str | None]:
    """Returns the versions of JAX and libtpu."""
    return jax.__version__, libtpu_version()


def describe_devices(accelerator_type: str, shape: str, options: Mapping[str, Any]) -> list[Any]:
    """Describes the devices of a TPU that is not attached, for the compiler.

    Args:
        accelerator_type: The TPU's name in `gcloud`.
        shape: Its name in libtpu.
        options: Further options for libtpu.
    """
    os.environ.update(
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE=accelerator_type,
        TPU_WORKER_HOSTNAMES="localhost",
    )
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=shape, **options)
    return list(topology.devices)


def _lower_update(
    optimizer: keras.optimizers.Optimizer, mesh: DeviceMesh, state: TrainState, left: TrainState
) -> jax.stages.Lowered:
    """Lowers the optimizer's update; gradients have the shapes of the weights."""
    update = jax.jit(
        mesh.within(optimizer.stateless_apply),
        donate_argnums=(0, 2),
        out_shardings=(left.trainable, left.optimizer),
    )
    return update.lower(state.optimizer, state.trainable, state.trainable)


def _shapes(variables: list[keras.Variable], mesh: DeviceMesh) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(
            tuple(variable.shape), variable.dtype, sharding=mesh.weight(variable.shape)
        )
        for variable in variables
    ]


def _batch_shapes(
    example: Batch, mesh: DeviceMesh, batch_size: int, parts: int
) -> dict[str, jax.ShapeDtypeStruct]:
    rows, front = batch_size * mesh.size, () if parts == 1 else (parts,)
    sharding = mesh.rows(axis=len(front))
    shapes = {
        name: jax.ShapeDtypeStruct(
            (*front, rows, *values.shape[1:]), values.dtype, sharding=sharding
        )
        for name, values in example.items()
    }
    seeds = dropout_seeds(0, parts)
    shapes["dropout_seed"] = jax.ShapeDtypeStruct((*front, 2), seeds.dtype, sharding=mesh.whole())
    return shapes


def _bytes_per_device(shape: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(shape.sharding.shard_shape(shape.shape)) * shape.dtype.itemsize)
