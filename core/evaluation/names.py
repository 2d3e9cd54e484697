"""Names the metrics of parts of the data, such as phenomena and sources of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Names of metrics, as mirrors accept them.
_LONGEST = 64
_UNNAMEABLE = re.compile(r"[^\w./:-]")


def metric_names(prefix: str, parts: Sequence[str]) -> dict[str, str]:
    """Returns the name of each part's metric, PREFIX/PART; equal ones are numbered."""
    names: dict[str, str] = {}
    for part in parts:
        base = name = f"{prefix}/{_UNNAMEABLE.sub('_', part)}"[:_LONGEST]
        number = 1
        while name in names.values():
            number += 1
            name = f"{base[: _LONGEST - len(str(number)) - 1]}-{number}"
        names[part] = name
    return names


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Returns each path without the folders that all of them have in common."""
    split_paths = [path.split("/") for path in paths]
    folders = min((len(segments) - 1 for segments in split_paths), default=0)
    common = 0
    while common < folders and len({segments[common] for segments in split_paths}) == 1:
        common += 1
    return {
        path: "/".join(segments[common:]) for path, segments in zip(paths, split_paths, strict=True)
    }
