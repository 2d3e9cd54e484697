"""Samplers that learn from trials, and pruners: fed from the trials alone."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config.sweep import SweepConfig
from core.errors import ConfigError
from core.sweeps.client import create_sweep, parse_sweep
from core.sweeps.evolution import EvolutionSampler
from core.sweeps.samplers import key_of
from core.sweeps.space import Space, parse_space
from core.sweeps.study import History, Study
from core.workspace.workspace import Workspace
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


@pytest.mark.slow(15)
def test_gaussian_process_finds_better_settings_than_its_first_draws() -> None:
    pytest.importorskip("torch", reason="pip install torch")
    trials = trials_of(study_of(method="gp", max_runs=12), 14)
    values = [one.value or 0.0 for one in trials]
    assert sum(values[8:]) / 6 < sum(values[:6]) / 6 - 0.3
    running = replace(trials[8], state="running", value=None)
    # Another driver suggests the same, beside a trial at work, too.
    for place, earlier in ((13, trials[:13]), (9, [*trials[:8], running])):
        again = [study_of(method="gp", max_runs=12).suggest(place, earlier) for _ in range(2)]
        assert again[0] == again[1]
        assert place == 9 or again[0] == trials[13].settings


def test_tpe_after_a_restart_suggests_the_same() -> None:
    trials = trials_of(study_of(method="tpe"), 15)
    again = study_of(method="tpe")
    assert [again.suggest(place, trials[:place]) for place in (3, 14)] == [
        trials[3].settings, trials[14].settings,
    ]  # fmt: skip


@pytest.mark.slow(14)
@pytest.mark.parametrize("method", ["tpe", "gp", "cmaes"])
def test_all_settings_are_tried_before_a_sweep_ends(method: str) -> None:
    pytest.importorskip({"gp": "torch"}.get(method, "optuna"))
    options = {"optimizer": ["adamw", "muon"], "layers": {"min": 1, "max": 9}}
    found = parse_space(ToyTrainingConfig, {}, options, is_grid=False)
    config = SweepConfig(options=options, method=method)  # type: ignore[arg-type]
    trials: list[History] = []
    while suggested := suggest(config, found, trials):
        trials.append(replace(done(suggested[0]), sampler_state=suggested[1]))
    assert len({key_of(one.settings) for one in trials}) == len(trials) == 18


def suggest(
    config: SweepConfig, found: Space, trials: list[History]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Suggests settings and their sampler state, with a new sampler."""
    if config.method == "cmaes":
        pytest.importorskip("cmaes", reason="pip install -r requirements-sweeps.txt")
        return EvolutionSampler(config, found).suggest(len(trials), trials)
    settings = Study(config, found).suggest(len(trials), trials)
    return None if settings is None else (settings, {})


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_evolution_moves_to_better_settings_in_any_order_of_ends(direction: Any) -> None:
    pytest.importorskip("cmaes", reason="pip install -r requirements-sweeps.txt")
    config = SweepConfig(options=OPTIONS, method="cmaes", direction=direction)
    sign = 1 if direction == "minimize" else -1
    trials: list[History] = []
    at_work: list[int] = []
    for number in range(60):
        # As another driver would, from the stored trials.
        suggested = EvolutionSampler(config, space()).suggest(number, stored(trials))
        assert suggested is not None
        trials.append(History(suggested[0], "running", sampler_state=suggested[1]))
        at_work.append(number)
        if len(at_work) == 3:  # The last of three ends first; each seventh fails or is pruned.
            ended = at_work.pop()
            value = sign * loss_at(ToyTrainingConfig(**trials[ended].settings), 4)
            state = {0: "failed", 1: "pruned"}.get(ended % 7, "done")
            trials[ended] = replace(
                trials[ended], state=state, value=None if state == "failed" else value
            )
            at_work = at_work if number % 2 else at_work[::-1]
    rates = [abs(math.log10(one.settings["learning_rate"]) + 2) for one in trials]
    assert sum(rates[40:]) / 20 < sum(rates[:20]) / 20 / 2
    assert max(one.sampler_state["generation"] for one in trials) >= 6


def stored(trials: list[History]) -> list[History]:
    """Returns the trials as their files keep them."""
    states = json.loads(json.dumps([dict(one.sampler_state) for one in trials]))
    return [replace(one, sampler_state=state) for one, state in zip(trials, states, strict=True)]


def test_evolution_needs_a_range(tmp_path: Path) -> None:
    text = 'method = "cmaes"\n[base]\nshards = "rows"\n[options]\noptimizer = ["adamw", "muon"]'
    with pytest.raises(ConfigError, match="no range to search") as caught:
        create_sweep(Workspace(tmp_path), parse_sweep(text))
    assert caught.value.field == "method"


@pytest.mark.parametrize(
    ("option", "package"),
    [
        ('method = "tpe"', "optuna"),
        ('method = "gp"', "optuna"),
        ('method = "gp"', "torch"),
        ('method = "cmaes"', "cmaes"),
        ('pruner = "median"', "optuna"),
    ],
)
def test_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = f'{option}\n[base]\nshards = "rows"\n[options.learning_rate]\nmin = 0.1\nmax = 1'
    with pytest.raises(ConfigError, match=f"The package {package} is not installed") as caught:
        create_sweep(Workspace(tmp_path), parse_sweep(text))
    assert package in caught.value.fix or "requirements-sweeps.txt" in caught.value.fix
    assert caught.value.field == option.split()[0]


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
