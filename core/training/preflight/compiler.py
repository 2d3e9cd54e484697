"""Compiles a training step for a TPU that is not attached.

Import it only after the backend was chosen. Source: https://docs.jax.dev/en/latest/aot.html.
"""

from __future__ import annotations

import operator
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from core.backends.base import dropout_seeds
from core.backends.jax.mesh import DeviceMesh
from core.backends.jax.step import TrainState, make_train_step
from core.backends.kernels import count_chunks
from core.backends.optimizers import build_optimizer, create_optimizer
from core.backends.schedule import LearningRateSchedule
from core.config import PreflightConfig, fingerprint_of
from core.models.building import create_model
from core.training.preflight.subject import Subject
from core.training.topologies import Topology

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_REFUSALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"{_SIZE} exceeds {_SIZE}"),
)


class Costs(NamedTuple):
    """Costs per device; the compiler counts the body of a loop once."""

    flops: float
    bytes_accessed: float

    @classmethod
    def of(cls, compiled: Any) -> Costs:
        costs = compiled.cost_analysis() or {}
        return cls(float(costs.get("flops", 0.0)), float(costs.get("bytes accessed", 0.0)))


@dataclass(frozen=True)
class Compiled:
    """Figures per device; costs are None if the step doesn't fit."""

    fits: bool
    bytes_per_core: float
    bytes_available_per_core: float
    flops_per_step_per_core: float | None
    bytes_accessed_per_step_per_core: float | None
    compile_seconds: float
    message: str = ""

    def repeat_parts(self, parts: int, update: Costs) -> Compiled:
        """Multiplies all costs but the `update` by the micro-batches."""
        return self._each(update, lambda counted, once: _repeated(counted, once, parts))

    def plus(self, costs: Costs) -> Compiled:
        """Adds costs."""
        return self._each(costs, operator.add)

    def _each(self, costs: Costs, change: Callable[[float, float], float]) -> Compiled:
        flops, accessed = self.flops_per_step_per_core, self.bytes_accessed_per_step_per_core
        assert flops is not None and accessed is not None, "it fits"
        return replace(
            self,
            flops_per_step_per_core=change(flops, costs.flops),
            bytes_accessed_per_step_per_core=change(accessed, costs.bytes_accessed),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Lowered:
    """A training step, lowered for the compiler."""

    def __init__(
        self, config: PreflightConfig, subject: Subject, topology: Topology, batch_size: int
    ) -> None:
        self._topology = topology
        self.uncounted = _uncounted(subject, batch_size)
        self.parts = config.gradient_accumulation_steps
        mesh = DeviceMesh(describe_devices(topology), config.sharding)
        # Only constants of the program.
        schedule = LearningRateSchedule("linear", 1e-3, 100, 10_000)
        optimizer = create_optimizer(config, schedule)
        # Shapes are enough: skip the initialisation of weights.
        with keras.StatelessScope(initialize_variables=False):
            model = create_model(
                subject.architecture, seed=0, dtype_policy=config.dtype_policy, remat=config.remat
            )
            build_optimizer(optimizer, model)
        state = TrainState(
            _shapes(model.trainable_variables, mesh),
            _shapes(model.non_trainable_variables, mesh),
            _shapes(optimizer.variables, mesh),
        )
        left = TrainState(*[[one.sharding for one in values] for values in state])
        self.state_bytes_per_core = sum(_bytes_per_device(one) for one in jax.tree.leaves(state))
        step = jax.jit(
            mesh.within(make_train_step(model, optimizer, self.parts)),
            donate_argnums=0,
            out_shardings=(left, mesh.whole()),
        )
        batch = _batch_shapes(subject, mesh, batch_size, self.parts)
        # In a scope again, or the step's first scope would initialise all weights.
        with keras.StatelessScope(initialize_variables=False):
            self._lowered = step.lower(state, batch)
            self._update = _lower_update(optimizer, mesh, state, left) if self.parts > 1 else None

    @property
    def fingerprint(self) -> str:
        """Identifies program, TPU and compiler."""
        programs = [one.as_text() for one in (self._lowered, self._update) if one]
        return fingerprint_of([*programs, self._topology.name, jax.__version__, libtpu_version()])

    def compile_update(self) -> Costs:
        """Compiles the update alone, the same for any batch size."""
        assert self._update is not None, "the batch comes in parts"
        return Costs.of(self._update.compile())

    def compile(self) -> Compiled:
        """Compiles the step, in minutes; costs count one micro-batch."""
        started = time.perf_counter()
        try:
            compiled = self._lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            return self._refused(error, time.perf_counter() - started)
        memory, costs = compiled.memory_analysis(), Costs.of(compiled)
        return Compiled(
            fits=True,
            bytes_per_core=float(
                memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                + memory.temp_size_in_bytes
                - memory.alias_size_in_bytes
            ),
            bytes_available_per_core=self._topology.chip.memory_bytes_per_core,
            flops_per_step_per_core=costs.flops,
            bytes_accessed_per_step_per_core=costs.bytes_accessed,
            compile_seconds=time.perf_counter() - started,
        )

    def _refused(self, error: Exception, seconds: float) -> Compiled:
        message = str(error)
        sizes = next((found for one in _REFUSALS if (found := one.search(message))), None)
        if sizes is None:
            raise error
        used, unit, available, other_unit = sizes.groups()
        return Compiled(
            fits=False,
            bytes_per_core=float(used) * _UNITS[unit],
            bytes_available_per_core=float(available) * _UNITS[other_unit],
            flops_per_step_per_core=None,
            bytes_accessed_per_step_per_core=None,
            compile_seconds=seconds,
            message=message.splitlines()[0],
        )


def _uncounted(subject: Subject, batch_size: int) -> Costs:
    """Computes the costs of all chunks of the logits but the first, which the compiler misses."""
    found = subject.architecture
    pieces = count_chunks(batch_size, subject.predictions, found.vocab_size)
    table = found.vocab_size * found.hidden_size
    tokens = batch_size * -(-subject.predictions // pieces)
    # Three matmuls; bfloat16 matrix read twice, float32 gradient accumulated; softmax and logits'
    # gradient written and read.
    flops, accessed = 6.0 * tokens * table, 12.0 * table + 16.0 * tokens * found.vocab_size
    return Costs((pieces - 1) * flops, (pieces - 1) * accessed)


def libtpu_version() -> str | None:
    """Returns libtpu's version, if installed."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return None


def describe_devices(topology: Topology) -> list[Any]:
    """Describes a TPU that is not attached."""
    os.environ.update(
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE=topology.accelerator_type,
        TPU_WORKER_HOSTNAMES="localhost",
    )
    from jax.experimental import topologies

    found = topologies.get_topology_desc(
        platform="tpu", topology_name=topology.shape, **topology.options
    )
    return list(found.devices)


def _repeated(counted: float, once: float, parts: int) -> float:
    return once + max(0.0, counted - once) * parts


def _lower_update(
    optimizer: keras.optimizers.Optimizer, mesh: DeviceMesh, state: TrainState, left: TrainState
) -> jax.stages.Lowered:
    update = jax.jit(
        mesh.within(optimizer.stateless_apply),
        donate_argnums=(0, 2),
        out_shardings=(left.trainable, left.optimizer),
    )
    return update.lower(state.optimizer, state.trainable, state.trainable)


def _shapes(variables: list[keras.Variable], mesh: DeviceMesh) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(tuple(one.shape), one.dtype, sharding=mesh.weight(one.shape))
        for one in variables
    ]


def _batch_shapes(
    subject: Subject, mesh: DeviceMesh, batch_size: int, parts: int
) -> dict[str, jax.ShapeDtypeStruct]:
    rows, front = batch_size * mesh.size, () if parts == 1 else (parts,)
    sharding = mesh.rows(axis=len(front))
    shapes = {
        name: jax.ShapeDtypeStruct(
            (*front, rows, *values.shape[1:]), values.dtype, sharding=sharding
        )
        for name, values in subject.example(1).items()
    }
    seeds = dropout_seeds(0, parts)
    shapes["dropout_seed"] = jax.ShapeDtypeStruct((*front, 2), seeds.dtype, sharding=mesh.whole())
    return shapes


def _bytes_per_device(shape: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(shape.sharding.shard_shape(shape.shape)) * shape.dtype.itemsize)
