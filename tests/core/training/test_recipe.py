"""The plan of a run and its learning-rate schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.architecture.architecture import Architecture
from core.backends.schedule import LearningRateSchedule
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.families.roberta import RobertaArchitecture
from core.models.registry import resolve_architecture
from core.training import recipe
from core.training.resume import resumed_plan


def _config(**values: object) -> TrainConfig:
    return TrainConfig(preset="custom", **values)


def test_epoch_has_as_many_full_batches_as_the_sequences_fill() -> None:
    plan = recipe.plan(_config(per_replica_batch_size=8, num_train_epochs=2), 101, 64)
    assert plan.num_train_steps == 25
    assert plan.tokens_per_step == 8 * 64
    assert plan.total_tokens == 25 * 8 * 64
    assert plan.num_train_epochs == pytest.approx(200 / 101)


def test_steps_override_epochs() -> None:
    plan = recipe.plan(_config(num_train_steps=7, num_train_epochs=50), 100, 64)
    assert plan.num_train_steps == 7


def test_global_batch_is_divided_among_the_replicas() -> None:
    plan = recipe.plan(_config(per_replica_batch_size=4, num_train_epochs=1), 64, 16, replicas=8)
    assert (plan.global_batch_size, plan.num_train_steps) == (32, 2)


def test_intervals_are_derived_and_never_zero() -> None:
    long = recipe.plan(_config(num_train_steps=4000), 100, 64)
    assert (long.eval_steps, long.save_steps, long.logging_steps) == (200, 200, 20)
    short = recipe.plan(_config(num_train_steps=3), 100, 64)
    assert (short.eval_steps, short.save_steps, short.logging_steps) == (1, 1, 1)


def test_intervals_are_multiples_of_steps_per_execution() -> None:
    plan = recipe.plan(_config(num_train_steps=1000, steps_per_execution=8), 10**6, 64)
    assert [plan.logging_steps, plan.save_steps, plan.eval_steps] == [8, 48, 48]
    assert recipe.plan(_config(num_train_steps=1000), 10**6, 64).logging_steps == 5


def test_explicit_intervals_override_the_derived_ones() -> None:
    config = _config(num_train_steps=100, eval_steps=50, logging_steps=7)
    plan = recipe.plan(config, 100, 64)
    assert (plan.eval_steps, plan.save_steps, plan.logging_steps) == (50, 50, 7)


def test_validation_takes_a_tenth_of_the_time_for_any_division_of_the_batch() -> None:
    config = _config(per_replica_batch_size=32, num_train_epochs=1)
    parts = _config(
        per_replica_batch_size=32, num_train_epochs=1, gradient_accumulation_steps=8,
        per_replica_eval_batch_size=1024,
    )  # fmt: skip
    for plan in (
        recipe.plan(config, 200_000, 64, replicas=8, validation_rows=10_000),
        recipe.plan(parts, 200_000, 64, validation_rows=10_000),
    ):
        assert plan.num_train_steps == 781
        # A forward pass costs a third of a training step: 10,000 validation sequences against ten
        # times a third of them in training.
        assert plan.eval_steps * 256 * 3 >= 10 * 10_000 > (plan.eval_steps - 39) * 256 * 3


def test_checkpoints_are_frequent_even_if_validations_are_rare() -> None:
    plan = recipe.plan(_config(num_train_steps=1000), 64_000, 64, validation_rows=2000)
    assert plan.save_steps == 50 < plan.eval_steps
    assert plan.eval_steps % plan.save_steps == 0
    short = recipe.plan(_config(num_train_steps=100), 64_000, 64, validation_rows=10**6)
    assert (short.eval_steps, short.save_steps) == (100, 5)


@pytest.mark.parametrize(
    ("save_steps", "more", "eval_steps"),
    [
        (1000, {}, 500),  # Validations every 391 steps would never coincide with a checkpoint.
        (997, {}, 997),  # A prime.
        (300, {}, 600),
        (99_991, {}, 391),  # Saves only at the end, which has a validation, too.
        (1000, {"steps_per_execution": 8}, 1000),
    ],
)
def test_validations_coincide_with_the_requested_checkpoints(
    save_steps: int, more: dict[str, int], eval_steps: int
) -> None:
    plan = recipe.plan(_config(num_train_steps=7813, save_steps=save_steps, **more), 10**6, 64)
    assert (plan.save_steps, plan.eval_steps) == (save_steps, eval_steps)


def test_extended_run_pauses_less_often() -> None:
    open_config = _config(num_train_steps=200, num_train_epochs=1.0)
    short = recipe.plan(open_config, 6400, 64)
    longer = resumed_plan(_config(num_train_steps=2000, num_train_epochs=1.0), short, 200)
    names = ("eval_steps", "save_steps", "logging_steps")
    assert all(getattr(longer, name) == 10 * getattr(short, name) for name in names)
    set_ones = {"num_train_steps": 2000, "num_train_epochs": 1.0, "save_steps": 7}
    chosen = resumed_plan(_config(**set_ones), short, 200)
    assert (chosen.eval_steps, chosen.save_steps) == (short.eval_steps, 7)
    again = resumed_plan(open_config.model_copy(update={"num_train_steps": 2000}), longer, 300)
    assert again == longer


@pytest.mark.parametrize(
    ("rows", "accumulated", "batch", "devices", "room", "parts"),
    [
        (8, 1, 8, 1, 0, 1),
        (8, 4, 64, 2, 0, 4),
        (32, 1, 256, 1, 0, 8),  # Planned for 8 devices, resumed on one.
        (32, 1, 256, 1, 100, 4),
        (32, 1, 256, 1, 256, 1),
        (32, 1, 256, 3, 0, 1),  # Not divisible: refused as configured.
        (8, 4, 32, 16, 0, 1),  # Planned for one device, resumed on 16.
        (8, 4, 48, 4, 0, 4),
        (8, 1, 40, 2, 0, 4),
    ],
)
def test_micro_batch_fits_in_memory_when_resumed_on_other_devices(
    rows: int, accumulated: int, batch: int, devices: int, room: int, parts: int
) -> None:
    config = _config(per_replica_batch_size=rows, gradient_accumulation_steps=accumulated)
    found = recipe.accumulation_steps(config, batch, devices, lambda rows: rows <= room)
    assert found == parts


def test_max_train_examples_limits_the_sequences() -> None:
    plan = recipe.plan(_config(max_train_examples=40, per_replica_batch_size=8), 1000, 64)
    assert (plan.train_rows, plan.num_train_steps) == (40, 5)


def test_fewer_sequences_than_a_batch_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        ConfigError, match=r"at least 64.*5 training sequences.*at most 5"
    ) as raised:
        recipe.plan(_config(per_replica_batch_size=64), 5, 64)
    assert raised.value.field == "per_replica_batch_size"
    accumulated = _config(per_replica_batch_size=32, gradient_accumulation_steps=8)
    with pytest.raises(ConfigError, match=r"at least 256.*32, accumulated 8 times.*at most 25"):
        recipe.plan(accumulated, 200, 64)
    with pytest.raises(ConfigError, match="lower gradient_accumulation_steps"):
        recipe.plan(accumulated, 7, 64)


def test_linear_schedule_rises_from_zero_and_falls_to_zero() -> None:
    schedule = LearningRateSchedule("linear", peak=1.0, warmup_steps=10, num_train_steps=110)
    assert [schedule.at(step) for step in (0, 5, 10, 60, 110)] == [0, 0.5, 1, 0.5, 0]


def test_cosine_schedule_is_half_at_its_middle_and_constant_schedule_is_constant() -> None:
    cosine = LearningRateSchedule("cosine", peak=2.0, warmup_steps=0, num_train_steps=100)
    assert cosine.at(50) == pytest.approx(1.0)
    assert cosine.at(100) == pytest.approx(0.0)
    constant = LearningRateSchedule("constant", peak=2.0, warmup_steps=4, num_train_steps=100)
    assert [constant.at(step) for step in (1, 4, 99)] == [0.5, 2, 2]


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_schedule_matches_transformers(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    name = "constant_with_warmup" if kind == "constant" else kind
    reference = get_scheduler(name, optimizer, num_warmup_steps=7, num_training_steps=50)
    schedule = LearningRateSchedule(kind, peak=0.3, warmup_steps=7, num_train_steps=50)
    for step in range(50):
        assert schedule.at(step) == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        reference.step()


def test_warmup_stable_decay_matches_transformers() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    from transformers.optimization import get_wsd_schedule

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    reference = get_wsd_schedule(
        optimizer, 10, num_training_steps=50, num_decay_steps=10, decay_type="linear"
    )
    schedule = LearningRateSchedule("warmup_stable_decay", 0.3, 10, 50, decay_ratio=0.25)
    for step in range(50):
        assert schedule.at(step) == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        reference.step()


def test_extended_stable_schedule_stays_at_its_peak() -> None:
    config = _config(lr_scheduler_type="warmup_stable_decay", num_train_steps=100, warmup_steps=10)
    longer = recipe.extend(config, recipe.plan(config, 100, 64), 60, 200)
    schedule = recipe.learning_rate_schedule(config, longer)
    assert schedule.at(60) == schedule.at(171) == config.learning_rate
    assert schedule.at(200) == 0 < schedule.at(190) < config.learning_rate


def test_extended_stable_schedule_returns_to_its_peak_after_decay() -> None:
    config = _config(lr_scheduler_type="warmup_stable_decay", num_train_steps=100, warmup_steps=10)
    for stopped_at in (95, 100):
        longer = recipe.extend(config, recipe.plan(config, 100, 64), stopped_at, 200)
        schedule = recipe.learning_rate_schedule(config, longer)
        assert schedule.at(stopped_at) == schedule.at(171) == config.learning_rate, stopped_at
        assert schedule.at(200) == 0


def test_warmup_steps_override_the_ratio() -> None:
    both = _config(num_train_steps=100, warmup_ratio=0.5, warmup_steps=3)
    assert recipe.plan(both, 100, 64).warmup_steps == 3
    ratio = _config(num_train_steps=100, warmup_ratio=0.5)
    assert recipe.plan(ratio, 100, 64).warmup_steps == 50


@pytest.mark.parametrize(
    ("values", "width", "rate"),
    [
        ({}, 128, 1.2e-2),
        ({}, 256, 7.5e-3),
        ({}, 1024, 1.875e-3),
        ({"family": "bert"}, 256, 7.5e-3),
        ({"family": "modernbert"}, 256, 5e-3),
        ({"family": "gpt2"}, 256, 1e-2),
        ({"family": "bart"}, 128, 1.6e-2),
        ({"family": "t5"}, 512, 1.25e-3),
        ({"family": "t5", "optimizer": "adamw"}, 256, 1e-3),
        ({"optimizer": "adamw"}, 256, 1e-3),
        ({"optimizer": "adamw"}, 512, 5e-4),
        ({"optimizer": "adafactor"}, 1024, 5e-3),
        ({"learning_rate": 0.1}, 1024, 0.1),
        ({"preset": "classic"}, 1024, 1e-4),
    ],
)
def test_default_learning_rate_follows_from_optimizer_family_and_hidden_size(
    values: dict[str, Any], width: int, rate: float
) -> None:
    config = TrainConfig(**values, hidden_size=width)
    settled = recipe.resolve_learning_rate(config, _architecture(config))
    assert settled.learning_rate == pytest.approx(rate)
    assert recipe.resolve_learning_rate(config, _architecture(config), 128) == settled
    small = recipe.resolve_learning_rate(config, _architecture(config), 8).learning_rate
    is_scaled = config.optimizer == "muon" and "learning_rate" not in values
    assert small == pytest.approx(rate / 8**0.5 if is_scaled else rate)
    wider = config.model_copy(update={"hidden_size": 4 * width})
    assert recipe.resolve_learning_rate(settled, _architecture(wider)) == settled


def _architecture(config: TrainConfig) -> Architecture:
    return resolve_architecture(config, vocab_size=64, row_length=32, pad_id=0, bos_id=1, eos_id=2)


def test_classic_preset_has_the_schedule_of_the_tpu_script() -> None:
    config = TrainConfig(preset="classic", num_train_steps=1000)
    plan = recipe.plan(config, 100_000, 512, replicas=8)
    assert (plan.global_batch_size, plan.warmup_steps) == (64, 50)
    assert recipe.learning_rate_schedule(config, plan).at(50) == pytest.approx(1e-4)


def test_memory_estimate_grows_with_length_and_shrinks_with_bfloat16() -> None:
    architecture = RobertaArchitecture(1000, 64, 2, 2, 256, 80, 1)
    small = recipe.estimate_memory_bytes(architecture, 10**6, _config(), 64)
    longer = recipe.estimate_memory_bytes(architecture, 10**6, _config(), 128)
    half = _config(dtype_policy="mixed_bfloat16")
    assert 16 * 10**6 < small < longer
    assert recipe.estimate_memory_bytes(architecture, 10**6, half, 64) < small
    assert isinstance(small, int) and np.isfinite(small)


def test_run_that_often_repeats_its_text_without_dropout_is_advised_to_use_it() -> None:
    config = _config(size="tiny", num_train_epochs=17.3, per_replica_batch_size=8)
    architecture = _architecture(config)

    def hint(config: TrainConfig, rows: int) -> str:
        return recipe.dropout_hint(config, recipe.plan(config, rows, 64), architecture)

    assert "17.3 times" in hint(config, 1000)
    assert not hint(config, 100_000)
    assert not hint(config.model_copy(update={"num_train_epochs": 15.0}), 1000)
    assert not hint(config.model_copy(update={"hidden_dropout_prob": 0.1}), 1000)
