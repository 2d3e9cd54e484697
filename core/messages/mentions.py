"""Options that texts mention, as data: each reader is shown the name that it knows.

A text marks an option as `⟬vocab_size⟭`, with a value as `⟬packing=stream⟭`, by its flag as
`⟬--checkpoint⟭`, and a choice as `⟬algorithm:byte_level_bpe⟭`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MENTION = re.compile(r"⟬(-*)([a-z0-9_-]+)(?:([=:])([^⟬⟭]*))?⟭")


@dataclass(frozen=True)
class Mention:
    """An option in a text.

    Attributes:
        name: The option's name, or its flag without dashes.
        value: "" without one.
        is_choice: Whether the text mentions only the value.
        is_flag: Whether it is named by its flag.
    """

    name: str
    value: str = ""
    is_choice: bool = False
    is_flag: bool = False

    def __str__(self) -> str:
        if self.is_choice:
            return self.value
        name = f"--{self.name}" if self.is_flag else self.name
        return f"{name}={self.value}" if self.value else name


def find_mentions(text: str) -> list[Mention]:
    return [_read(match) for match in _MENTION.finditer(text)]


def render(text: str, show: Callable[[Mention], str] = str) -> str:
    """Replaces marked mentions; by default with the names in configs and scripts."""
    return _MENTION.sub(lambda match: show(_read(match)), text)


def rename(text: str, names: Mapping[str, str]) -> str:
    """Replaces the names of marked options."""
    return _MENTION.sub(
        lambda match: match[0].replace(match[2], names.get(match[2], match[2]), 1), text
    )


def _read(match: re.Match[str]) -> Mention:
    dashes, name, sign, value = match.groups()
    return Mention(name, value or "", is_choice=sign == ":", is_flag=bool(dashes))
