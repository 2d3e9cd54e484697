"""One learning-rate formula for the log and the compiled step."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

ScheduleKind = Literal["linear", "cosine", "constant", "warmup_stable_decay"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """Linear warm-up from 0, then a decay or constant phase.

    `decay_ratio` is the fraction of later steps in which warmup_stable_decay decays.
    """

    kind: ScheduleKind
    peak: float
    warmup_steps: int
    num_train_steps: int
    extended_at: int = 0
    extended_rate: float = 0.0
    decay_ratio: float = 0.2

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers that may differ between schedules of a kind."""
        start = max(self.warmup_steps, self.extended_at)
        return (
            self.peak,
            float(self.warmup_steps),
            self.extended_rate if self.extended_at else self.peak,
            float(start),
            float(max(1, self.num_train_steps - start)),
            self.decay_ratio,
        )

    def at(self, step: Any, ops: ModuleType = np, numbers: Any = None) -> Any:
        """Returns the learning rate after `step` updates.

        `ops` is numpy or `keras.ops`; `numbers` a tensor (6,).

        Source: transformers' schedules; https://arxiv.org/abs/2404.06395, section 4.
        """
        peak, warmup_steps, later_peak, start, steps, decay_ratio = (
            self.numbers if numbers is None else numbers
        )
        warmup = peak * step / ops.maximum(warmup_steps, 1.0)
        progress = ops.clip((step - start) / steps, 0.0, 1.0)
        later = later_peak * self._decay(progress, decay_ratio, ops)
        return ops.where(step < warmup_steps, warmup, later)

    def _decay(self, progress: Any, decay_ratio: Any, ops: ModuleType) -> Any:
        if self.kind == "linear":
            return 1.0 - progress
        if self.kind == "cosine":
            return 0.5 * (1.0 + ops.cos(np.pi * progress))
        if self.kind == "warmup_stable_decay":
            return ops.minimum((1.0 - progress) / decay_ratio, 1.0)
        return ops.ones_like(progress)
