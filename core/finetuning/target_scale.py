"""Standardises the numbers that regression learns, whatever their units.

A new output layer predicts about 0, and its weights change by about the learning rate per step. So
numbers far from 0, or with a large spread, would not be learned in a few epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.finetuning.heads import OUTPUT, body_mappings
from core.finetuning.saving import ClassifierConfig, Weights

# Its square is within float32's range.
_LARGEST = 1e18


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of the training numbers.

    Of a model that can't add a constant, the mean is 0 and the deviation is from 0.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: NDArray[np.float64], *, adds_constant: bool) -> TargetScale:
        """Measures numbers; the deviation of equal ones counts as 1."""
        if not adds_constant:
            return cls(0.0, float(np.sqrt(np.square(values).mean())) or 1.0)
        differ = len(values) > 1 and np.ptp(values) > 0
        return cls(float(values.mean()), (float(values.std()) if differ else 0.0) or 1.0)

    def standardised(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        scaled = (values - self.mean) / self.deviation
        return np.clip(scaled, -_LARGEST, _LARGEST).astype(np.float32)

    def restored(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns predictions in the original units, rounded to float32 as a saved model's are."""
        values = outputs * np.float32(self.deviation) + np.float32(self.mean)
        return values.astype(np.float64)


def in_original_units(weights: Weights, config: ClassifierConfig, scale: TargetScale) -> Weights:
    """Folds a scale into the output layer, so that its logits are in the original units.

    Without a bias of its own (GPT-2), the layer reads h + b, with b the bias of the last norm. For
    its kernel w, adding mean · w / |w|² to b adds the mean to the logits.

    Args:
        weights: By variable path.
    """
    kernel, bias = f"{OUTPUT}/kernel", f"{OUTPUT}/bias"
    scaled = weights[kernel].astype(np.float64) * scale.deviation  # (H, 1)
    changed: dict[str, NDArray[Any]] = {kernel: scaled}
    if config.head.has_bias:
        changed[bias] = weights[bias].astype(np.float64) * scale.deviation + scale.mean
    elif config.head.offset:
        path = _path_of(config.head.offset, config)
        direction = scaled[:, 0] / max(float(np.sum(scaled**2)), np.finfo(np.float64).tiny)
        changed[path] = weights[path] + scale.mean * direction
    return {**weights, **{path: weight.astype(np.float32) for path, weight in changed.items()}}


def _path_of(tensor: str, config: ClassifierConfig) -> str:
    mappings = body_mappings(config.architecture, config.head)
    return next(
        mapping.path for mapping in mappings if mapping.names == (config.head.prefix + tensor,)
    )
