"""Turns the compiler's figures into the answers: whether a run fits, its time and its cost.

Times are ranges: the compiler counts operations, but only the chip shows how long they take. This
module imports no backend.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from core.config import TrainConfig
from core.models.architecture import Architecture
from core.models.registry import count_parameters
from core.training import recipe
from core.training.topologies import Topology

# Shares of peak FLOP/s that transformers of these sizes reach on TPUs. Source: PaLM
# (https://arxiv.org/abs/2204.02311, table 3): PaLM at best 46 %, GPT-3 21 %. Small models and short
# sequences reach less; XLA's count of operations is a little high.
UTILISATION = (0.2, 0.55)

INSTALL_LIBTPU = "pip install -r requirements-preflight.txt"


@dataclass(frozen=True)
class Report:
    """Needs and costs of a run. Ranges are [best, worst]; None means unknown.

    Attributes:
        cores: Devices that share a step.
        estimated: True if formulas replace the compiler, which isn't installed.
        advice: Advice for an estimate, or for a run that doesn't fit.
        bytes_available_per_core: Memory of a device that a program can use.
        bytes_missing_per_core: 0 if the run fits.
        largest_per_replica_batch_size: Largest compiled batch that fits; None if none was sought,
            or not one sequence fits.
        tried_batch_sizes: Compiled batches, with bytes per core and whether they fit.
        per_replica_batch_size: Sequences per device and micro-batch.
        global_batch_size: Sequences per step.
        utilisation: Assumed shares of the chip's peak, [worst, best].
        tokens_per_second: Range, [worst, best].
        hours: Range, without validation and saving.
        cost: Range, in the currency of the price.
        checkpoint_disk_bytes: Peak disk usage of checkpoints and model.
        cached: True if all results came from the cache.
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
    """Computes the range of a step's time, best first; `flops` and bytes are per device.

    Compute time at the assumed shares of peak; at least memory time at peak bandwidth (best) or at
    the better share of it (worst).
    """
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
    """Estimates the operations per step and device, forward and backward.

    6 per weight and token for the matrices, 12·L·H per layer and token for attention; the head on
    predicted tokens only.

    Source: Kaplan et al., https://arxiv.org/abs/2001.08361, section 2.1.
    """
    rows = config.per_replica_batch_size * config.gradient_accumulation_steps
    width, table = architecture.hidden_size, architecture.vocab_size * architecture.hidden_size
    matrices = count_parameters(architecture) - table - architecture.max_position_embeddings * width
    attention = 12 * architecture.num_hidden_layers * width * row_length
    tokens = rows * row_length
    return float(tokens * (6 * matrices + attention) + 6 * rows * predictions * table)


def estimate_bytes_per_core(
    architecture: Architecture, config: TrainConfig, row_length: int, cores: int
) -> float:
    """Estimates the memory per device; fsdp shards the weights over the cores."""
    parameters = count_parameters(architecture)
    whole = recipe.estimate_memory_bytes(architecture, parameters, config, row_length)
    fixed = recipe.estimate_memory_bytes(
        architecture,
        parameters,
        config.model_copy(update={"per_replica_batch_size": 0}),
        row_length,
    )
    return (fixed / cores if config.sharding == "fsdp" else fixed) + whole - fixed
