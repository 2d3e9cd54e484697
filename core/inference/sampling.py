"""Chooses the next token: temperature, top-k and top-p in transformers' order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError

HIGHEST_TEMPERATURE = 100.0
_MOST_SEEDS = 1 << 63


@dataclass(frozen=True)
class Sampling:
    """Sampling settings; see `core.inference.generate`."""

    do_sample: bool = True
    temperature: float = 1.0
    top_k: int | None = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0, HIGHEST_TEMPERATURE, "a value such as 0.8")
        if self.top_k is not None:
            check_whole_number("top_k", self.top_k, 0, None, "50, or 0 to sample from all tokens")
        check_number("top_p", self.top_p, 0, 1, "0.95, or 1 to sample from all tokens", above=True)
        check_whole_number("seed", self.seed, 0, _MOST_SEEDS - 1, "a value such as 0")

    @property
    def is_greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0


class Sampler:
    """Chooses tokens; the same seed gives the same ones."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """Returns the next token's id, given logits float (V,)."""
        if self._sampling.is_greedy:
            return int(logits.argmax())
        cumulative = np.cumsum(probabilities(logits, self._sampling))
        drawn = self._generator.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))


def probabilities(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float64]:
    """Computes the sampling distribution, float64 (V,).

    Source: TopKLogitsWarper and TopPLogitsWarper in transformers
    """
    scores = logits.astype(np.float64)
    if np.isneginf(scores).all():  # A config forbids every token; transformers takes the first.
        return np.eye(1, scores.size)[0]
    scores = (scores - scores.max()) / sampling.temperature
    if sampling.top_k and sampling.top_k < scores.size:
        least = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores = np.where(scores < least, -np.inf, scores)
    chances = np.exp(scores)
    chances /= chances.sum()
    if sampling.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[1:][before[1:] >= sampling.top_p]] = 0
        chances /= chances.sum()
    return chances


def check_number(
    name: str, value: Any, least: float, most: float, advice: str, *, above: bool = False
) -> None:
    """Raises ConfigError unless a number is within bounds; `above` excludes `least`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        fits = False
    else:
        fits = not above or value > least
    if not fits:
        bounds = f"above {least:g} and up to" if above else f"from {least:g} to"
        raise _out_of_bounds(name, value, f"a number {bounds} {most:g}", advice)


def check_whole_number(name: str, value: Any, least: int, most: int | None, advice: str) -> None:
    """Raises ConfigError unless an integer is within bounds."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise _out_of_bounds(name, value, f"a whole number {bounds}", advice)


def _out_of_bounds(name: str, value: Any, expected: str, advice: str) -> ConfigError:
    return ConfigError(
        f"{name} is out of range",
        expected=expected,
        received=repr(value),
        fix=f"choose {advice}",
        field=name,
    )
