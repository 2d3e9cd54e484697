"""Adds up what the trials of a sweep have used, and limits the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.config.sweep import SweepConfig
from core.runs.duration import run_seconds
from core.store import RunRow
from core.sweeps.folder import Trial
from core.workspace.workspace import Workspace

_SECONDS_PER_HOUR = 3600.0
SPENT_LIMITS = ("max_hours", "max_cost")
_USED = {"max_hours": "hours", "max_cost": "cost"}
# A machine with less would end before it has started.
_LEAST = {"max_hours": 1 / 60, "max_cost": 0.0}
# A machine saves and ends before its limit. Only a larger limit lets its trial go on.
_LEAST_RAISE = 1.01


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
    costs = [trial.cost for trial in trials if trial.cost is not None]
    return Spent(len(trials), sum(trial.hours for trial in trials), sum(costs) if costs else None)


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


def limits_of(
    config: SweepConfig, trials: Sequence[Trial], places: int, trial: Trial | None = None
) -> tuple[dict[str, float], str]:
    """Returns the limits of a trial's machine, which hold without the driver.

    Args:
        places: Trials that may begin or go on now; they share what is left.
        trial: A paused trial that is to go on; None: the next new one.

    Returns:
        Values of max_hours and max_cost, earlier machines of the trial included, and the name of
        one of which too little is left.
    """
    limits: dict[str, float] = {}
    if not config.base.get("target"):
        return limits, ""
    others = [other for other in trials if other is not trial]
    for name in SPENT_LIMITS:
        limit, own = getattr(config, name), config.base.get(name)
        if limit is None:
            continue
        used = _used(trial, name) if trial else 0.0
        share = (limit - sum(_committed(other, name) for other in others) - used) / places
        if share <= _LEAST[name]:
            return limits, name
        limits[name] = used + share if own is None else min(used + share, float(own))
    return limits, ""


def reached_share(config: SweepConfig, trial: Trial) -> str:
    """Returns the share of the budget at which a trial's machine ended: max_hours or max_cost.

    A limit of the table base, which each trial has for itself, ends a trial for good: "".
    """
    own = {name: float(config.base[name]) for name in SPENT_LIMITS if config.base.get(name)}
    limits = {**own, **trial.limits}
    if not limits:
        return ""
    name = max(limits, key=lambda limit_name: _used(trial, limit_name) / limits[limit_name])
    return name if limits[name] < own.get(name, math.inf) else ""


def is_raised(trial: Trial, name: str, limits: Mapping[str, float]) -> bool:
    """Returns whether a trial's machine gets clearly more than its old limit."""
    old = trial.limits.get(name)
    return old is None or name not in limits or limits[name] > _LEAST_RAISE * old


def _used(trial: Trial, name: str) -> float:
    return float(getattr(trial, _USED[name]) or 0.0)


def _committed(trial: Trial, name: str) -> float:
    """Returns the hours or dollars that a trial has used, or may use while it is at work."""
    is_at_work = trial.state == "active"
    return max(_used(trial, name), trial.limits.get(name, 0.0) if is_at_work else 0.0)
