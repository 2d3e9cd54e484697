"""Inputs on which a pattern that backtracks takes quadratic time, made from its own parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_OF_CATEGORY = {"WORD": "a", "DIGIT": "1", "SPACE": " "}
_MOST_PARTS = 6


def hard_inputs(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Yields texts that repeat the pattern's characters, pairs of them, and its words."""
    runs = list(_literals(_parser.parse(pattern.pattern, pattern.flags & ~re.LOCALE)))
    words = sorted({run for run in runs if len(run) > 1}, key=len)[-3:]
    single = list(dict.fromkeys([*(run[0] for run in runs), "a", " ", "1"]))[:_MOST_PARTS]
    pieces = [*single, *words]
    units = [*pieces, *(one + other for one in pieces for other in pieces if one != other)]
    for unit in dict.fromkeys(units):
        yield unit * (length // len(unit))
    for word in words:
        for one in single:
            yield word + one * length


def _literals(parsed: Any) -> Iterator[str]:
    """Yields the runs of literals, and a character of each class."""
    run = ""
    for code, value in parsed:
        if code is _constants.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
        run = ""
        yield from _inner(code, value)
    if run:
        yield run


def _inner(code: Any, value: Any) -> Iterator[str]:
    if code is _constants.IN:
        for kind, one in value:
            if kind is _constants.LITERAL:
                yield chr(one)
            elif kind is _constants.RANGE:
                yield chr(one[0])
            elif kind is _constants.CATEGORY:
                yield from (char for name, char in _OF_CATEGORY.items() if str(one).endswith(name))
        return
    if code is _constants.NOT_LITERAL:
        yield chr(value)
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(part, _parser.SubPattern):
            yield from _literals(part)
        elif isinstance(part, list):
            for branch in part:
                if isinstance(branch, _parser.SubPattern):
                    yield from _literals(branch)
