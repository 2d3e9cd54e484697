"""Titles of the metrics of fine-tuning, the most telling first, and its manifests."""

from __future__ import annotations

from typing import get_args

from core.config.finetune import FinetuneTask
from core.workspace.manifests import Manifest

# Precedes the names of figures of the same architecture from random weights.
RANDOM_INIT = "random_init_"

METRICS = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "f1_macro": "Macro F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "span_f1": "Span F1",
    "span_precision": "Span precision",
    "span_recall": "Span recall",
    "mse": "Mean squared error",
}


def is_of_finetuning(manifest: Manifest) -> bool:
    """Returns whether a manifest has the results of fine-tuning."""
    return manifest.kind == "model" and manifest.counts.get("task") in get_args(FinetuneTask)
