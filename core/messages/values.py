"""Formats sizes, and untrusted values, for people."""

from __future__ import annotations

from typing import Any

_SHOWN_CHARACTERS = 80


def byte_count(value: float) -> str:
    """Formats decimal units: 4.2 MB."""
    # Rounded before the unit is chosen: 999,600 bytes are 1 MB.
    rounded = float(f"{value:.3g}")
    for unit, divisor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if rounded >= divisor:
            return f"{rounded / divisor:.3g} {unit}"
    return f"{round(value)} B"


def shown(value: Any) -> str:
    """Shortens an untrusted value's repr for error messages."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # An integer of thousands of digits.
        text = "an integer" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
