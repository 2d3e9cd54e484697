"""Removes from foreign text what would control a terminal: the one place at the edge."""

from __future__ import annotations

import re

# All control characters but tabs and line feeds, with escapes of eight bits; what turns the
# direction of text; and what some terminals take for the end of a line.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
# A terminal would write over the line.
_RETURNS = re.compile(r"\r\n?")


def without_controls(text: str) -> str:
    """Replaces control characters with question marks, and carriage returns with line feeds."""
    return _CONTROLS.sub("?", _RETURNS.sub("\n", text))
