"""Writes values of somebody else into Markdown: as text or code, never as markup.

GitHub's Markdown, which the Hub uses, also makes links of bare addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!&$@]|:(?=//))")
_ADDRESS = re.compile(r"://|www\.|@")
_PLAIN_CODE = re.compile(r"[\w .,:;=+/%'-]{1,200}")
_LONGEST = 200


class Markdown(str):
    """Text that may have markup, as it was written here."""


def escape_markup(value: Any) -> str:
    """Returns a value as one line of Markdown without markup."""
    text = "".join(
        character if character.isprintable() else " " for character in str(value)[: 10 * _LONGEST]
    )
    text = " ".join(text.split())[:_LONGEST]
    escaped = _MARKUP.sub(r"\\\1", text).replace("\\<", "&lt;").replace("\\&", "&amp;")
    return escaped.replace(".", "\\.") if _ADDRESS.search(text) else escaped


def code(value: Any) -> Markdown:
    """Returns a value as code, or as text if code could not hold it; "" for none."""
    text = "" if value is None else str(value)
    is_plain = _PLAIN_CODE.fullmatch(text) and text == " ".join(text.split())
    return Markdown(f"`{text}`" if is_plain else escape_markup(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markdown:
    """Returns a table; a cell that isn't Markdown is escaped. "" without rows."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    top = f"| {' | '.join(head)} |" if any(head) else "|" + " |" * len(head)
    return Markdown("\n".join([top, "|" + "---|" * len(head), *lines]) if lines else "")


def _cell(value: str) -> str:
    return value if isinstance(value, Markdown) else escape_markup(value)
