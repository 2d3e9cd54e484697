"""Writes untrusted values for people."""

from __future__ import annotations

from typing import Any

_SHOWN_CHARACTERS = 80


def shown(value: Any) -> str:
    """Shortens an untrusted value's repr for error messages."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # An integer of thousands of digits.
        text = "an integer" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
