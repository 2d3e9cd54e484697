"""Adds up what the trials of a sweep have used, and limits the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.config.sweep import SweepConfig
from core.runs.duration import run_seconds
from core.store import RunRow
from core.sweeps.folder import Trial
from core.workspace import Workspace

_SECONDS_PER_HOUR = 3600.0
# A machine with less would end before it has started.
_LEAST_HOURS = 1 / 60


@dataclass(frozen=True)
class Spent:
    """Use of a budget.

    Attributes:
        cost: US dollars; None if no trial knows.
    """

    runs: int
    hours: float
    cost: float | None


def add_up(trials: Sequence[Trial]) -> Spent:
    costs = [one.cost for one in trials if one.cost is not None]
    return Spent(len(trials), sum(one.hours for one in trials), sum(costs) if costs else None)


def measure(trial: Trial, row: RunRow, workspace: Workspace) -> None:
    """Records what a trial's run has used; on another machine, what the machine has."""
    hours = (run_seconds(workspace, row) or 0.0) / _SECONDS_PER_HOUR
    if row.config.get("target"):
        hours = float(row.remote.get("hours") or 0.0)
        cost = row.remote.get("cost")
        trial.cost = trial.cost if cost is None else float(cost)
    trial.hours = hours


def is_used_up(config: SweepConfig, spent: Spent) -> str:
    """Returns the limit that is reached, max_hours or max_cost, or ""."""
    if config.max_hours is not None and spent.hours >= config.max_hours:
        return "max_hours"
    if config.max_cost is not None and (spent.cost or 0.0) >= config.max_cost:
        return "max_cost"
    return ""


def limits_of_next(
    config: SweepConfig, trials: Sequence[Trial], places: int
) -> tuple[dict[str, float], str]:
    """Returns the limits of the next trial's machine, which hold without the driver.

    Args:
        places: Trials that may begin now; they share what is left.

    Returns:
        Values of max_hours and max_cost, and the name of one of which too little is left.
    """
    found: dict[str, float] = {}
    if not config.base.get("target"):
        return found, ""
    for name, used, least in (("max_hours", "hours", _LEAST_HOURS), ("max_cost", "cost", 0.0)):
        limit, own = getattr(config, name), config.base.get(name)
        if limit is None:
            continue
        share = (limit - sum(_committed(one, name, used) for one in trials)) / places
        if share <= least:
            return found, name
        found[name] = share if own is None else min(share, float(own))
    return found, ""


def _committed(trial: Trial, name: str, used: str) -> float:
    """Returns the hours or dollars that a trial has used, or may use while it is open."""
    spent = float(getattr(trial, used) or 0.0)
    return max(spent, trial.limits.get(name, 0.0)) if trial.is_open else spent
