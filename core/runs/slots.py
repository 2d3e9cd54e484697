"""Number of concurrent runs: the workspace's, STUDIO_SLOTS or 1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.errors import ConfigError

if TYPE_CHECKING:
    from core.store import Store

SLOTS_VARIABLE = "STUDIO_SLOTS"
MOST_SLOTS = 64
_SETTING = "slots"


def default_slots() -> int:
    """Returns the default; raises ConfigError unless 1 to 64."""
    text = os.environ.get(SLOTS_VARIABLE) or "1"
    return _checked(int(text) if text.isdecimal() else text, SLOTS_VARIABLE)


def get_slots(store: Store, default: int | None = None) -> int:
    if slots := store.get_setting(_SETTING):
        return int(slots)
    return default_slots() if default is None else default


def set_slots(store: Store, slots: int) -> None:
    """Stores the number of concurrent runs, 1 to 64."""
    store.set_setting(_SETTING, str(_checked(slots, "slots")))


def _checked(slots: int | str, name: str) -> int:
    if isinstance(slots, int) and 1 <= slots <= MOST_SLOTS:
        return slots
    raise ConfigError(
        "The number of simultaneous runs is out of range",
        expected=f"a whole number from 1 to {MOST_SLOTS}",
        received=f"{name}={slots}",
        fix=f"choose a number in this range; {SLOTS_VARIABLE} sets the default of every workspace",
    )
