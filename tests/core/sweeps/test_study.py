"""Optuna's samplers and pruners, fed from the trials alone."""

from __future__ import annotations

from typing import Any

import pytest

from core.config.sweep import SweepConfig
from core.sweeps.space import Space, parse_space
from core.sweeps.study import History, Study
from tests.core.sweeps.toy_training import ToyTrainingConfig, loss_at

pytest.importorskip(
    "optuna",
    reason="pip install -c constraints.txt -r requirements-sweeps.txt",
    exc_type=ImportError,
)

OPTIONS = {
    "learning_rate": {"min": 1e-4, "max": 1, "log": True},
    "optimizer": ["adamw", "muon"],
    "layers": {"min": 1, "max": 9, "step": 3},
}


def space() -> Space:
    return parse_space(ToyTrainingConfig, {}, OPTIONS, is_grid=False)


def study_of(**values: Any) -> Study:
    return Study(SweepConfig(options=OPTIONS, **values), space())


def done(settings: dict[str, Any]) -> History:
    return History(settings, "done", loss_at(ToyTrainingConfig(**settings), 4))


def trials_of(study: Study, count: int) -> list[History]:
    found: list[History] = []
    while len(found) < count:
        settings = study.suggest(len(found), found)
        assert settings is not None
        found.append(done(settings))
    return found


def test_tpe_finds_better_settings_than_its_first_draws() -> None:
    trials = trials_of(study_of(method="tpe", max_runs=30), 30)
    values = [one.value or 0.0 for one in trials]
    assert sum(values[20:]) / 10 < sum(values[:10]) / 10 - 0.2
    assert {type(one.settings["layers"]) for one in trials} == {int}
    assert {one.settings["layers"] for one in trials} <= {1, 4, 7}


def test_tpe_after_a_restart_suggests_the_same() -> None:
    trials = trials_of(study_of(method="tpe"), 15)
    again = study_of(method="tpe")
    assert [again.suggest(place, trials[:place]) for place in (3, 14)] == [
        trials[3].settings, trials[14].settings,
    ]  # fmt: skip


def test_tpe_ends_when_all_settings_were_tried() -> None:
    options = {"optimizer": ["adamw", "muon"]}
    found = parse_space(ToyTrainingConfig, {}, options, is_grid=False)
    study = Study(SweepConfig(options=options, method="tpe"), found)
    trials = [done({"optimizer": one}) for one in ("adamw", "muon")]
    assert study.suggest(2, trials) is None


def curve(number: int, *values: float, state: str = "done", **attributes: Any) -> History:
    settings = {"learning_rate": 0.01 + number / 1000, "optimizer": "muon", "layers": 1}
    numbered = dict(enumerate(values, 1))
    value = min(values) if state == "done" else None
    return History(settings, state, value, numbered, attributes)


def test_median_pruner_ends_a_trial_above_the_median() -> None:
    study = study_of(pruner="median", warmup_trials=3, warmup_validations=2)
    finished = [curve(number, 4.0, 3.0 + number / 10, 2.0) for number in range(3)]
    for values, is_worse in (
        ((9.0,), False),  # The first validation is too early.
        ((4.0, 3.05), False),
        ((4.0, 3.15), True),
        ((3.05, 3.15), False),  # Its best validation counts.
    ):
        judged = [*finished, curve(9, *values, state="running")]
        assert study.is_worse(3, judged) == (is_worse, {})
        assert not study.is_worse(2, [*finished[:2], judged[3]])[0]


def test_median_pruner_of_a_metric_to_maximize_ends_a_trial_below() -> None:
    study = study_of(pruner="median", warmup_trials=1, warmup_validations=1, direction="maximize")
    assert study.is_worse(1, [curve(0, 0.5), curve(1, 0.4, state="running")])[0]
    assert not study.is_worse(1, [curve(0, 0.5), curve(1, 0.6, state="running")])[0]


def test_halving_keeps_the_best_third_and_remembers_its_rungs() -> None:
    study = study_of(pruner="halving", warmup_validations=1, reduction_factor=3)
    trials: list[History] = []
    ended = []
    for number, value in enumerate((3.0, 5.0, 4.0, 2.0, 2.5, 1.0)):
        judged = curve(number, value, state="running")
        is_worse, rungs = study.is_worse(number, [*trials, judged])
        assert rungs == {"completed_rung_0": value}
        ended.append(is_worse)
        state = "pruned" if is_worse else "running"
        trials.append(curve(number, value, state=state, **rungs))
    # Each is among the best third of those that came that far, itself included.
    assert ended == [False, True, True, False, True, False]
