"""Turns the compiler's figures into memory, time and cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from core.architecture.architecture import Architecture
from core.config.options import settled
from core.config.topologies import UTILISATION, Topology
from core.config.train import TrainConfig
from core.models.registry import count_parameters
from core.training import recipe

# How much faster or slower published runs may be than a compiled program (benchmarks/trials.md).
SPREAD = 1.3

INSTALL_LIBTPU = "pip install -r requirements-preflight.txt"


@dataclass(frozen=True)
class Report:
    """Needs and costs of a run. Ranges are [best, worst]; None is unknown.

    Attributes:
        estimated: True if formulas replace the compiler.
        utilisation: Shares of peak, [worst, best].
        expected_step_seconds: The compiler's estimate; None if formulas replace it.
        tokens_per_second: [worst, best].
        hours: Without validation and saving.
        cached: All results came from the cache.
    """

    topology: str
    chips: int
    cores: int
    estimated: bool
    advice: str
    fits: bool
    bytes_per_core: float
    bytes_available_per_core: float
    bytes_missing_per_core: float
    compiler_message: str
    largest_per_replica_batch_size: int | None
    tried_batch_sizes: list[dict[str, Any]]
    parameters: int
    per_replica_batch_size: int
    global_batch_size: int
    tokens_per_step: int
    flops_per_step_per_core: float | None
    bytes_accessed_per_step_per_core: float | None
    utilisation: list[float]
    expected_step_seconds: float | None
    step_seconds: list[float] | None
    tokens_per_second: list[float] | None
    num_train_steps: int | None
    num_train_epochs: float | None
    tokens_per_parameter: float | None
    hours: list[float] | None
    chip_hours: list[float] | None
    cost: list[float] | None
    price_per_chip_hour: float | None
    checkpoint_disk_bytes: float
    compile_seconds: float
    cached: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def step_seconds(
    topology: Topology, flops: float | None, bytes_accessed: float | None
) -> list[float] | None:
    """Computes a step's [best, worst] time; memory traffic limits both."""
    if not flops:
        return None
    peak = topology.chip.flops_per_second / topology.chip.cores
    bandwidth = topology.chip.memory_bytes_per_second / topology.chip.cores
    worst, best = (flops / (peak * share) for share in UTILISATION)
    by_memory = (bytes_accessed or 0.0) / bandwidth
    return [max(best, by_memory), max(worst, by_memory / UTILISATION[1])]


def estimate_flops_per_core(
    architecture: Architecture, config: TrainConfig, row_length: int, predictions: int
) -> float:
    """Estimates FLOPs per step and device.

    Source: https://arxiv.org/abs/2001.08361, section 2.1.
    """
    rows = settled(config.per_replica_batch_size) * config.gradient_accumulation_steps
    width, table = architecture.hidden_size, architecture.vocab_size * architecture.hidden_size
    matrices = count_parameters(architecture) - table - architecture.max_position_embeddings * width
    attention = 12 * architecture.num_hidden_layers * width * row_length
    tokens = rows * row_length
    return float(tokens * (6 * matrices + attention) + 6 * rows * predictions * table)


def estimate_bytes_per_core(
    architecture: Architecture, config: TrainConfig, row_length: int, cores: int
) -> float:
    """Estimates the memory per device."""
    parameters = count_parameters(architecture)
    whole = recipe.estimate_memory_bytes(architecture, parameters, config, row_length)
    fixed = recipe.estimate_memory_bytes(
        architecture,
        parameters,
        config.model_copy(update={"per_replica_batch_size": 0}),
        row_length,
    )
    return (fixed / cores if config.sharding == "fsdp" else fixed) + whole - fixed
