"""Chooses the settings of trials by their number alone: grid, random and quasi-random."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from core.sweeps.space import Space

Settings = dict[str, Any]
# Draws in a row that repeat earlier trials end a sweep.
_MOST_REPETITIONS = 1_000


class GridSampler:
    """All combinations; the last option varies fastest."""

    def __init__(self, space: Space) -> None:
        self._values = {name: dimension.grid() for name, dimension in space.items()}

    def __len__(self) -> int:
        return math.prod(map(len, self._values.values()))

    def settings(self, number: int) -> Settings | None:
        """Returns a trial's settings; None beyond the last combination."""
        if number >= len(self):
            return None
        settings: Settings = {}
        for name, values in reversed(self._values.items()):
            number, place = divmod(number, len(values))
            settings[name] = values[place]
        return {name: settings[name] for name in self._values}


class RandomSampler:
    """Independent draws without repetitions."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._drawn: list[Settings] = []
        self._known: set[str] = set()
        self._next = 0

    def settings(self, number: int) -> Settings | None:
        """Returns a trial's settings; None if no new ones are found."""
        while len(self._drawn) <= number:
            settings = self._draw_new()
            if settings is None:
                return None
            self._drawn.append(settings)
            self._known.add(key_of(settings))
        return self._drawn[number]

    def _draw_new(self) -> Settings | None:
        for _ in range(_MOST_REPETITIONS):
            settings = self._draw(self._next)
            self._next += 1
            if key_of(settings) not in self._known:
                return settings
        return None

    def _draw(self, index: int) -> Settings:
        return settings_at(self._space, self._uniform(index))

    def _uniform(self, index: int) -> list[float]:
        """Returns a number of [0, 1) for each option."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, index]))
        return list(generator.random(len(self._space)).tolist())


class QuasiRandomSampler(RandomSampler):
    """Draws from a scrambled Sobol sequence, without repetitions.

    Source: https://doi.org/10.1145/641876.641879 (Joe and Kuo 2003), as in scipy.stats.qmc
    """

    def __init__(self, space: Space, seed: int) -> None:
        # Importing this takes a second.
        from scipy.stats import qmc

        super().__init__(space, seed)
        self._sequence = qmc.Sobol(len(space), scramble=True, seed=seed)

    def _uniform(self, index: int) -> list[float]:
        # Called with 0, 1, 2, …
        assert index == self._sequence.num_generated
        return list(self._sequence.random(1)[0].tolist())


def draw_unknown(space: Space, seed: int, number: int, known: Container[str]) -> Settings | None:
    """Draws a trial's settings at random; None if no new ones are found.

    Args:
        known: `key_of` the settings that were tried.
    """
    generator = np.random.default_rng([seed, number])
    for _ in range(_MOST_REPETITIONS):
        settings = settings_at(space, list(generator.random(len(space)).tolist()))
        if key_of(settings) not in known:
            return settings
    return None


def settings_at(space: Space, uniform: list[float]) -> Settings:
    """Maps a number of [0, 1) for each option, sorted by name, to settings."""
    # The order of keys in the file doesn't matter.
    drawn = dict(zip(sorted(space), uniform, strict=True))
    return {name: dimension.draw(drawn[name]) for name, dimension in space.items()}


def key_of(settings: Mapping[str, Any]) -> str:
    """Returns a text that is equal for equal settings."""
    return json.dumps(settings, sort_keys=True)
