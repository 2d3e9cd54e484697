"""The machines of Hugging Face Jobs with their prices, as the Hub tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from core.hub.client import ask, connect
from core.targets.hf import hourly_price

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_LONGEST_TITLE = 80


@dataclass(frozen=True)
class Flavor:
    """A kind of machine; the price in US dollars per hour is None if the Hub doesn't tell it."""

    name: str
    title: str
    price_per_hour: float | None


def list_flavors() -> list[Flavor]:
    """Lists the Hub's machines, the cheapest first; raises HubError."""
    problem = "The Hub's machines can't be listed"
    flavors = [
        _flavor(hardware) for hardware in ask(problem, connect().list_jobs_hardware, attempts=1)
    ]
    valid = [flavor for flavor in flavors if _NAME.fullmatch(flavor.name)]
    return sorted(
        valid, key=lambda flavor: (flavor.price_per_hour is None, flavor.price_per_hour or 0.0)
    )


def _flavor(hardware: Any) -> Flavor:
    title = "".join(
        character if character.isprintable() else " " for character in str(hardware.pretty_name)
    )
    return Flavor(str(hardware.name), title[:_LONGEST_TITLE], hourly_price(hardware))
