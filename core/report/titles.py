"""Titles of metrics that depend on the objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.families import objectives_of_family
from core.finetuning.names import RANDOM_INIT

_ACCURACY = {
    "mlm": "Accuracy on validation masks",
    "clm": "Next-token accuracy on validation text",
    "span_corruption": "Accuracy on validation spans",
    "denoising": "Accuracy on restored validation text",
}
_ACCURACY_OF_ANY = "Accuracy on validation text"

# Titles of metrics, in the order of their charts; others follow by name.
METRIC_TITLES = {
    "loss": "Training loss",
    "eval_loss": "Validation loss",
    "frequency_baseline_loss": "Unigram baseline",
    "eval_accuracy": "Accuracy",
    "eval_perplexity": "Perplexity",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "data_wait_percent": "Waiting for data (%)",
    "cpu_percent": "CPU (%)",
    "gpu_percent": "GPU (%)",
    "memory_gib": "Memory (GiB)",
    "gpu_memory_gib": "GPU memory (GiB)",
    "epoch": "Epoch",
    "pairs_accuracy": "Accuracy on minimal pairs",
    "pairs_mean_over_phenomena": "Mean over phenomena",
    "text_bits_per_byte": "Bits per byte",
    "evaluation_seconds": "Time in evaluations (s)",
    "evaluation_percent": "Time in evaluations (%)",
    "num_train_steps": "Steps",
    "best_step": "Best step",
    "tokens": "Tokens read",
    "parameters": "Parameters",
    "seconds": "Time in steps and validation (s)",
    "skipped_batches": "Skipped batches",
    "cost": "Cost (US dollars)",
}


def metric_title(name: str) -> str:
    """Returns the title of a metric or result."""
    if name.startswith(RANDOM_INIT):
        return f"{metric_title(name.removeprefix(RANDOM_INIT))} of random weights"
    return METRIC_TITLES.get(name) or name.replace("_", " ").replace("/", ": ").capitalize()


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names of metrics: known ones first."""
    known = list(METRIC_TITLES)
    return sorted(set(names), key=lambda one: (known.index(one) if one in known else 99, one))


def accuracy_title(config: Mapping[str, Any]) -> str:
    """Returns the title of `eval_accuracy` for an objective."""
    objective = str(config.get("objective", "auto"))
    if objective == "auto":
        objective = next(iter(objectives_of_family(str(config.get("family", "")))), "")
    return _ACCURACY.get(objective, _ACCURACY_OF_ANY)
