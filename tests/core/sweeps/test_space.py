"""The options that a sweep varies: their values, their order and their errors."""

from __future__ import annotations

import json
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest

from core.config.finetune import FinetuneConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.sweeps.client import create_sweep, load_sweep, parse_sweep
from core.sweeps.samplers import GridSampler, QuasiRandomSampler, RandomSampler, key_of
from core.sweeps.space import Range, Space, parse_space
from core.workspace.workspace import Workspace

BASE = {"shards": "rows"}


def space_of(**options: Any) -> Space:
    return parse_space(TrainConfig, BASE, options, is_grid=False)


def error_of(*, is_grid: bool = False, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_space(TrainConfig, BASE, options, is_grid=is_grid)
    return caught.value


MIXED = {
    "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
    "num_hidden_layers": {"min": 2, "max": 8, "step": 2},
    "weight_decay": {"min": 0.0, "max": 0.1},
    "optimizer": ["adamw", "muon"],
    "hidden_size": {"min": 16, "max": 1024, "log": True},
}


def test_random_settings_are_within_the_ranges_and_cover_them() -> None:
    sampler = RandomSampler(space_of(**MIXED), 7)
    drawn = [sampler.settings(number) or {} for number in range(200)]
    rates = [one["learning_rate"] for one in drawn]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert 60 < sum(rate < 1e-3 for rate in rates) < 140  # Half of a logarithmic range.
    assert {one["num_hidden_layers"] for one in drawn} == {2, 4, 6, 8}
    assert {one["optimizer"] for one in drawn} == {"adamw", "muon"}
    assert all(isinstance(one["hidden_size"], int) for one in drawn)
    assert 16 <= min(one["hidden_size"] for one in drawn) < 24


def test_random_trial_is_a_pure_function_of_seed_and_number() -> None:
    first = [RandomSampler(space_of(**MIXED), 7).settings(number) for number in (9, 0, 4)]
    again = RandomSampler(space_of(**dict(reversed(MIXED.items()))), 7)
    assert [again.settings(number) for number in (9, 0, 4)] == first
    assert RandomSampler(space_of(**MIXED), 8).settings(0) != first[1]


def test_random_settings_do_not_repeat_and_end_when_all_were_tried() -> None:
    sampler = RandomSampler(space_of(optimizer=["adamw", "muon"], seed=[1, 2, 3]), 0)
    drawn = [found for number in range(6) if (found := sampler.settings(number))]
    assert len({key_of(one) for one in drawn}) == 6
    assert sampler.settings(6) is None


def test_quasi_random_settings_cover_the_space_evenly() -> None:
    options = {"weight_decay": {"min": 0.0, "max": 1.0}, "optimizer": ["adamw", "muon"]}
    sampler = QuasiRandomSampler(space_of(**options), 3)
    drawn = [sampler.settings(number) or {} for number in range(16)]
    # Each sixteenth of the range has one value, and each optimizer half of them.
    assert sorted(int(16 * one["weight_decay"]) for one in drawn) == list(range(16))
    assert [one["optimizer"] for one in drawn].count("muon") == 8
    again = QuasiRandomSampler(space_of(**dict(reversed(options.items()))), 3)
    assert [again.settings(number) for number in (9, 4)] == [drawn[9], drawn[4]]
    assert QuasiRandomSampler(space_of(**options), 4).settings(0) != drawn[0]
    few = QuasiRandomSampler(space_of(seed=[1, 2, 3]), 0)
    assert sorted((few.settings(number) or {})["seed"] for number in range(3)) == [1, 2, 3]
    assert few.settings(3) is None


def test_grid_has_all_combinations_in_order() -> None:
    options = {"optimizer": ["adamw", "muon"], "learning_rate": {"min": 1e-4, "max": 1e-2,
               "log": True, "count": 3}}  # fmt: skip
    grid = GridSampler(parse_space(TrainConfig, BASE, options, is_grid=True))
    found = [grid.settings(number) for number in range(7)]
    rates = [one["learning_rate"] for one in found[:3] if one]
    assert rates == [1e-4, 1e-3, 1e-2]
    assert [one and one["optimizer"] for one in found] == ["adamw"] * 3 + ["muon"] * 3 + [None]


def test_none_is_a_value_of_an_option_that_may_be_empty() -> None:
    space = space_of(max_grad_norm=["none", 1.0], learning_rate=[1e-3, "none"])
    assert GridSampler(space).settings(0) == {"max_grad_norm": None, "learning_rate": 1e-3}


def test_whole_number_is_stored_as_an_integer() -> None:
    (settings,) = (GridSampler(space_of(seed=[2.0])).settings(0),)
    assert settings == {"seed": 2} and isinstance(settings["seed"], int)


def rates_of(value: Any) -> list[list[float]]:
    """Returns the learning rates that each trial of a grid over fine-tunings tries."""
    base, options = {"model": "m", "seed": 1}, {"learning_rates": value}
    sampler = GridSampler(parse_space(FinetuneConfig, base, options, is_grid=True))
    trials = takewhile(lambda one: one is not None, map(sampler.settings, count()))
    return [FinetuneConfig.parse({**base, **json.loads(json.dumps(one))}).rates for one in trials]


@pytest.mark.parametrize(
    ("value", "rates"),
    [
        ([1e-4, 3e-4], [[1e-4], [3e-4]]),
        ([[1e-4, 3e-4], [1e-3]], [[1e-4, 3e-4], [1e-3]]),
        (["1e-4 3e-4", 1e-3], [[1e-4, 3e-4], [1e-3]]),
        ({"values": [1e-5, 1]}, [[1e-5], [1.0]]),
        ({"min": 1e-5, "max": 1e-3, "log": True, "count": 3}, [[1e-5], [1e-4], [1e-3]]),
    ],
)
def test_learning_rates_of_fine_tuning_are_numbers_lists_or_a_range(
    value: Any, rates: list[list[float]]
) -> None:
    assert rates_of(value) == rates
    for wrong in ([7.0], [[1e-4, "fast"]], [[]], [[1e-4], 1e-4], [True], {"min": 1e-4, "max": 2}):
        with pytest.raises(ConfigError) as caught:
            rates_of(wrong)
        assert caught.value.field.startswith("options.learning_rates")


def test_float_range_with_a_step_reaches_its_end() -> None:
    assert Range(0.0, 0.3, is_integer=False, step=0.1).grid() == (0, 0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ({}, "options", "values = "),
        ({"learning_rat": [1]}, "options.learning_rat", "learning_rate"),
        ({"name": ["a", "b"]}, "options.name", "another option"),
        ({"shards": ["a", "b"]}, "options.shards", "in base or in options"),
        ({"optimizer": "muon"}, "options.optimizer", "a list"),
        ({"optimizer": []}, "options.optimizer", "a list of values"),
        ({"optimizer": ["muon", "sgd"]}, "options.optimizer.values", "'adamw', 'muon'"),
        ({"optimizer": ["muon", "muon"]}, "options.optimizer", "different values"),
        ({"seed": [1, 1.0]}, "options.seed", "different values"),
        ({"weight_decay": [1, 1.0]}, "options.weight_decay", "different values"),
        ({"optimizer": {"min": 1, "max": 2}}, "options.optimizer", "values = "),
        ({"optimizer": {"values": ["muon"], "min": 1}}, "options.optimizer.min", "values alone"),
        ({"seed": [[1]]}, "options.seed", "strings, numbers"),
        ({"learning_rate": {"min": 1e-4}}, "options.learning_rate.max", "a number"),
        ({"learning_rate": {"min": 1, "max": 1}}, "options.learning_rate.max", "above min = 1"),
        ({"muon_momentum": {"min": 0, "max": 1, "log": True}}, "options.muon_momentum.min", "0"),
        ({"learning_rate": {"min": 1e-4, "max": 20}}, "options.learning_rate.max", "less than or"),
        ({"learning_rate": {"min": "a", "max": 1}}, "options.learning_rate.min", "a number"),
        ({"learning_rate": {"min": True, "max": 2}}, "options.learning_rate.min", "a number"),
        ({"learning_rate": {"min": 1, "max": float("inf")}}, "options.learning_rate.max", "number"),
        ({"learning_rate": {"min": 1, "max": 10**400}}, "options.learning_rate.max", "number"),
        ({"seed": {"min": 1, "max": 1 << 63}}, "options.seed.max", "a whole number"),
        ({"num_train_steps": [1, 1 << 63]}, "options.num_train_steps.values", "19 digits"),
        ({"learning_rate": {"min": 1, "max": 2, "lg": True}}, "options.learning_rate.lg", "log"),
        ({"learning_rate": {"min": 1, "max": 2, "log": 1}}, "options.learning_rate.log", "true"),
        ({"weight_decay": {"min": 0, "max": 1, "step": 0}}, "options.weight_decay.step", "above 0"),
        ({"seed": {"min": 1, "max": 2.5}}, "options.seed.max", "a whole number"),
        ({"seed": {"min": 1, "max": 9, "count": 1}}, "options.seed.count", "from 2 to 1,000"),
        ({"seed": list(range(1001))}, "options.seed", "at most 1,000"),
    ],
)  # fmt: skip
def test_wrong_option_is_named_with_what_was_expected(
    options: dict[str, Any], key: str, expected: str
) -> None:
    error = error_of(**options)
    assert error.field == key and expected in error.expected
    assert error.received and error.fix and key in error.problem


@pytest.mark.parametrize("high", [1.0, 10**7])
def test_grid_of_a_range_needs_a_number_of_values(high: float) -> None:
    name = "learning_rate" if high == 1.0 else "seed"
    low = 0.1 if high == 1.0 else 1
    assert "count" in error_of(is_grid=True, **{name: {"min": low, "max": high}}).expected


TOML = """
method = "random"
max_runs = 3
[base]
shards = "rows"
[options]
learning_rate = [1e-3, 1e-2]
"""


def test_file_names_its_sweep(tmp_path: Path) -> None:
    path = tmp_path / "my rates.toml"
    path.write_text(TOML)
    config = load_sweep(path)
    assert (config.name, config.max_runs, config.base) == ("my-rates", 3, {"shards": "rows"})
    assert parse_sweep(TOML).name == "sweep"


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ('method = "bayes"', "method", "'tpe', 'gp' or 'cmaes'"),
        ("max_runs = 1001", "max_runs", "less than or equal to 1000"),
        ("max_run = 3", "max_run", "max_runs"),
        ("max_cost = 3.0", "max_cost", "target"),
        ("parallel = 0", "parallel", "greater than or equal to 1"),
    ],
)
def test_wrong_key_is_named(change: str, field: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sweep(f"{change}\n{TOML.replace('max_runs = 3', '').replace('method', '# method')}")
    assert caught.value.field == field and expected in caught.value.expected


def test_file_that_is_missing_no_toml_or_too_large_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(ConfigError, match="can't be read"):
        load_sweep(path)
    path.write_text("a = ")
    with pytest.raises(ConfigError, match="isn't TOML"):
        load_sweep(path)
    path.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ConfigError, match="is too large"):
        load_sweep(path)
    with pytest.raises(ConfigError, match="base is no table"):
        parse_sweep("base = 3")


def test_sweep_with_a_wrong_setting_makes_no_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    for change, problem in (
        ('[base]\nname = "a"', "names its trials itself"),
        ('[base]\nmirror = "s3://me:hidden-word@bucket/x"', "holds a password"),
        ('[base]\nwebhook = "https://example.com/hidden-word"', "a secret address"),
        ('[base]\nsiz = "tiny"', "no field siz"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            create_sweep(workspace, parse_sweep(TOML.replace("[base]", change)))
        assert "hidden-word" not in str(caught.value)
    assert not workspace.sweeps.exists()
    create_sweep(workspace, parse_sweep(TOML))
    with pytest.raises(ConfigError, match="exists already"):
        create_sweep(workspace, parse_sweep(TOML))


@pytest.mark.parametrize(
    ("stage", "options", "field"),
    [
        ("evaluate", 'task="text"\npath="a.txt"\n[options]\ngood_field=["a","b"]', "good_field"),
        ("finetune", 'train_path="a.csv"\n[options]\ntest_split=["a","b"]', "test_split"),
    ],
)
def test_options_without_effect_are_named_before_the_first_trial(
    tmp_path: Path, stage: str, options: str, field: str
) -> None:
    metric = {"evaluate": "loss", "finetune": "accuracy"}[stage]
    head = f'name="s"\nstage="{stage}"\nmetric="{metric}"\nmethod="grid"\n[base]\nmodel="m"\n'
    with pytest.raises(ConfigError, match="has no effect") as caught:
        create_sweep(Workspace(tmp_path / "w"), parse_sweep(head + options))
    assert field in caught.value.field
