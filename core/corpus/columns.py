"""Which column of a table holds the text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.errors import ConfigError

USUAL_NAME = "text"


def choose_text_column(
    wanted: str, strings: Sequence[str], columns: Sequence[str], where: str
) -> str:
    """Chooses the column that holds the text.

    Args:
        wanted: The column asked for, or nothing.
        strings: The columns that hold strings.
        columns: All columns.
        where: What the table is called in an error.

    Returns:
        The one asked for; else the one called `text`; else the only one of strings.

    Raises:
        ConfigError: It isn't there, or there is a choice to make. It names the columns.
    """
    if wanted:
        if wanted in columns:
            return wanted
        raise no_such_column(wanted, columns, where)
    if USUAL_NAME in strings:
        return USUAL_NAME
    if len(strings) == 1:
        return strings[0]
    raise ConfigError(
        f"{where} has {len(strings) or 'no'} columns of strings",
        expected=f"exactly one, or one called {USUAL_NAME}",
        received=f"the columns {_listed(columns)}, of strings {_listed(strings)}",
        fix="set text_column to the one that holds the text", field="text_column",
    )  # fmt: skip


def no_such_column(wanted: str, columns: Sequence[str], where: str) -> ConfigError:
    """Returns the error for a table that lacks the column asked for."""
    return ConfigError(
        f"{where} has no column {wanted!r}",
        expected=f"one of the columns {_listed(columns)}", received=wanted,
        fix="set text_column to the one that holds the text", field="text_column",
    )  # fmt: skip


def string_columns(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Finds the columns that hold strings, and all columns, of some rows.

    A column of strings has a string somewhere, and nothing else but nulls.
    """
    kinds: dict[str, set[bool]] = {}
    for row in rows:
        for name, value in row.items():
            seen = kinds.setdefault(name, set())
            if value is not None:
                seen.add(isinstance(value, str))
    return [name for name, seen in kinds.items() if seen == {True}], list(kinds)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "(none)"
