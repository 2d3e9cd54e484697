"""Declares metrics: title, unit, and whether high or low values are better.

Those of the built-in stages are here; a further stage declares its own in `Stage.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True)
class Metric:
    """A figure that a stage measures.

    Attributes:
        name: Its parts, such as `eval_loss/books`, and prefixed names, such as `text_loss` for
            `loss`, have its direction and unit unless they are declared themselves.
        title: Title in tables and charts; "": follows from the name.
        direction: Whether low or high values are better; None: neither.
        is_quality: Whether it measures a model, not time, data or cost.
    """

    name: str
    title: str = ""
    direction: Direction | None = None
    unit: str = ""
    is_quality: bool = False


def _quality(name: str, title: str, direction: Direction, unit: str = "") -> Metric:
    return Metric(name, title, direction, unit, is_quality=True)


# In the order of their charts and rows.
METRICS: dict[str, Metric] = {}


def declare_metrics(metrics: Iterable[Metric]) -> None:
    METRICS.update((metric.name, metric) for metric in metrics)


def find_metric(name: str, *, quality: bool = False) -> Metric | None:
    """Returns the metric with the longest name that a name ends with, of those with a direction."""
    ending = f"_{name.partition('/')[0]}"
    matching = [
        metric
        for metric in METRICS.values()
        if metric.direction and metric.is_quality >= quality and ending.endswith(f"_{metric.name}")
    ]
    return max(matching, key=lambda metric: len(metric.name), default=None)


def direction_of(metric: str) -> Direction | None:
    """Returns whether low or high values of a metric are better; None if unknown."""
    definition = find_metric(metric)
    return definition.direction if definition else None


def quality_direction(metric: str) -> Direction | None:
    """Returns the direction of a metric that measures a model; None for any other."""
    definition = find_metric(metric, quality=True)
    return definition.direction if definition else None


def unit_of(metric: str) -> str:
    definition = METRICS.get(metric) or find_metric(metric)
    return definition.unit if definition else ""


def is_share(metric: str) -> bool:
    """Returns whether values of a metric are fractions, which people read as percentages."""
    name = metric.partition("/")[0].removesuffix("_std")
    return name.endswith("accuracy") or "mean_over_" in name


declare_metrics(
    (
        _quality("loss", "Training loss", "minimize", "nats"),
        _quality("eval_loss", "Validation loss", "minimize", "nats"),
        _quality("frequency_baseline_loss", "Unigram baseline", "minimize", "nats"),
        _quality("eval_accuracy", "Accuracy", "maximize"),
        _quality("eval_perplexity", "Perplexity", "minimize"),
        Metric("learning_rate", "Learning rate"),
        Metric("tokens_per_second", "Tokens per second", "maximize"),
        Metric("data_wait_percent", "Waiting for data (%)", "minimize"),
        Metric("cpu_percent", "CPU (%)"),
        Metric("gpu_percent", "GPU (%)"),
        Metric("memory_gib", "Memory (GiB)"),
        Metric("gpu_memory_gib", "GPU memory (GiB)"),
        Metric("epoch", "Epoch"),
        _quality("pairs_accuracy", "Accuracy on minimal pairs", "maximize"),
        _quality("pairs_mean_over_phenomena", "Mean over phenomena", "maximize"),
        _quality("text_bits_per_byte", "Bits per byte", "minimize"),
        Metric("evaluation_seconds", "Time in evaluations (s)", "minimize"),
        Metric("evaluation_percent", "Time in evaluations (%)"),
        Metric("num_train_steps", "Steps"),
        Metric("best_step", "Best step"),
        Metric("tokens", "Tokens read"),
        Metric("parameters", "Parameters"),
        Metric("seconds", "Time in steps and validation (s)", "minimize"),
        Metric("skipped_batches", "Skipped batches", "minimize"),
        Metric("cost", "Cost (US dollars)", "minimize"),
        *(_quality(name, "", "minimize") for name in ("perplexity", "bits_per_byte", "mse")),
        *(
            _quality(name, "", "maximize")
            for name in (
                "accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman", "precision",
                "recall", "mean_over_paradigms", "mean_over_phenomena",
            )
        ),
        *(
            Metric(name, direction="minimize")
            for name in (
                "tokens_dropped", "tokens_per_byte", "tokens_per_word", "unknown_share",
                "unknown_tokens",
            )
        ),
    )
)  # fmt: skip
