"""Chooses the settings of trials: grid and random, each a pure function of the trial's number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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
        found: Settings = {}
        for name, values in reversed(self._values.items()):
            number, place = divmod(number, len(values))
            found[name] = values[place]
        return {name: found[name] for name in self._values}


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
            found = self._draw_new()
            if found is None:
                return None
            self._drawn.append(found)
            self._known.add(key_of(found))
        return self._drawn[number]

    def _draw_new(self) -> Settings | None:
        for _ in range(_MOST_REPETITIONS):
            found = self._draw(self._next)
            self._next += 1
            if key_of(found) not in self._known:
                return found
        return None

    def _draw(self, index: int) -> Settings:
        # In order of names: the order of keys in the file doesn't matter.
        names = sorted(self._space)
        uniform = np.random.Generator(np.random.Philox(key=[self._seed, index])).random(len(names))
        drawn = dict(zip(names, uniform.tolist(), strict=True))
        return {name: one.draw(drawn[name]) for name, one in self._space.items()}


def key_of(settings: Mapping[str, Any]) -> str:
    """Returns a text that is equal for equal settings."""
    return json.dumps(settings, sort_keys=True)
