"""Knows for each metric whether high or low values are better."""

from __future__ import annotations

from typing import Literal

Direction = Literal["minimize", "maximize"]

# A name matches with any prefix that ends with _, such as eval_accuracy and text_bits_per_byte.
_QUALITY: dict[Direction, tuple[str, ...]] = {
    "minimize": ("loss", "perplexity", "bits_per_byte", "mse"),
    "maximize": (
        "accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman", "precision", "recall",
        "mean_over_paradigms", "mean_over_phenomena",
    ),
}  # fmt: skip
_EFFORT: dict[Direction, tuple[str, ...]] = {
    "minimize": (
        "cost", "seconds", "data_wait_percent", "skipped_batches", "tokens_dropped",
        "tokens_per_byte", "tokens_per_word", "unknown_share", "unknown_tokens",
    ),
    "maximize": ("tokens_per_second",),
}  # fmt: skip


def direction_of(metric: str) -> Direction | None:
    """Returns whether low or high values of a metric are better; None if unknown.

    Args:
        metric: Its name; `eval_loss/books` is the validation loss of the source books.
    """
    return quality_direction(metric) or _find(metric, _EFFORT)


def quality_direction(metric: str) -> Direction | None:
    """Returns the direction of a metric that measures a model; None for any other."""
    return _find(metric, _QUALITY)


def _find(metric: str, known: dict[Direction, tuple[str, ...]]) -> Direction | None:
    name = f"_{metric.partition('/')[0]}"
    for direction, words in known.items():
        if name.endswith(tuple(f"_{word}" for word in words)):
            return direction
    return None
