"""Suggests names for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3


def suggest_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the known names nearest to a wrong one, in quotes; `otherwise` if none is near."""
    plain = list(known)
    near = difflib.get_close_matches(name.replace("-", "_").lower(), plain, n=_MOST, cutoff=0.5)
    near += [
        known_name
        for known_name in plain
        if name.lower() in known_name and known_name not in near and len(name) > 2
    ]
    return " or ".join(f'"{known_name}"' for known_name in near[:_MOST]) or otherwise
