"""Names the metrics of parts of the data, such as phenomena and sources of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Names of metrics, as mirrors accept them.
_LONGEST = 64
_UNNAMEABLE = re.compile(r"[^\w./:-]")


def metric_names(prefix: str, parts: Sequence[str]) -> dict[str, str]:
    """Returns the name of each part's metric, PREFIX/PART; equal ones are numbered."""
    found: dict[str, str] = {}
    for part in parts:
        base = name = f"{prefix}/{_UNNAMEABLE.sub('_', part)}"[:_LONGEST]
        number = 1
        while name in found.values():
            number += 1
            name = f"{base[: _LONGEST - len(str(number)) - 1]}-{number}"
        found[part] = name
    return found


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Returns each path without the folders that all of them have in common."""
    parts = [path.split("/") for path in paths]
    folders = min((len(one) - 1 for one in parts), default=0)
    common = 0
    while common < folders and len({one[common] for one in parts}) == 1:
        common += 1
    return {path: "/".join(one[common:]) for path, one in zip(paths, parts, strict=True)}
