"""The planner: from hours or tokens to settings with reasons."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from core.__main__ import build_parser, main
from core.architecture.architecture import Architecture
from core.architecture.family import Size
from core.backends.devices import Devices, memory_per_device
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.models.registry import count_parameters, resolve_architecture
from core.training import planner, recipe
from core.training.planner import (
    estimate_seconds,
    flops_per_token,
    flops_per_update,
    open_sizes,
    sizes_of,
    suggest,
)
from core.training.recipe import body_parameters
from core.training.sources import TrainingSources
from tests.core.training.test_trainer import make_inputs

LENGTH = 128


@dataclass
class Inputs:
    """The part of `TrainingInputs` that the planner reads."""

    architecture: Any
    train_rows: range
    row_length: int = LENGTH
    max_seq_length: int = LENGTH
    predictions_per_sequence: int = LENGTH
    documents_per_sequence: float = 0.0
    line_by_line: bool = False
    name: str = "mlm"

    @property
    def shards(self) -> Inputs:
        return self

    @property
    def epoch_length(self) -> int:
        return len(self.train_rows)

    @property
    def objective(self) -> Inputs:
        return self

    @property
    def sources(self) -> TrainingSources:
        return TrainingSources((), self.epoch_length)


def inputs_of(rows: int, family: str = "roberta") -> Mapping[Size, Any]:
    return {
        size: Inputs(architecture_of(TrainConfig(family=family, size=size)), range(rows))
        for size in sizes_of(family)
    }


def architecture_of(config: TrainConfig, vocab_size: int = 10_000) -> Architecture:
    return resolve_architecture(
        config, vocab_size=vocab_size, row_length=LENGTH, pad_id=1, eos_id=2
    )


def test_token_budget_determines_size_and_steps() -> None:
    inputs = inputs_of(10**7)
    for tokens, size in ((10**7, "tiny"), (7 * 10**7, "mini"), (2 * 10**9, "base")):
        values = suggest(TrainConfig(), inputs, tokens=tokens).values
        assert values["size"] == size
        read = values["num_train_steps"] * values["per_replica_batch_size"] * LENGTH
        assert read == pytest.approx(tokens, rel=0.01)
        assert values["num_train_steps"] >= 2000


@pytest.mark.parametrize(
    ("size", "rate", "tokens_per_step"), [("135m", 2.36e-3, 324_000), ("1.7b", 9.5e-4, 2_000_000)]
)
def test_ladder_follows_from_the_parameters(size: Size, rate: float, tokens_per_step: int) -> None:
    """SmolLM2 has 106 and 1,611 million parameters without embeddings."""
    config = TrainConfig(preset="olmo-ladder", family="llama", size=size)
    inputs = {size: Inputs(architecture_of(config), range(10**9), name="clm")}
    parameters = body_parameters(inputs[size].architecture)
    values = suggest(config, inputs, tokens=20 * parameters, replicas=4).values
    assert values["learning_rate"] == pytest.approx(rate, rel=0.01)
    assert values["per_replica_batch_size"] * 4 * LENGTH == pytest.approx(tokens_per_step, rel=0.02)
    assert values["warmup_ratio"] == pytest.approx(1 / 20, rel=0.01)
    assert values["adam_beta2"] == (0.95 if size == "1.7b" else 0.99)


def test_warm_up_of_the_ladder_is_at_most_a_tenth_and_a_set_value_wins() -> None:
    inputs = {"tiny": inputs_of(10**5, "llama")["tiny"]}
    config = TrainConfig(preset="olmo-ladder", family="llama", size="tiny")
    assert suggest(config, inputs, tokens=10**6).values["warmup_ratio"] == 0.1
    chosen = TrainConfig(
        preset="olmo-ladder", family="llama", size="tiny",
        warmup_steps=7, adam_beta2=0.9, per_replica_batch_size=4,
    )  # fmt: skip
    given = ("warmup_steps", "adam_beta2", "per_replica_batch_size")
    values = suggest(chosen, inputs, tokens=10**6, given=given).values
    assert not {"warmup_ratio", "warmup_steps", "adam_beta2"} & set(values)
    assert values["per_replica_batch_size"] == 4


def test_size_that_does_not_fit_in_memory_is_not_suggested() -> None:
    inputs, tokens = inputs_of(10**7), 2 * 10**9
    assert suggest(TrainConfig(), inputs, tokens=tokens).values["size"] == "base"
    found = suggest(TrainConfig(), inputs, tokens=tokens, memory_bytes=2**30)
    assert sizes_of("roberta").index(found.values["size"]) < sizes_of("roberta").index("base")
    assert any(
        "a single sequence with base needs more than the 1.07 GB" in one for one in found.remarks
    )
    found = suggest(TrainConfig(), inputs, tokens=tokens, memory_bytes=2**20)
    assert any("needs more than the 1.05 MB" in one for one in found.remarks)


def test_hour_budget_is_converted_to_tokens_by_the_measured_speed() -> None:
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


def test_small_batches_take_longer_because_of_their_updates() -> None:
    inputs = inputs_of(1000)["tiny"]
    small, large = (
        estimate_seconds(config, inputs, recipe.plan(config, 1000, LENGTH, replicas=1), 1e12)
        for config in (
            TrainConfig(size="tiny", num_train_epochs=10, per_replica_batch_size=batch)
            for batch in (8, 64)
        )
    )
    assert 1.1 * large < small < 3 * large
    adam = TrainConfig(size="tiny", optimizer="adamw")
    assert flops_per_update(adam, inputs.architecture) == 0


def test_flops_per_token_are_six_per_parameter_plus_attention() -> None:
    inputs = inputs_of(1000)["base"]
    parameters = count_parameters(inputs.architecture)
    body = parameters - (10_000 + inputs.architecture.max_position_embeddings) * 768
    needed = flops_per_token(TrainConfig(), inputs)
    assert 6 * body < needed < 6 * parameters + 12 * 12 * 768 * LENGTH
    assert needed < flops_per_token(TrainConfig(mlm_probability=0.6), inputs)


def test_small_corpus_is_read_for_at_most_40_epochs() -> None:
    found = suggest(TrainConfig(), inputs_of(1000), tokens=10**9)
    read = found.values["num_train_steps"] * found.values["per_replica_batch_size"]
    assert read <= 40 * 1000
    assert (found.values["hidden_dropout_prob"], found.values["weight_decay"]) == (0.05, 0.3)
    assert any("more text helps" in remark for remark in found.remarks)


def test_size_follows_from_the_tokens_that_are_read() -> None:
    found = suggest(TrainConfig(), inputs_of(1000), tokens=10**9)
    assert found.values["size"] == "tiny"
    assert "It trains on 5,120,000 tokens, 40 epochs of the text: " in found.reasons["size"]


@pytest.mark.parametrize("family", ["roberta", "modernbert", "gpt2", "t5", "bart"])
@pytest.mark.parametrize("positions", [None, 8192])
def test_embeddings_do_not_count_asbody_parameters(family: str, positions: int | None) -> None:
    config = TrainConfig(family=family, size="base", max_position_embeddings=positions)
    one, other = (
        body_parameters(architecture_of(config, vocab_size)) for vocab_size in (10_000, 50_000)
    )
    assert other - one in (0, 40_000)  # the head's bias
    without = architecture_of(config.model_copy(update={"max_position_embeddings": None}))
    assert one == body_parameters(without) > 50_000_000


def test_encoder_and_decoder_flops_count_their_own_tokens() -> None:
    architecture = inputs_of(10, "t5")["base"].architecture
    whole, fewer_targets, fewer_inputs = (
        flops_per_token(TrainConfig(family="t5"), Inputs(architecture, range(10), LENGTH, *lengths))
        for lengths in ((LENGTH, LENGTH), (LENGTH, LENGTH // 4), (LENGTH // 4, LENGTH))
    )
    both = 6 * (body_parameters(architecture) + 10_000 * 768)
    assert both < whole < 1.1 * both
    assert 0.25 * whole < fewer_targets < fewer_inputs < whole  # The decoder is larger.
    assert fewer_targets + fewer_inputs == pytest.approx(1.25 * whole, rel=0.01)


def test_batch_size_is_at_most_the_number_of_sequences() -> None:
    assert suggest(TrainConfig(), inputs_of(5), tokens=5000).values["per_replica_batch_size"] == 5


@pytest.mark.parametrize(("replicas", "accumulated"), [(8, 1), (1, 8), (3, 2), (512, 1)])
def test_global_batch_is_divided_by_replicas_and_accumulation(
    replicas: int, accumulated: int
) -> None:
    inputs, config = inputs_of(10**7), TrainConfig(gradient_accumulation_steps=accumulated)
    budget = {"hours": 2.0, "flops": 1e13}
    found = suggest(config, inputs, **budget, replicas=replicas)
    asked = config.model_copy(update=found.values)
    made = recipe.plan(asked, 10**7, LENGTH, replicas=replicas)
    seconds = estimate_seconds(asked, inputs[asked.size], made, 1e13, replicas)
    assert 0.9 * 7200 < seconds <= 7200
    assert f"{made.tokens_per_step:,}" in found.reasons["num_train_steps"]
    assert (
        f"A step trains on {made.global_batch_size} sequences: "
        in found.reasons["per_replica_batch_size"]
    )
    alone = suggest(TrainConfig(), inputs, **budget).values["per_replica_batch_size"]
    assert made.global_batch_size <= max(alone, replicas * accumulated)


def test_batch_too_large_for_memory_is_accumulated() -> None:
    inputs, config = inputs_of(10**7), TrainConfig()
    budget = {"hours": 2.0, "flops": 1e13}
    ample, scarce = (
        suggest(config, inputs, **budget, memory_bytes=gibibytes * 2**30) for gibibytes in (1000, 4)
    )
    assert "gradient_accumulation_steps" not in ample.values
    assert "4.29 GB" in scarce.reasons["gradient_accumulation_steps"]
    asked = config.model_copy(update=scarce.values)
    assert asked.num_train_steps == ample.values["num_train_steps"]
    rows = asked.per_replica_batch_size * asked.gradient_accumulation_steps
    assert rows == ample.values["per_replica_batch_size"]
    architecture = inputs[asked.size].architecture
    parameters = count_parameters(architecture)
    assert 2**31 < recipe.estimate_memory_bytes(architecture, parameters, asked, LENGTH) < 2**32


@pytest.mark.parametrize(("kind", "of_one"), [("cpu", 250), ("gpu", 1000)])
def test_devices_of_one_cpu_share_its_memory(kind: Literal["cpu", "gpu"], of_one: int) -> None:
    assert memory_per_device(Devices("jax", kind, 8, "", 1000, "", processes=2)) == of_one


def test_larger_models_have_a_lower_learning_rate() -> None:
    inputs = inputs_of(10**7)
    rates = [
        suggest(TrainConfig(), inputs, tokens=tokens).values["learning_rate"]
        for tokens in (10**7, 10**10)
    ]
    assert rates[0] == pytest.approx(1.2e-2) and rates[0] > rates[1]


@pytest.mark.parametrize("budget", [{}, {"hours": 1.0, "tokens": 5}])
def test_budget_must_be_either_hours_or_tokens(budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a budget in hours, tokens or dollars"):
        suggest(TrainConfig(), inputs_of(10), **budget)


def test_budget_of_more_than_a_century_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1,000,000 hours"):
        suggest(TrainConfig(), inputs_of(10), hours=1e300, flops=1e12)


@pytest.mark.parametrize("budget", [{"hours": 1e-9, "flops": 1e12}, {"tokens": 3}])
def test_budget_of_less_than_a_step_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"smaller than one training step.*at least 128 tokens"):
        suggest(TrainConfig(), inputs_of(10), **budget)


def test_small_budget_is_not_exceeded() -> None:
    values = suggest(TrainConfig(), inputs_of(10), tokens=3 * LENGTH).values
    assert (values["per_replica_batch_size"], values["num_train_steps"]) == (3, 1)


@pytest.mark.parametrize(("rows", "replicas"), [(0, 1), (5, 2)])
def test_too_few_sequences_for_a_step_are_refused_with_the_trainers_error(
    rows: int, replicas: int
) -> None:
    config = TrainConfig(gradient_accumulation_steps=4, per_replica_batch_size=1)
    with pytest.raises(ConfigError) as refused:
        recipe.plan(config, rows, LENGTH, replicas)
    with pytest.raises(ConfigError) as error:
        suggest(config, inputs_of(rows), tokens=10**6, replicas=replicas)
    assert str(error.value) == str(refused.value)


def test_warmup_steps_of_a_preset_are_scaled_to_the_run() -> None:
    config, inputs = TrainConfig(preset="flax"), inputs_of(10**7)
    found = suggest(config, inputs, tokens=10**7)
    assert found.values["warmup_steps"] == round(0.05 * found.values["num_train_steps"])
    assert "1,000" in found.reasons["warmup_steps"]
    kept = suggest(config, inputs, tokens=10**7, given={"warmup_steps"})
    assert "warmup_steps" not in kept.values
    assert "warmup_steps" not in suggest(config, inputs, tokens=10**10).values


@pytest.mark.parametrize(
    ("documents", "name", "is_suggested"),
    [(3.4, "mlm", True), (1.5, "mlm", False), (3.4, "clm", False)],
)
def test_short_documents_are_separated(documents: float, name: str, is_suggested: bool) -> None:
    inputs = {
        size: replace(one, documents_per_sequence=documents, name=name)
        for size, one in inputs_of(1000).items()
    }
    found = suggest(TrainConfig(), inputs, tokens=10**9)
    assert found.values.get("intra_document_masking", False) is is_suggested
    kept = suggest(TrainConfig(intra_document_masking=True), inputs, tokens=10**9)
    assert "intra_document_masking" not in kept.values


def test_higher_dropout_and_a_weight_decay_that_is_set_are_kept() -> None:
    config = TrainConfig(hidden_dropout_prob=0.3, weight_decay=0.02)
    values = suggest(config, inputs_of(1000), tokens=10**9).values
    assert "hidden_dropout_prob" not in values and values["attention_probs_dropout_prob"] == 0.05
    assert "weight_decay" not in values
    values = suggest(TrainConfig(weight_decay=0.0), inputs_of(1000), tokens=10**9).values
    assert "weight_decay" not in values


def test_starting_checkpoint_determines_the_size() -> None:
    inputs = {"mini": inputs_of(10**6)["base"]}
    found = suggest(TrainConfig(checkpoint="mine"), inputs, tokens=10**8)
    assert "size" not in found.values | found.reasons
    assert found.values["learning_rate"] < 1.2e-2  # The peak learning rate for its hidden size.
    assert any("non-embedding parameters" in remark for remark in found.remarks)


@pytest.mark.parametrize(("kind", "times"), [("cpu", 2), ("gpu", 8)])
def test_devices_of_one_cpu_share_its_cores(
    kind: Literal["cpu", "gpu"], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = Devices("jax", kind, 8, "", None, "", processes=2)
    monkeypatch.setattr(planner, "select_backend", lambda config: eight)
    monkeypatch.setattr(planner, "_time_matmul", lambda side, dtype: float(side**3))
    flops, _ = planner.measure_speed(TrainConfig(dtype_policy="float32"))
    assert flops == pytest.approx(0.8 * times)


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart", "modernbert"])
def test_every_family_has_a_suggestion(family: str) -> None:
    found = suggest(TrainConfig(family=family), inputs_of(10**6, family), tokens=10**8)
    assert TrainConfig(family=family, **found.values).num_train_steps
    assert found.reasons.keys() == found.values.keys()


@pytest.mark.parametrize("typed", ["500.000", "1.5", "0", "many", "inf"])
def test_cli_accepts_only_whole_numbers_of_tokens(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["suggest", "--tokens", typed])
    assert "--tokens" in capsys.readouterr().err
    assert build_parser().parse_args(["suggest", "--tokens", "1.5e8"]).tokens == 150_000_000


def test_cli_prints_reasons_and_the_train_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_inputs(tmp_path)
    command = ["suggest", "--workspace", str(workspace.root), "--shards", "rows"]
    assert main([*command, "--tokens", "2e5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["values"]["size"] == "tiny" and said["reasons"]["size"]
    assert said["command"].endswith(shlex.join(["--workspace", str(workspace.root)]))
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


def test_default_workspace_is_omitted_from_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUDIO_HOME", str(make_inputs(tmp_path).root))
    assert main(["suggest", "--shards", "rows", "--tokens", "2e5", "--json"]) == 0
    assert "--workspace" not in json.loads(capsys.readouterr().out)["command"]


def test_sizes_excluded_by_the_settings_are_omitted(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path)
    config = TrainConfig(shards="rows", num_attention_heads=12)
    assert list(open_sizes(config, workspace)) == ["base"]
    with pytest.raises(ConfigError, match="num_attention_heads 7 doesn't divide"):
        open_sizes(config.model_copy(update={"num_attention_heads": 7}), workspace)
    with pytest.raises(ConfigError, match="missing"):
        open_sizes(TrainConfig(shards="missing"), workspace)
    described = tmp_path / "config.json"
    values = {"model_type": "roberta", "vocab_size": 64, "hidden_size": 48}
    values |= {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    described.write_text(json.dumps({**values, "max_position_embeddings": 64}))
    named = TrainConfig(shards="rows", model_config_path=str(described))
    [only] = open_sizes(named, workspace).values()
    assert only.architecture.hidden_size == 48
