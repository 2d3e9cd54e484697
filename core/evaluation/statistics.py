"""Accuracies with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# The quantile of the normal distribution for 95 %.
_QUANTILE = 1.959963984540054


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Computes the 95 % Wilson score interval of a proportion.

    Source: https://doi.org/10.1080/01621459.1927.10502953
    """
    if not count:
        return 0.0, 1.0
    square = _QUANTILE**2 / count
    middle = share + square / 2
    spread = _QUANTILE * math.sqrt(share * (1 - share) / count + square / (4 * count))
    low, high = ((middle + sign * spread) / (1 + square) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass
class Tally:
    """Counts of pairs, of preferred acceptable sentences, and of ties."""

    pairs: int = 0
    right: int = 0
    ties: int = 0

    def add(self, difference: float) -> None:
        """Counts a pair by its good minus bad score."""
        self.pairs += 1
        self.right += difference > 0
        self.ties += difference == 0

    @property
    def accuracy(self) -> float:
        """The share of right pairs; a tie counts half."""
        return (self.right + self.ties / 2) / self.pairs

    @property
    def official_accuracy(self) -> float:
        """The share of right pairs; a tie counts as right."""
        return (self.right + self.ties) / self.pairs

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "official_accuracy": self.official_accuracy,
            "pairs": self.pairs,
            "ties": self.ties,
            "interval": list(wilson_interval(self.accuracy, self.pairs)),
        }


def mean_accuracy(tallies: Iterable[Tally]) -> float:
    """Computes the unweighted mean of accuracies."""
    accuracies = [tally.accuracy for tally in tallies]
    return math.fsum(accuracies) / len(accuracies)
