"""Reads the compiler's figures for a training step on a TPU that is not attached.

Imports a backend: import this module only after the backend was chosen.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from core.backends.base import BackendOptions
from core.backends.jax import splash
from core.backends.jax.tpu_compiler import (
    Costs,
    LoweredStep,
    StepTooLargeError,
    compiler_versions,
    describe_devices,
)
from core.backends.optimizers import create_optimizer
from core.backends.schedule import LearningRateSchedule
from core.config.base import fingerprint_of
from core.config.preflight import PreflightConfig
from core.config.topologies import Topology
from core.models.building import create_model
from core.models.kernels import count_chunks
from core.training.preflight.roofline import add_up
from core.training.preflight.subject import Subject


@dataclass(frozen=True)
class Compiled:
    """Figures per device; costs and seconds are None if the step doesn't fit."""

    fits: bool
    bytes_per_core: float
    bytes_available_per_core: float
    flops_per_step_per_core: float | None
    bytes_accessed_per_step_per_core: float | None
    compile_seconds: float
    message: str = ""
    step_seconds: float | None = None

    def repeat_micro_batches(self, micro_batches: int, update: Costs) -> Compiled:
        """Multiplies all costs but the `update` by the micro-batches."""
        return self._each(update, lambda counted, once: _repeated(counted, once, micro_batches))

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
    """A training step, lowered for the compiler.

    Attributes:
        parts: Micro-batches per batch.
        uncounted: Costs of a micro-batch that the compiler doesn't count.
        state_bytes_per_core: Bytes of weights and slots per device.
    """

    def __init__(
        self, config: PreflightConfig, subject: Subject, topology: Topology, batch_size: int
    ) -> None:
        self._topology = topology
        devices = describe_devices(topology.accelerator_type, topology.shape, topology.options)
        self.uncounted = _uncounted(subject, batch_size, devices[0].device_kind)
        self.micro_batches = config.gradient_accumulation_steps
        # The values don't matter: they are constants of the program.
        schedule = LearningRateSchedule("linear", 1e-3, 100, 10_000)
        self._step = LoweredStep(
            partial(
                create_model,
                subject.architecture,
                seed=0,
                dtype_policy=config.dtype_policy,
                remat=config.remat,
            ),
            create_optimizer(config, schedule),
            devices,
            BackendOptions.of(config),
            subject.example(1),
            batch_size,
        )
        self.state_bytes_per_core = self._step.state_bytes_per_core

    @property
    def fingerprint(self) -> str:
        """Identifies program, TPU and compiler, and so the result."""
        return fingerprint_of([*self._step.programs(), self._topology.name, *compiler_versions()])

    def compile_update(self) -> Costs:
        """Compiles the optimizer's update alone, which is the same for any batch size."""
        return self._step.compile_update()

    def compile(self) -> Compiled:
        """Compiles the step, in minutes; costs count one micro-batch."""
        started = time.perf_counter()
        try:
            needed, costs, text = self._step.compile()
        except StepTooLargeError as refusal:
            return Compiled(
                fits=False,
                bytes_per_core=refusal.bytes_per_core,
                bytes_available_per_core=refusal.bytes_available_per_core,
                flops_per_step_per_core=None,
                bytes_accessed_per_step_per_core=None,
                compile_seconds=time.perf_counter() - started,
                message=str(refusal),
            )
        roofline = add_up(text, self._topology.chip)
        return Compiled(
            fits=True,
            bytes_per_core=needed,
            bytes_available_per_core=self._topology.chip.memory_bytes_per_core,
            flops_per_step_per_core=costs.flops,
            bytes_accessed_per_step_per_core=costs.bytes_accessed,
            compile_seconds=time.perf_counter() - started,
            step_seconds=roofline.seconds if roofline else None,
        )


def _uncounted(subject: Subject, batch_size: int, device_kind: str) -> Costs:
    """Computes the costs that the compiler misses: attention's kernel, chunks of logits."""
    architecture, dropout = subject.architecture, subject.architecture.attention_probs_dropout_prob
    length = subject.example(1)["input_ids"].shape[1]
    attention = 0.0
    kernel = splash.fits(length) and splash.has_kernel(device_kind)
    if architecture.kind == "decoder" and not dropout and kernel:
        size = architecture.num_attention_heads * architecture.head_size
        layers = batch_size * architecture.num_hidden_layers
        attention = layers * splash.flops(length, size)
    pieces = count_chunks(batch_size, subject.predictions, architecture.vocab_size)
    table = architecture.vocab_size * architecture.hidden_size
    tokens = batch_size * -(-subject.predictions // pieces)
    # Three matmuls; bfloat16 matrix read twice, float32 gradient accumulated; softmax and logits'
    # gradient written and read.
    flops, accessed = 6.0 * tokens * table, 12.0 * table + 16.0 * tokens * architecture.vocab_size
    return Costs(attention + (pieces - 1) * flops, (pieces - 1) * accessed)


def _repeated(counted: float, once: float, micro_batches: int) -> float:
    return once + max(0.0, counted - once) * micro_batches
