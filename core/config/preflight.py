"""Options of the TPU check."""

from __future__ import annotations

from core.config.options import knob
from core.config.train import TrainConfig
from core.training.topologies import TOPOLOGIES


class PreflightConfig(TrainConfig):
    """Options for estimating what a training run needs and costs on a TPU, attached or not."""

    topology: str = knob(
        "v5e-8",
        "The TPU: v2-8, v3-8, v3-32, v4-8, v4-16, v4-32, v5e-1, -4, -8, -16, -32, v5p-8, v5p-16, "
        "v6e-1, -4, -8 or -16.",
        group="Preflight",
        basic=True,
        choices=tuple(TOPOLOGIES),
    )
    price_per_chip_hour: float | None = knob(
        None,
        "What an hour of one chip costs you, in any currency. Empty: no cost is worked out.",
        title="Price per chip-hour",
        group="Preflight",
        basic=True,
        gt=0,
    )
    largest_batch: bool = knob(
        True,
        "Also look for the largest batch that fits, which takes a few more compilations.",
        group="Preflight",
    )
    trial: bool = knob(
        True,
        "Also take five real steps with few rows on this machine, save, and read back.",
        group="Preflight",
    )
    vocab_size: int | None = knob(
        None,
        "Number of tokens, where there are no shards yet.",
        title="Vocabulary size",
        group="Preflight",
        ge=16,
        le=1 << 22,
    )
    max_seq_length: int | None = knob(
        None,
        "Tokens in a row, where there are no shards yet.",
        title="Row length",
        group="Preflight",
        ge=8,
        le=1 << 20,
    )
