"""Titles of metrics that depend on the objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.config.metrics import METRICS
from core.families import objectives_of_family
from core.finetuning.names import RANDOM_INIT

_ACCURACY = {
    "mlm": "Accuracy on validation masks",
    "clm": "Next-token accuracy on validation text",
    "span_corruption": "Accuracy on validation spans",
    "denoising": "Accuracy on restored validation text",
}
_ACCURACY_OF_ANY = "Accuracy on validation text"


def metric_title(name: str) -> str:
    """Returns the title of a metric or result."""
    if name.startswith(RANDOM_INIT):
        return f"{metric_title(name.removeprefix(RANDOM_INIT))} of random weights"
    declared = METRICS.get(name)
    return (declared and declared.title) or name.replace("_", " ").replace("/", ": ").capitalize()


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names of metrics: known ones first."""
    titled = [name for name, metric in METRICS.items() if metric.title]
    positions = {name: position for position, name in enumerate(titled)}
    return sorted(set(names), key=lambda name: (positions.get(name, len(titled)), name))


def accuracy_title(config: Mapping[str, Any]) -> str:
    """Returns the title of `eval_accuracy` for an objective."""
    objective = str(config.get("objective", "auto"))
    if objective == "auto":
        objective = next(iter(objectives_of_family(str(config.get("family", "")))), "")
    return _ACCURACY.get(objective, _ACCURACY_OF_ANY)
