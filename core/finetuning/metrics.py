"""Metrics of classification, regression and tagging, in NumPy.

Undefined quotients are 0, as in scikit-learn: a class that is never predicted has precision 0, and
a constant prediction correlates with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.finetuning.examples import NO_TAG
from core.finetuning.spans import Scheme

Classes = NDArray[np.int64]
Numbers = NDArray[np.float64]


def classification_metrics(truth: Classes, predicted: Classes, classes: int) -> dict[str, float]:
    """Computes accuracy, macro F1 and Matthews correlation; with two classes also F1 of the last.

    Macro F1 is the mean over the classes that occur in the truth or among the predictions.
    """
    table = confusion(truth, predicted, classes)
    occurring = (table.sum(axis=0) + table.sum(axis=1)) > 0
    f1 = f1_by_class(table)
    metrics = {
        "accuracy": _share(np.trace(table), table.sum()),
        "f1_macro": float(f1[occurring].mean()) if occurring.any() else 0.0,
        "matthews": matthews(table),
    }
    return {**metrics, "f1": float(f1[1])} if classes == 2 else metrics


def confusion(truth: Classes, predicted: Classes, classes: int) -> NDArray[np.int64]:
    """Counts examples by true and predicted class, (classes, classes)."""
    counts = np.bincount(truth * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def f1_by_class(table: NDArray[np.int64]) -> Numbers:
    """Returns each class's harmonic mean of precision and recall."""
    hits, sums = np.diag(table), table.sum(axis=0) + table.sum(axis=1)
    return np.asarray(2 * hits / np.maximum(sums, 1), np.float64)


def matthews(table: NDArray[np.int64]) -> float:
    """Returns the correlation of truth and prediction as indicators of classes.

    Source: https://doi.org/10.1016/j.compbiolchem.2004.09.006 (Gorodkin 2004), equation 8
    """
    total, hits = float(table.sum()), float(np.trace(table))
    true, predicted = table.sum(axis=1).astype(float), table.sum(axis=0).astype(float)
    covariance = hits * total - float(true @ predicted)
    spread = (total**2 - float(true @ true)) * (total**2 - float(predicted @ predicted))
    return covariance / math.sqrt(spread) if spread > 0 else 0.0


def regression_metrics(truth: Numbers, predicted: Numbers) -> dict[str, float]:
    """Computes Pearson's and Spearman's correlation and the mean squared error."""
    return {
        "pearson": pearson(truth, predicted),
        "spearman": pearson(ranks(truth), ranks(predicted)),
        "mse": float(np.mean((truth - predicted) ** 2)) if len(truth) else 0.0,
    }


def pearson(first: Numbers, second: Numbers) -> float:
    """Returns the linear correlation; 0 if one is constant."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / math.sqrt(float(first @ first) * float(second @ second)))


def ranks(values: Numbers) -> Numbers:
    """Ranks values from 1; equal ones share their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], np.float64)


def tagging_metrics(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme | None
) -> dict[str, float]:
    """Computes the accuracy over words, macro F1 over tags, and F1 of spans.

    Words with NO_TAG as their truth aren't counted.

    Args:
        scheme: How the tags mark spans; None: no figures of spans.
    """
    predicted = [
        [tag for right, tag in zip(*pair, strict=True) if right != NO_TAG]
        for pair in zip(truth, predicted, strict=True)
    ]
    truth = [[tag for tag in tags if tag != NO_TAG] for tags in truth]
    names = sorted({tag for tags in (*truth, *predicted) for tag in tags})
    numbers = {name: number for number, name in enumerate(names)}
    flat = [
        np.array([numbers[tag] for tags in sequences for tag in tags], np.int64)
        for sequences in (truth, predicted)
    ]
    table = confusion(flat[0], flat[1], max(1, len(names)))
    metrics: dict[str, Any] = {
        "accuracy": _share(np.trace(table), table.sum()),
        "f1_macro": float(f1_by_class(table).mean()),
    }
    return {**metrics, **scheme.f1(truth, predicted)} if scheme else metrics


def _share(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0
