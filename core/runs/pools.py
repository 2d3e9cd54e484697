"""Chooses members of pools: each executes one run at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.config.targets import members_of, place_of_target
from core.store import RunRow

_MOST_SHOWN = 150


def choose_member(
    row: RunRow, active: Sequence[RunRow], skipped: Mapping[str, str]
) -> tuple[str, str]:
    """Returns the first free member for a queued run, or "" and what the members do.

    A run whose checkpoints lie on a member waits for it.

    Args:
        active: Rows of the runs that are executed now.
        skipped: Members that could not be used lately, with the error of each.
    """
    members = members_of(row.config["target"])
    own = str(row.remote.get("target"))
    if own in members and not row.config.get("mirror"):
        members = [own]
    users = {str(other.remote.get("target")): other.id for other in active}
    for member in members:
        if member not in users and member not in skipped:
            return member, ""
    states = [
        f"{place_of_target(member)} "
        + (f"runs {users[member]}" if member in users else _refusal(skipped[member]))
        for member in members
    ]
    return "", ", ".join(states)


def _refusal(words: str) -> str:
    return f"can't be used now ({words[:_MOST_SHOWN]})" if words else "can't be used now"
