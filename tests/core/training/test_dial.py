"""From hours or tokens to settings, with their reasons."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import build_parser, main
from core.config import Size, TrainConfig
from core.errors import ConfigError
from core.models.registry import count_parameters, resolve_architecture
from core.training import recipe
from core.training.dial import flops_per_token, sizes_of, suggest
from tests.core.training.test_trainer import make_inputs

LENGTH = 128


@dataclass
class Inputs:
    """As much of `TrainingInputs` as the dial looks at."""

    architecture: Any
    train_rows: range
    row_length: int = LENGTH

    @property
    def shards(self) -> Inputs:
        return self


def inputs_of(rows: int, family: str = "roberta") -> Mapping[Size, Any]:
    return {
        size: Inputs(
            resolve_architecture(
                TrainConfig(family=family, size=size),
                vocab_size=10_000,
                row_length=LENGTH,
                pad_id=1,
                eos_id=2,
            ),
            range(rows),
        )
        for size in sizes_of(family)
    }


def test_tokens_decide_on_the_size_and_the_steps() -> None:
    inputs = inputs_of(10**7)
    for tokens, size in ((10**7, "tiny"), (7 * 10**7, "mini"), (2 * 10**9, "base")):
        values = suggest(TrainConfig(), inputs, tokens=tokens).values
        assert values["size"] == size
        read = values["num_train_steps"] * values["per_replica_batch_size"] * LENGTH
        assert read == pytest.approx(tokens, rel=0.01)
        assert values["num_train_steps"] >= 2000


def test_hours_are_worth_the_tokens_that_the_speed_makes_of_them() -> None:
    inputs = inputs_of(10**7)
    short, long = (
        suggest(TrainConfig(), inputs, hours=hours, flops=1e12).values for hours in (0.01, 10.0)
    )
    sizes = sizes_of("roberta")
    assert sizes.index(short["size"]) < sizes.index(long["size"])
    found = inputs[long["size"]]
    read = long["num_train_steps"] * long["per_replica_batch_size"] * LENGTH
    seconds = read * flops_per_token(TrainConfig(), found) / 1e12
    assert 0.8 * 36_000 < seconds < 36_000


def test_operations_are_six_for_each_weight_and_more() -> None:
    inputs = inputs_of(1000)["base"]
    parameters = count_parameters(inputs.architecture)
    body = parameters - (10_000 + inputs.architecture.max_position_embeddings) * 768
    needed = flops_per_token(TrainConfig(), inputs)
    assert 6 * body < needed < 6 * parameters + 12 * 12 * 768 * LENGTH
    assert needed < flops_per_token(TrainConfig(mlm_probability=0.6), inputs)


def test_a_small_text_is_not_read_for_ever() -> None:
    found = suggest(TrainConfig(), inputs_of(1000), tokens=10**9)
    read = found.values["num_train_steps"] * found.values["per_replica_batch_size"]
    assert read <= 40 * 1000
    assert found.values["hidden_dropout_prob"] == 0.1
    assert any("more text would help" in remark for remark in found.remarks)


def test_a_batch_is_never_more_than_there_is() -> None:
    assert suggest(TrainConfig(), inputs_of(5), tokens=5000).values["per_replica_batch_size"] == 5


@pytest.mark.parametrize(("replicas", "accumulated"), [(8, 1), (1, 8), (3, 2), (512, 1)])
def test_what_a_step_reads_is_shared_by_devices_and_accumulation(
    replicas: int, accumulated: int
) -> None:
    inputs, config = inputs_of(10**7), TrainConfig(gradient_accumulation_steps=accumulated)
    budget = {"hours": 2.0, "flops": 1e13}
    found = suggest(config, inputs, **budget, replicas=replicas)
    asked = config.model_copy(update=found.values)
    made = recipe.plan(asked, 10**7, LENGTH, replicas=replicas)
    seconds = made.total_tokens * flops_per_token(asked, inputs[asked.size]) / 1e13
    assert 0.8 * 7200 < seconds < 7200
    assert f"{made.tokens_per_step:,}" in found.reasons["num_train_steps"]
    assert f"A step reads {made.global_batch_size}: " in found.reasons["per_replica_batch_size"]
    alone = suggest(TrainConfig(), inputs, **budget).values["per_replica_batch_size"]
    assert made.global_batch_size <= max(alone, replicas * accumulated)


def test_wider_models_take_a_lower_rate() -> None:
    inputs = inputs_of(10**7)
    rates = [
        suggest(TrainConfig(), inputs, tokens=tokens).values["learning_rate"]
        for tokens in (10**7, 10**10)
    ]
    assert rates[0] == 8e-3 > rates[1]


@pytest.mark.parametrize("budget", [{}, {"hours": 1.0, "tokens": 5}])
def test_it_turns_by_one_thing(budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="either the hours or the tokens"):
        suggest(TrainConfig(), inputs_of(10), **budget)


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart", "modernbert"])
def test_every_family_has_a_suggestion(family: str) -> None:
    found = suggest(TrainConfig(family=family), inputs_of(10**6, family), tokens=10**8)
    assert TrainConfig(family=family, **found.values).num_train_steps
    assert found.reasons.keys() == found.values.keys()


@pytest.mark.parametrize("typed", ["500.000", "1.5", "0", "many", "inf"])
def test_the_shell_takes_whole_tokens_alone(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["suggest", "--tokens", typed])
    assert "--tokens" in capsys.readouterr().err
    assert build_parser().parse_args(["suggest", "--tokens", "1.5e8"]).tokens == 150_000_000


def test_the_shell_says_why_and_gives_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_inputs(tmp_path)
    command = ["suggest", "--workspace", str(workspace.root), "--shards", "rows"]
    assert main([*command, "--tokens", "2e5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["values"]["size"] == "tiny" and said["reasons"]["size"]
    words = shlex.split(said["command"])
    assert words[:4] == ["python", "-m", "core", "train"]
    assert words[words.index("--num-train-steps") + 1] == str(said["values"]["num_train_steps"])
    assert main([*command, "--tokens", "2e5"]) == 0
    assert said["command"] in capsys.readouterr().out
    shared = [*command, "--tokens", "2e5", "--device", "cpu", "--num-devices", "4", "--json"]
    assert main(shared) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert 4 * values["per_replica_batch_size"] == said["values"]["per_replica_batch_size"]
    assert values["num_train_steps"] == said["values"]["num_train_steps"]
