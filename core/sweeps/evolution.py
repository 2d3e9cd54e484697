"""Chooses settings with CMA-ES, from the trials alone.

Each trial notes its generation, its point and the trials that its generation learnt from, so that
another driver restores the optimiser by repeating its updates.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config.sweep import SweepConfig
from core.errors import ConfigError
from core.sweeps.samplers import Settings, draw_unknown, key_of, settings_at
from core.sweeps.space import Choice, Space
from core.sweeps.study import History

# Suggestions that repeat an earlier trial before settings are drawn at random.
_MOST_REPETITIONS = 20
# A sixth of each range, as in Optuna.
_FIRST_SIGMA = 1 / 6
_BELOW_ONE = float(np.nextafter(1.0, 0.0))


class EvolutionSampler:
    """Evolves a normal distribution over the ranges; lists of values are drawn at random.

    Source: https://arxiv.org/abs/1604.00772 (Hansen 2016), as in the package cmaes
    """

    def __init__(self, config: SweepConfig, space: Space) -> None:
        check_ranges(space)
        self._cmaes = importlib.import_module("cmaes")
        self._config = config
        self._space = space
        self._names = sorted(space)
        self._ranges = [place for place, name in enumerate(self._names) if _is_range(space[name])]

    def suggest(
        self, number: int, trials: Sequence[History]
    ) -> tuple[Settings, dict[str, Any]] | None:
        """Suggests a trial's settings, and its sampler state; None if no new ones are found.

        Args:
            trials: All earlier trials, by number.
        """
        known = {key_of(trial.settings) for trial in trials}
        optimizer, told = self._optimizer(trials)
        for attempt in range(_MOST_REPETITIONS):
            generator = np.random.default_rng([self._config.seed, number, attempt])
            optimizer.reseed_rng(int(generator.integers(1 << 31)))
            point = np.clip(optimizer.ask(), 0.0, _BELOW_ONE)
            uniform = generator.random(len(self._names))
            uniform[self._ranges] = point
            settings = settings_at(self._space, list(uniform.tolist()))
            if key_of(settings) not in known:
                state = {
                    "generation": optimizer.generation, "point": point.tolist(), "told": told,
                }  # fmt: skip
                return settings, state
        drawn = draw_unknown(self._space, self._config.seed, number, known)
        return None if drawn is None else (drawn, {})

    def _optimizer(self, trials: Sequence[History]) -> tuple[Any, list[int]]:
        """Restores the optimiser, and updates it once its generation is complete.

        Returns:
            The optimiser, and the numbers of the trials of its last update.
        """
        dimensions = len(self._ranges)
        bounds = np.tile([0.0, 1.0], (dimensions, 1))
        optimizer = self._cmaes.CMA(
            mean=np.full(dimensions, 0.5), sigma=_FIRST_SIGMA, bounds=bounds
        )
        states = [trial.sampler_state for trial in trials]
        learnt = {state["generation"]: state["told"] for state in states if state}
        told: list[int] = []
        for generation in range(1, max(learnt, default=0) + 1):
            told = list(learnt[generation])
            self._tell(optimizer, told, trials)
        finished = [
            number
            for number, trial in enumerate(trials)
            if states[number].get("generation") == optimizer.generation and _has_ended(trial)
        ]
        if len(finished) >= optimizer.population_size:
            told = finished[: optimizer.population_size]
            self._tell(optimizer, told, trials)
        return optimizer, told

    def _tell(self, optimizer: Any, numbers: Sequence[int], trials: Sequence[History]) -> None:
        ranked = sorted(numbers, key=lambda number: self._rank(trials[number]))
        points = [_point(trials[number].sampler_state) for number in ranked]
        optimizer.tell([(point, float(rank)) for rank, point in enumerate(points)])

    def _rank(self, trial: History) -> tuple[bool, float]:
        """Ranks a pruned trial after all that ran to their end."""
        sign = 1 if self._config.goal == "minimize" else -1
        return trial.state == "pruned", sign * (trial.value or 0.0)


def check_ranges(space: Space) -> None:
    """Raises ConfigError if CMA-ES has no range to evolve."""
    if not any(map(_is_range, space.values())):
        raise ConfigError(
            "Method cmaes has no range to search",
            expected="an option with min and max",
            received=f"lists of values: {', '.join(space)}",
            fix="use method tpe, random or grid, or give an option a range",
            field="method",
        )


def _is_range(dimension: Any) -> bool:
    return not isinstance(dimension, Choice)


def _has_ended(trial: History) -> bool:
    return trial.state in ("done", "pruned") and trial.value is not None


def _point(state: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.asarray(state["point"], np.float64)
