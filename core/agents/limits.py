"""Limits of what agents may start while a server lives: runs, and US dollars."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from core.errors import ConfigError, StudioError

# Sums of dollars may end in ...0001.
_ROUNDING = 1e-9


class LimitError(StudioError):
    """A start would exceed a limit that the user has set."""


@dataclass(eq=False)
class Reservation:
    """Runs and US dollars that a start may use.

    Attributes:
        dollars: Most that it may cost; its machine ends before.
        final_cost: Returns the cost once everything has ended, None before or if unknown.
    """

    runs: int
    dollars: float
    final_cost: Callable[[], float | None] = lambda: None


class Limits:
    """Adds up what was started, and refuses more than the limits. Thread-safe.

    A start holds the most that it may cost until its end, so the sum can't exceed the limit.

    Args:
        max_runs: Runs at most, the trials of sweeps included.
        max_cost: US dollars at most; 0 allows only machines that cost nothing.
    """

    def __init__(self, max_runs: int, max_cost: float) -> None:
        self.max_runs = max_runs
        self.max_cost = max_cost
        self._reservations: list[Reservation] = []
        self._lock = threading.RLock()

    @contextmanager
    def reserving(
        self, runs: int, *, is_paid: bool = False, dollars: float | None = None
    ) -> Iterator[Reservation]:
        """Reserves for the starts in the block, one block at a time.

        Args:
            dollars: Most that a paid start may cost; None: all that is left.

        Raises:
            LimitError: Less is left.
        """
        with self._lock:
            reservation = self._reserve(runs, is_paid, dollars)
            try:
                yield reservation
            except ConfigError:
                # Settings are checked before anything is queued; after other errors, runs may be.
                self._reservations.remove(reservation)
                raise

    def describe(self) -> dict[str, Any]:
        """Returns the limits and what is left."""
        with self._lock:
            return {
                "max_runs": self.max_runs,
                "runs_left": self._runs_left(),
                "max_cost": self.max_cost,
                "dollars_left": round(self._dollars_left(), 2),
            }

    def _reserve(self, runs: int, is_paid: bool, dollars: float | None) -> Reservation:
        if runs > self._runs_left():
            raise LimitError(
                "The limit of runs is reached",
                expected=f"at most {self.max_runs} runs while this server lives, of which "
                f"{self._runs_left()} are left",
                received=f"a start of {runs}",
                fix="ask the user to start the server again, with a larger --max-runs",
            )
        left = self._dollars_left()
        wanted = 0.0 if not is_paid else left if dollars is None else dollars
        if is_paid and (wanted <= 0 or wanted > left + _ROUNDING):
            raise LimitError(
                "The limit of money is reached",
                expected=f"at most ${self.max_cost:.2f} while this server lives, of which "
                f"${left:.2f} are left",
                received=f"a machine with a price, and a limit of ${wanted:.2f}",
                fix="train on this machine, or ask the user to start the server again with a "
                "larger --max-cost",
                field="max_cost",
            )
        reservation = Reservation(runs, wanted)
        self._reservations.append(reservation)
        return reservation

    def _runs_left(self) -> int:
        return self.max_runs - sum(reservation.runs for reservation in self._reservations)

    def _dollars_left(self) -> float:
        return max(0.0, self.max_cost - sum(map(_committed, self._reservations)))


def _committed(reservation: Reservation) -> float:
    if not reservation.dollars:
        return 0.0
    cost = reservation.final_cost()
    return reservation.dollars if cost is None else cost
