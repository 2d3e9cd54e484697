"""Options of the check on a TPU or GPU."""

from __future__ import annotations

from pydantic import model_validator

from core.config.options import option
from core.config.topologies import GPUS, TOPOLOGIES
from core.config.train import TrainConfig
from core.errors import ConfigError


class PreflightConfig(TrainConfig):
    """Options for estimating needs and cost on a TPU or GPU."""

    not_inherited = frozenset(
        {
            "name",
            "target",
            "mirror",
            "max_hours",
            "max_cost",
            "price_per_hour",
            "report_to",
            "project",
            "webhook",
            "webhook_format",
            "minutes",
        }
    )

    topology: str = option(
        "v5e-8",
        "TPU type and number of cores or chips, or GPUs.",
        group="Preflight",
        basic=True,
        choices=(*TOPOLOGIES, *GPUS),
    )
    price_per_chip_hour: float | None = option(
        None,
        "In any currency; empty: no cost estimate.",
        title="Price per chip-hour",
        group="Preflight",
        basic=True,
        gt=0,
    )
    largest_batch: bool = option(
        True,
        "Needs a few more compilations.",
        title="Find the largest batch",
        group="Preflight",
    )
    trial: bool = option(
        True,
        "Trains five small steps on this machine, then saves and reloads the model.",
        title="Trial steps",
        group="Preflight",
    )
    vocab_size: int | None = option(
        None,
        "Number of tokens, if there are no shards yet.",
        title="Vocabulary size",
        group="Preflight",
        ge=16,
        le=1 << 22,
    )
    max_seq_length: int | None = option(
        None,
        "Tokens in a sequence, if there are no shards yet.",
        title="Sequence length",
        group="Preflight",
        ge=8,
        le=1 << 20,
    )

    @model_validator(mode="after")
    def _check_target(self) -> PreflightConfig:
        if self.target:
            raise ConfigError(
                "The check runs on this machine",
                expected="no target",
                received=self.target,
                fix="leave target out, and name the TPU or GPU with topology",
                field="target",
            )
        return self
