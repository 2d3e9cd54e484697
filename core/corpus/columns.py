"""Chooses the column of a table that holds the text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.errors import ConfigError, CorpusError

USUAL_NAME = "text"
_SUGGESTED = 8
_DEEPEST_SUGGESTED = 8

# Joins the strings of a list.
JOINED = "[]"


def choose_text_column(
    wanted: str,
    strings: Sequence[str],
    columns: Sequence[str],
    where: str,
    within: Sequence[str] = (),
) -> str:
    """Returns the requested column, else `text`, else the only string column.

    Args:
        where: The table's name in errors.
        within: Nested columns, such as meta.title and tags[].

    Raises:
        ConfigError: The column is missing or ambiguous.
    """
    if wanted:
        if wanted in columns or wanted in within:
            return wanted
        raise no_such_column(wanted, columns, where)
    if USUAL_NAME in strings:
        return USUAL_NAME
    usual = [name for name in strings if name.casefold() == USUAL_NAME]
    for names in (usual, strings):
        if len(names) == 1:
            return names[0]
    raise ConfigError(
        f"{where} has {len(strings) or 'no'} string columns",
        expected=f"exactly one string column, or one named {USUAL_NAME}",
        received=f"the columns {_listed(columns)}; string columns {_listed(strings)}",
        fix=_fix([*strings, *within]), field="text_column",
    )  # fmt: skip


def no_such_column(wanted: str, columns: Sequence[str], where: str) -> ConfigError:
    return ConfigError(
        f"{where} has no column {wanted!r}",
        expected=f"one of the columns {_listed(columns)}", received=wanted,
        fix="set ⟬text_column⟭ to the column that contains the text", field="text_column",
    )  # fmt: skip


def texts_within(name: str, value: Any, levels: int = _DEEPEST_SUGGESTED) -> list[str]:
    """Lists the column names of nested texts, at most `levels` deep."""
    if isinstance(value, Mapping) and levels:
        columns = [texts_within(f"{name}.{key}", field, levels - 1) for key, field in value.items()]
        strings = [f"{name}.{key}" for key, field in value.items() if isinstance(field, str)]
        return [*strings, *itertools.chain.from_iterable(columns)]
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], Mapping) and levels:
        return texts_within(name + JOINED, value[0], levels - 1)
    return [name + JOINED] if all(isinstance(text, str) for text in value) else []


def value_at(row: Mapping[str, Any], column: str) -> tuple[bool, Any]:
    """Returns whether a row has a column, and its value.

    Args:
        column: a.b is a nested field; a[] joins a list by newlines, and a[].b its objects' fields.
    """
    return (True, row[column]) if column in row else _value_within(row, column.split("."))


def _value_within(value: Any, names: Sequence[str]) -> tuple[bool, Any]:
    for number, name in enumerate(names, 1):
        key = name.removesuffix(JOINED)
        if not isinstance(value, Mapping) or key not in value:
            return False, None
        value = value[key]
        if key != name:
            return True, _joined(value, names[number:])
    return True, value


def _joined(value: Any, names: Sequence[str]) -> Any:
    """Joins the texts of a list; what is no such list stays."""
    if not isinstance(value, list):
        return value
    texts = [_value_within(item, names)[1] for item in value] if names else value
    is_text = all(isinstance(text, str | None) for text in texts)
    return "\n".join(text or "" for text in texts) if is_text else value


def decode_text(value: Any, column: str, shown: str) -> Any:
    """Decodes bytes as UTF-8, and joins lists of them; other values stay.

    Raises:
        CorpusError: The bytes aren't UTF-8.
    """
    if isinstance(value, list) and any(isinstance(data, bytes) for data in value):
        return "\n".join(decode_text(data, column, shown) or "" for data in value)
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"The column {column!r} of {shown} is not UTF-8",
            expected="a string, or bytes in UTF-8",
            received=f"byte 0x{value[error.start]:02x} at offset {error.start} of a value",
            fix="set ⟬text_column⟭ to the column that contains the text, or export it as UTF-8",
            field="text_column",
        ) from error


def string_columns(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns columns of only strings and nulls, and all columns.

    A column `text` needs a single string: reading reports its first other value with its place.
    """
    kinds: dict[str, set[bool]] = {}
    for row in rows:
        for name, value in row.items():
            seen = kinds.setdefault(name, set())
            if value is not None:
                seen.add(isinstance(value, str))
    usual = kinds.get(USUAL_NAME, set())
    return [
        name for name, seen in kinds.items() if seen == {True} or (seen is usual and True in seen)
    ], list(kinds)


def _fix(names: Sequence[str]) -> str:
    if not names:
        return "choose files with a string column that contains the text"
    return "set ⟬text_column⟭ to the column that contains the text: " + ", ".join(
        names[:_SUGGESTED]
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "(none)"
