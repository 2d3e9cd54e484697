"""Options of the quickstart."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.options import option


class QuickstartConfig(StageConfig):
    """Options for the quickstart."""

    size: Literal["tiny", "mini"] = option(
        "tiny", "Size of the RoBERTa model to train.", basic=True
    )
    num_train_steps: int | None = option(
        None, "Training steps. Empty: a number that takes a few minutes on two CPU cores.", ge=1
    )
    limit: int | None = option(None, "Read at most this many documents.", ge=1)
    engine: Literal["auto", "tensorflow", "jax"] = option("auto", "Backend that trains the model.")
    seed: int = option(0, "Seeds initial weights, data order and masks.", ge=0, lt=1 << 31)
