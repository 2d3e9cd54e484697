"""From what the compiler says to what a person asks: does it fit, how long, how much.

Every time here is a range: the compiler counts operations, but only the chip says how long they
take. No engine is imported here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from core.config import TrainConfig
from core.models.architecture import Architecture
from core.models.registry import count_parameters
from core.training import recipe
from core.training.topologies import Topology

# Shares of the peak that transformers of these sizes come to on TPUs. Source: PaLM
# (https://arxiv.org/abs/2204.02311, table 3) has 46 % at best, GPT-3 21 %; small models and short
# rows stay below, XLA's counting of operations is a little generous.
UTILISATION = (0.2, 0.55)

INSTALL_LIBTPU = "pip install -r requirements-preflight.txt"


@dataclass(frozen=True)
class Report:
    """What a run would need and cost.

    Ranges are [best, worst]; what isn't known is None.

    Attributes:
        topology: The TPU by name.
        chips: In it.
        cores: Devices that share a step.
        estimated: True where no compiler was there and formulas stand in for it.
        advice: What to do about that, or about not fitting.
        fits: Whether a device's memory is enough.
        bytes_per_core: That a device needs.
        bytes_available_per_core: That a device has for a program.
        bytes_missing_per_core: By how much it doesn't fit; 0 where it does.
        compiler_message: The compiler's own words where it refused.
        largest_per_replica_batch_size: Largest batch that was compiled and fits; None where it
            wasn't looked for, or not even one row fits.
        tried_batch_sizes: Batches that were compiled, with bytes per core and whether they fit.
        parameters: Trainable ones.
        per_replica_batch_size: Rows a device sees at once.
        global_batch_size: Rows in a step.
        tokens_per_step: In all of them.
        flops_per_step_per_core: Operations of a step on a device.
        bytes_accessed_per_step_per_core: That a device reads and writes in its memory.
        utilisation: Assumed shares of the chip's peak, [worst, best].
        step_seconds: Range.
        tokens_per_second: Range, [worst, best].
        num_train_steps: Of the run.
        num_train_epochs: Passes over the rows.
        tokens_per_parameter: Read in the run.
        hours: Range, validation and saving left out.
        chip_hours: Range.
        cost: Range, in the currency of the price; None without a price.
        price_per_chip_hour: As it was given.
        checkpoint_disk_bytes: That all checkpoints and the model take at once.
        compile_seconds: That compilation took.
        cached: Whether the compiler's answer was known from before.
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
        """Returns plain values."""
        return asdict(self)


def step_seconds(
    topology: Topology, flops: float | None, bytes_accessed: float | None
) -> list[float] | None:
    """Returns the range of a step's time, best first.

    It is what the operations take at the assumed shares of the chip's peak, but at best no less
    than what the bytes take at the peak of its memory.

    Args:
        topology: The TPU.
        flops: Operations of a step on a device.
        bytes_accessed: Bytes that a device reads and writes in a step, where known.
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
    """Returns the operations of a step on a device by the usual formula.

    Forward and backward are 6 operations a weight and token for the matrices, 12·L·H a layer and
    token for attention, and the head on the predicted tokens only.

    Source: Kaplan et al., https://arxiv.org/abs/2001.08361, section 2.1.

    Args:
        architecture: The model's dimensions.
        config: Its batch.
        row_length: Tokens in a row.
        predictions: Of a row.
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
    """Returns roughly the memory that a device needs: weights in parts where they are spread."""
    parameters = count_parameters(architecture)
    whole = recipe.estimate_memory_bytes(architecture, parameters, config, row_length)
    fixed = recipe.estimate_memory_bytes(
        architecture,
        parameters,
        config.model_copy(update={"per_replica_batch_size": 0}),
        row_length,
    )
    return (fixed / cores if config.sharding == "fsdp" else fixed) + whole - fixed
