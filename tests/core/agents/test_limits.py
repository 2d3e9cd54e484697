"""Limits of the runs and the money of agents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from core.agents.limits import LimitError, Limits
from core.errors import ConfigError, RunError


def is_accepted(limits: Limits, runs: int = 1, dollars: float | None = None) -> bool:
    try:
        with limits.reserving(runs, is_paid=dollars is not None, dollars=dollars):
            return True
    except LimitError:
        return False


def test_parallel_starts_never_exceed_the_limit_of_runs() -> None:
    limits = Limits(max_runs=10, max_cost=0)
    with ThreadPoolExecutor(16) as pool:
        accepted = list(pool.map(lambda _: is_accepted(limits, 3), range(50)))
    assert accepted.count(True) == 3
    assert limits.describe()["runs_left"] == 1
    assert is_accepted(limits) and not is_accepted(limits)


def test_parallel_starts_never_exceed_the_limit_of_money() -> None:
    limits = Limits(max_runs=1000, max_cost=1.0)
    with ThreadPoolExecutor(16) as pool:
        accepted = list(pool.map(lambda _: is_accepted(limits, dollars=0.3), range(50)))
    assert accepted.count(True) == 3
    assert limits.describe()["dollars_left"] == 0.1
    with limits.reserving(1, is_paid=True) as reservation:
        assert reservation.dollars == pytest.approx(0.1), "by default, all that is left"


def test_without_a_limit_of_money_nothing_with_a_price_starts() -> None:
    limits = Limits(max_runs=5, max_cost=0)
    assert not is_accepted(limits, dollars=0.01)
    with pytest.raises(LimitError, match="The limit of money is reached"):
        limits.reserving(1, is_paid=True).__enter__()
    assert is_accepted(limits)


def test_ended_start_counts_what_it_has_cost() -> None:
    limits = Limits(max_runs=10, max_cost=5)
    with limits.reserving(1, is_paid=True, dollars=5) as reservation:
        pass
    assert not is_accepted(limits, dollars=1)
    reservation.final_cost = lambda: 1.5
    assert limits.describe()["dollars_left"] == 3.5
    assert is_accepted(limits, dollars=3.5)


def test_refused_settings_use_up_nothing_but_an_unanswered_start_does() -> None:
    limits = Limits(max_runs=2, max_cost=0)
    with pytest.raises(ConfigError), limits.reserving(1):
        raise ConfigError("The name is taken")
    assert limits.describe()["runs_left"] == 2
    with pytest.raises(RunError), limits.reserving(1):
        raise RunError("The worker doesn't answer")
    assert limits.describe()["runs_left"] == 1, "its run may be queued"
