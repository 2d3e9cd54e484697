"""Phases of a run on another machine until it reports to the mirror, with their limits."""

from __future__ import annotations

CHECKING = "checking"
UPLOADING = "uploading"
CAPACITY = "waiting for capacity"
STARTING_MACHINE = "starting the machine"

# Before the first machine: nothing is lost, and nobody is to wait for a wrong address.
MOST_UNREACHABLE_SECONDS = 300.0
_HOUR = 3600.0
# Seconds; of an upload, those without a byte that arrives. The other names are the bootstrap's.
_LIMITS = {
    CHECKING: MOST_UNREACHABLE_SECONDS,
    UPLOADING: _HOUR / 2,
    CAPACITY: 72 * _HOUR,
    STARTING_MACHINE: _HOUR / 2,
    "fetching the code": _HOUR / 2,
    "installing": _HOUR,
    "starting the program": _HOUR / 2,
}


def name_of(phase: str) -> str:
    """Removes the details: waiting for capacity (no quota)."""
    return phase.partition(" (")[0]


def limit_of(phase: str) -> float | None:
    """Returns how many seconds a phase may take; None if the run's own limits decide."""
    return _LIMITS.get(name_of(phase))
