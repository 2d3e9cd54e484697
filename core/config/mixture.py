"""Reads the option `mixture`: several shards and their weights, such as `english=3 korean=1`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.config.options import split_names, split_weight
from core.errors import ConfigError

_EXAMPLE = "name=weight, separated by spaces, such as english=3 korean=1"
# Each source has its own charts and table rows.
_MOST_SOURCES = 64
# Metrics are named by it.
_LONGEST_NAME = 32


@dataclass(frozen=True)
class MixtureSource:
    """Shards of a mixture.

    Attributes:
        reference: Name, folder, address or Hub id.
        weight: None if the sizes decide.
    """

    reference: str
    weight: float | None = None


def parse_mixture(text: str) -> tuple[MixtureSource, ...]:
    """Parses the sources; raises ConfigError."""
    sources = tuple(_parse_source(word) for word in split_names(text))
    references = [source.reference for source in sources]
    for reference in references:
        if references.count(reference) > 1:
            raise _invalid(f"{reference} twice", "name each source once")
    if len(sources) > _MOST_SOURCES:
        raise _invalid(f"{len(sources)} sources", f"mix at most {_MOST_SOURCES} sources")
    without = [source.reference for source in sources if source.weight is None]
    if without and len(without) < len(sources):
        raise _invalid(
            f"no weight for {', '.join(without)}",
            "give every source a weight, or none, so that their sizes decide",
        )
    return sources


def mixture_text(value: Any) -> Any:
    """Returns a mapping or a list of sources as the option's text; leaves other values alone."""
    if isinstance(value, Mapping):
        return " ".join(_word(str(name), weight) for name, weight in value.items())
    if isinstance(value, list | tuple):
        return " ".join(str(source) for source in value)
    return value


def format_mixture(sources: Sequence[MixtureSource]) -> str:
    """Returns the text that `parse_mixture` reads."""
    return " ".join(_word(source.reference, source.weight) for source in sources)


def distinct_names(sources: Sequence[MixtureSource]) -> list[str]:
    """Returns the last part of each reference; numbered where several are equal."""
    names: list[str] = []
    for source in sources:
        last = re.split(r"[/\\]", source.reference.rstrip("/"))[-1]
        name = base = re.sub(r"[^\w.-]+", "-", last)[:_LONGEST_NAME]
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def _word(reference: str, weight: Any) -> str:
    if split_names(reference) != [reference]:
        raise _invalid(repr(reference), "name sources without spaces and commas")
    return reference if weight is None else f"{reference}={weight}"


def _parse_source(word: str) -> MixtureSource:
    reference, number = split_weight(word)
    if word.endswith("=") or not reference:
        raise _invalid(word, "write the name, then the weight")
    if not number:
        return MixtureSource(reference)
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise _invalid(word, "give a weight above 0, or leave the source out")
    return MixtureSource(reference, weight)


def _invalid(received: str, fix: str) -> ConfigError:
    return ConfigError(
        "The mixture can't be read",
        expected=_EXAMPLE,
        received=received,
        fix=fix,
        field="mixture",
    )
