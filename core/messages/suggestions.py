"""Suggests the name that was meant by a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_LEAST_RATIO = 0.65
# Others that fit nearly as well as the best one are named beside it.
_NEARLY = 0.1
_MOST_NAMES = 3
_WORD_END = re.compile(r"[-_\s]+")


def close_names(word: str, names: Iterable[str]) -> list[str]:
    """Returns up to three names that a misspelt one may mean, the closest first.

    A name that contains all words of the given one counts as close: `--steps` may mean
    `--num-train-steps`.
    """
    ratios = {name: _similarity(word, name) for name in dict.fromkeys(names)}
    best = max(ratios.values(), default=0.0)
    if best < _LEAST_RATIO:
        return []
    close = [name for name, ratio in ratios.items() if ratio >= max(best - _NEARLY, _LEAST_RATIO)]
    return sorted(close, key=lambda name: -ratios[name])[:_MOST_NAMES]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns a question such as `did you mean --size?`; "" if no name is close."""
    *others, last = close_names(word, names) or [""]
    return f"did you mean {', '.join(others) + ' or ' if others else ''}{last}?" if last else ""


def _similarity(word: str, name: str) -> float:
    given, known = (set(_WORD_END.split(text.lower().strip("-"))) for text in (word, name))
    ratio = SequenceMatcher(None, word.lower().replace("_", "-"), name.lower()).ratio()
    return max(ratio, 0.8) if given <= known and given != {""} else ratio
