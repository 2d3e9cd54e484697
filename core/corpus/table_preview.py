"""A look at the first rows of data, and the counts of its groups, within a time limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")

SHOWN_ROWS = 5
_SECONDS = 3.0
_SHOWN_CHARACTERS = 200
_MOST_COLUMNS = 30
_MOST_GROUPS = 1000


@dataclass
class TablePreview:
    """The first rows of data.

    Attributes:
        rows: One text per column.
        count: Examples read; all of them if `complete`.
        groups: Examples per class, tag, paradigm or file; the most frequent first.
        grouped_by: The kind of the groups, such as class.
        texts: Some texts as the model reads them.
        characters: Total length of all texts read.
        longest: Length of the longest text, in characters.
    """

    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    count: int = 0
    complete: bool = True
    groups: dict[str, int] = field(default_factory=dict)
    grouped_by: str = ""
    texts: list[str] = field(default_factory=list)
    characters: int = 0
    longest: int = 0


def add_row(seen: TablePreview, values: Mapping[str, Any]) -> None:
    """Adds a row to the shown ones, as long as there are few."""
    if len(seen.rows) >= SHOWN_ROWS:
        return
    seen.columns = seen.columns or [str(name) for name in values][:_MOST_COLUMNS]
    seen.rows.append([_shorten(values.get(name, "")) for name in seen.columns])


def count_all(
    seen: TablePreview,
    items: Iterator[Item],
    text_of: Callable[[Item], str],
    groups_of: Callable[[Item], list[str]],
) -> None:
    """Counts examples and their groups until the time is up."""
    deadline = time.monotonic() + _SECONDS
    groups: Counter[str] = Counter()
    for example in items:
        seen.count += 1
        text = text_of(example)
        seen.characters += len(text)
        seen.longest = max(seen.longest, len(text))
        if len(seen.texts) < SHOWN_ROWS:
            seen.texts.append(text[: 10 * _SHOWN_CHARACTERS])
        if len(groups) < _MOST_GROUPS:
            groups.update(groups_of(example))
        if time.monotonic() > deadline:
            seen.complete = False
            break
    seen.groups = dict(groups.most_common())


def _shorten(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    text = "" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
