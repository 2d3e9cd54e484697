"""Budgets: hours and dollars of all trials, and the limits that their machines get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.config.sweep import SweepConfig
from core.config.train import TrainConfig
from core.store import RunRow, Store
from core.sweeps import budget
from core.sweeps.client import create_sweep
from core.sweeps.driver import Driver
from core.sweeps.folder import Trial
from core.workspace.workspace import Workspace
from tests.core.runs.support import begin_run

OPTIONS = {"learning_rate": [1e-3, 1e-2]}
TARGET = {"shards": "rows", "target": "ssh://somewhere", "price_per_hour": 2.0}


def config_of(**values: Any) -> SweepConfig:
    return SweepConfig(**{"name": "s", "base": TARGET, "options": OPTIONS, **values})


def trial(number: int, state: str = "done", **values: Any) -> Trial:
    return Trial(number, {"learning_rate": 1e-3}, "", f"train-{number}", state, **values)


def test_next_machine_gets_what_ended_and_open_trials_leave() -> None:
    config = config_of(max_hours=10.0, max_cost=30.0)
    trials = [
        trial(0, hours=2.0, cost=4.0, limits={"max_hours": 5.0, "max_cost": 15.0}),
        trial(1, "active", hours=0.5, cost=1.0, limits={"max_hours": 4.0, "max_cost": 13.0}),
    ]
    assert budget.limits_of(config, trials, 1) == ({"max_hours": 4.0, "max_cost": 13.0}, "")
    # Two trials that may begin now share the rest.
    assert budget.limits_of(config, trials, 2)[0] == {"max_hours": 2.0, "max_cost": 6.5}
    assert budget.limits_of(config, [*trials, trial(2, hours=4.0)], 1)[1] == "max_hours"


def test_own_limit_of_a_trial_stays_if_it_is_lower() -> None:
    config = config_of(max_cost=30.0, base={**TARGET, "max_cost": 3.0})
    assert budget.limits_of(config, [], 1) == ({"max_cost": 3.0}, "")


def test_trial_on_this_machine_gets_no_limit_of_its_own() -> None:
    config = config_of(max_hours=1.0, base={"shards": "rows"})
    assert budget.limits_of(config, [trial(0, hours=0.5)], 1) == ({}, "")


def test_paused_trial_gets_a_part_of_what_the_others_leave_beside_what_it_has_used() -> None:
    config = config_of(max_hours=10.0)
    paused = trial(0, "paused", hours=2.0, limits={"max_hours": 2.0})
    other = trial(1, "active", hours=1.0, limits={"max_hours": 4.0})
    assert budget.limits_of(config, [paused, other], 1, paused)[0] == {"max_hours": 6.0}
    assert budget.limits_of(config, [paused, other], 2, paused)[0] == {"max_hours": 4.0}
    # A paused trial holds nothing back from the others.
    assert budget.limits_of(config, [paused, other], 1)[0] == {"max_hours": 4.0}


def test_trial_ends_at_its_share_of_the_budget_or_at_its_own_limit() -> None:
    config = config_of(max_hours=10.0, base={**TARGET, "max_hours": 5.0, "max_cost": 7.0})
    shared = trial(0, hours=1.9, cost=1.0, limits={"max_hours": 2.0})
    assert budget.reached_share(config, shared) == "max_hours"
    for hours, cost, limit in ((4.9, 1.0, 5.0), (1.9, 6.9, 2.0)):
        own = trial(0, hours=hours, cost=cost, limits={"max_hours": limit})
        assert budget.reached_share(config, own) == ""
    assert budget.reached_share(config_of(base=TARGET), trial(0, hours=3.0)) == ""


@pytest.mark.parametrize(("max_hours", "goes_on"), [(10.0, False), (12.0, True)])
def test_machine_that_ended_at_its_share_goes_on_if_the_budget_has_grown(
    tmp_path: Path, max_hours: float, goes_on: bool
) -> None:
    """A machine saves before its limit, so that a few minutes of the budget are left."""
    workspace = Workspace(tmp_path / "workspace")
    folder = create_sweep(workspace, config_of(max_hours=max_hours, max_runs=4))
    store = Store.open(workspace)
    store.add_run(
        RunRow(
            id="train-0", stage="train", name="", config=TARGET, state="stopped", reason="limit",
            after=[], created=1.0, started=1.0, ended=2.0, warnings=[], results={},
            remote={"target": "ssh://somewhere", "hours": 9.9, "cost": 19.8},
        )
    )  # fmt: skip
    folder.write_trial(trial(0, "active", limits={"max_hours": 10.0}))
    driver = Recorder(workspace, folder)
    assert driver.work() == goes_on
    (known,) = folder.read_trials()
    assert (known.state, known.reason, known.hours) == ("paused", "max_hours", 9.9)
    assert driver.resumed == ([{"max_hours": 12.0}] if goes_on else [])
    if not goes_on:
        assert (folder.read_state().state, folder.read_state().reason) == ("done", "max_hours")


class Recorder(Driver):
    """A driver that reaches no machine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.resumed: list[dict[str, float]] = []

    def _go_on(self, trial: Trial, limits: dict[str, float], restarts: int) -> None:
        self.resumed.append(limits)


def test_budget_of_a_queued_trial_has_its_earlier_attempts(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    folder, reporter = begin_run(workspace, "train-0")
    events = [{"n": number, "t": 100.0 + 3600 * number, "kind": kind}
              for number, kind in ((1, "started"), (2, "metrics"))]  # fmt: skip
    reporter.close()
    folder.events.write_text(
        "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in events)
    )
    row = RunRow(id="train-0", stage="train", config={}, attempt=2, state="queued", remote={})
    one = trial(0, "active")
    budget.measure(one, row, workspace)
    assert one.hours == 1.0


@pytest.mark.parametrize(
    ("hours", "cost", "limit"), [(9.9, 29.0, ""), (10.0, 1.0, "max_hours"), (1.0, 30.0, "max_cost")]
)
def test_limit_is_reached_by_all_trials_together(hours: float, cost: float, limit: str) -> None:
    config = config_of(max_hours=10.0, max_cost=30.0)
    spent = budget.add_up([trial(0, hours=hours / 2, cost=cost), trial(1, hours=hours / 2)])
    assert budget.is_used_up(config, spent) == limit


def test_cost_and_hours_are_those_of_the_machine(tmp_path: Path) -> None:
    config = TrainConfig(**TARGET).model_dump(mode="json")
    row = RunRow(
        id="train-0", stage="train", config=config, attempt=1, started=1.0, ended=7201.0,
        remote={"hours": 1.5, "cost": 3.0},
    )  # fmt: skip
    one = trial(0, "active")
    budget.measure(one, row, Workspace(tmp_path))
    assert (one.hours, one.cost) == (1.5, 3.0)
    row.config = {**config, "target": ""}
    budget.measure(one, row, Workspace(tmp_path))
    assert one.hours == 2.0


def test_trial_of_a_target_carries_its_limits_and_one_runs_at_a_time(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    driver = Driver(workspace, create_sweep(workspace, config_of(max_cost=9.0)))
    found = driver._config_of(trial(0, limits={"max_cost": 9.0}))
    assert isinstance(found, TrainConfig)
    assert (found.target, found.max_cost, found.price_per_hour) == ("ssh://somewhere", 9.0, 2.0)
    assert driver._parallel() == 1
