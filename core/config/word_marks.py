"""Numbers of words seen at which training keeps a checkpoint."""

from __future__ import annotations

import re

from pydantic_core import PydanticCustomError

from core.config.options import split_names

BABYLM = "babylm"
NO_MARKS = "none"
_MILLION = 1_000_000
# Source: the guidelines of the BabyLM challenge of 2025, https://babylm.github.io/guidelines.html
BABYLM_MARKS = tuple(
    _MILLION * number
    for number in (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
)  # fmt: skip
_MOST_MARKS = 1000
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kKmMgGbB]?)")
_FACTORS = {"": 1, "k": 1000, "m": _MILLION, "g": 1000 * _MILLION, "b": 1000 * _MILLION}


def parse_word_marks(text: str) -> tuple[int, ...]:
    """Reads `babylm`, `none` or numbers such as 500k, 1M or 2000000; returns them ascending.

    Raises:
        PydanticCustomError: The text is something else.
    """
    if text.strip().lower() == BABYLM:
        return BABYLM_MARKS
    if text.strip().lower() == NO_MARKS:
        return ()
    marks = sorted({_read(number) for number in split_names(text)})
    if len(marks) > _MOST_MARKS:
        raise _unreadable(f"at most {_MOST_MARKS} numbers")
    return tuple(marks)


def _read(text: str) -> int:
    match = _NUMBER.fullmatch(text)
    mark = round(float(match[1]) * _FACTORS[match[2].lower()]) if match else 0
    if mark < 1:
        raise _unreadable("babylm, none, or numbers of words such as 500k 1M 2000000")
    return mark


def _unreadable(expected: str) -> PydanticCustomError:
    return PydanticCustomError("word_marks", expected)
