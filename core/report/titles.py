"""Titles of figures whose meaning depends on what a model predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.objectives import objectives_of_family

_ACCURACY = {
    "mlm": "Accuracy on validation masks",
    "clm": "Next-token accuracy on validation text",
    "span_corruption": "Accuracy on validation spans",
    "denoising": "Accuracy on restored validation text",
}
_ACCURACY_OF_ANY = "Accuracy on validation text"


def accuracy_title(config: Mapping[str, Any]) -> str:
    """Returns what `eval_accuracy` measures with a training config's objective.

    Args:
        config: The values of a `TrainConfig`; those of another version may lack any of them.
    """
    objective = str(config.get("objective", "auto"))
    if objective == "auto":
        objective = next(iter(objectives_of_family(str(config.get("family", "")))), "")
    return _ACCURACY.get(objective, _ACCURACY_OF_ANY)
