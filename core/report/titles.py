"""Titles of metrics that depend on the objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.models.families import objectives_of_family

_ACCURACY = {
    "mlm": "Accuracy on validation masks",
    "clm": "Next-token accuracy on validation text",
    "span_corruption": "Accuracy on validation spans",
    "denoising": "Accuracy on restored validation text",
}
_ACCURACY_OF_ANY = "Accuracy on validation text"


def accuracy_title(config: Mapping[str, Any]) -> str:
    """Returns the title of `eval_accuracy` for an objective."""
    objective = str(config.get("objective", "auto"))
    if objective == "auto":
        objective = next(iter(objectives_of_family(str(config.get("family", "")))), "")
    return _ACCURACY.get(objective, _ACCURACY_OF_ANY)
