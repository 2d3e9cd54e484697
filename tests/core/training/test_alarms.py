"""Alarms: raised once per incident, and reset afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.errors import MissingDataError, ShardError
from core.objectives.clm import CausalLanguageModel
from core.objectives.denoising import Denoising
from core.records.events import Reporter
from core.training.alarms import LossAlarm, OverfittingAlarm, StallAlarm
from core.training.batches import BatchMaker, EvalBatches, TolerantSequences, TrainBatches


class Listener(Reporter):
    """Keeps the alerts."""

    def __init__(self) -> None:
        self.alerts: list[Any] = []

    def warn(self, message: str, **fields: Any) -> None:
        self.alerts.append(fields.get("alert"))


class Clock:
    """A clock that the tests set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_loss_spike_is_reported_once_until_the_loss_recovers() -> None:
    listener = Listener()
    alarm = LossAlarm(listener)
    for step, loss in enumerate([5.1, 5.0, 5.05, 4.95, 5.0, 4.9, 8.0, 8.5, 4.9, 4.8, 9.0]):
        alarm.observe(step, loss)
    assert listener.alerts == ["loss_spike", "loss_spike"]


def test_noise_and_a_falling_loss_are_no_spike() -> None:
    listener = Listener()
    alarm = LossAlarm(listener)
    noise = np.random.default_rng(0).normal(0, 0.2, 200)
    for step in range(200):
        alarm.observe(step, 9 * 0.99**step + noise[step])
    assert listener.alerts == []


def test_stalled_step_is_reported_once_until_a_step_ends() -> None:
    listener, clock = Listener(), Clock()
    alarm = StallAlarm(listener, quiet_seconds=10, clock=clock)
    for _ in range(3):
        clock.seconds += 0.1
        alarm.beat()
    for passed in (9, 2, 2):
        clock.seconds += passed
        alarm.look()
    assert listener.alerts == ["stalled"]
    alarm.beat()
    clock.seconds += 11
    alarm.look()
    assert listener.alerts == ["stalled", "stalled"]


def test_long_steps_and_compilation_are_not_stalls() -> None:
    listener, clock = Listener(), Clock()
    alarm = StallAlarm(listener, quiet_seconds=10, clock=clock)
    clock.seconds = 1000
    alarm.look()
    for _ in range(60):
        clock.seconds += 8
        alarm.beat()
    clock.seconds += 100
    alarm.look()
    alarm.rest()
    clock.seconds += 10_000
    alarm.look()
    assert listener.alerts == []


def test_permanently_slow_steps_are_not_reported_forever() -> None:
    listener, clock = Listener(), Clock()
    alarm = StallAlarm(listener, quiet_seconds=10, clock=clock)
    for _ in range(20):
        alarm.beat()
        clock.seconds += 15
        alarm.look()
    assert listener.alerts == ["stalled", "stalled"]


def test_alarm_thread_ends_with_its_context() -> None:
    with StallAlarm(Listener()) as alarm:
        alarm.beat()
    assert not alarm._thread.is_alive()


class Damaged:
    """Sequences of which one cannot be read."""

    row_length = 4

    def __len__(self) -> int:
        return 6

    def take(self, indices: Any) -> Any:
        if 3 in indices:
            raise ShardError("record 3 is damaged")
        return np.repeat(np.asarray(indices)[:, None], 4, axis=1).astype(np.int32)


def test_damaged_sequence_is_skipped_and_reported_once() -> None:
    said: list[tuple[int, str]] = []
    rows = TolerantSequences(Damaged(), 99, lambda count, problem: said.append((count, problem)))
    for _ in range(2):
        taken = rows.take(np.array([1, 3, 5]))
        assert taken[:, 0].tolist() == [1, 99, 5]
    assert said == [(1, "record 3 is damaged.")]


@pytest.mark.parametrize(
    "objective",
    [
        CausalLanguageModel(4, 100),
        Denoising(
            4, 100, np.array([97, 98, 99], np.int32), mask_id=97, pad_id=98, eos_id=99,
            decoder_start_id=99,
        ),
    ],
    ids=lambda objective: objective.name,
)  # fmt: skip
def test_damaged_sequence_has_zero_label_weights(objective: BatchMaker) -> None:
    rows = TolerantSequences(Damaged(), 99, lambda *_: None)
    batches = TrainBatches(rows, objective, batch_size=6, seed=0)
    is_damaged = batches.sequence_indices(range(1, 2)) == 3
    counts = batches(1)["label_weights"].any(axis=1)
    assert counts.tolist() == (~is_damaged).tolist()
    validated = EvalBatches(rows, objective, batch_size=4)(0)["label_weights"]
    assert validated.any(axis=1).tolist() == [True, True, True, False]


def test_missing_file_is_not_treated_as_a_damaged_record() -> None:
    class Gone(Damaged):
        def take(self, indices: Any) -> Any:
            raise MissingDataError("the disk is gone")

    rows = TolerantSequences(Gone(), 99, lambda *_: pytest.fail("it can't be gone on from"))
    with pytest.raises(MissingDataError, match="the disk is gone"):
        rows.take(np.array([0, 1]))


@pytest.mark.parametrize("indices", [[0, 1], [5]])
def test_undamaged_sequences_are_unchanged(indices: list[int]) -> None:
    rows = TolerantSequences(Damaged(), 99, lambda *_: pytest.fail("nothing is damaged"))
    assert rows.take(np.array(indices))[:, 0].tolist() == indices


def test_overfitting_is_reported_once_until_the_validation_loss_improves() -> None:
    listener = Listener()
    alarm = OverfittingAlarm(listener)
    losses = [(3.0, 3.1), (2.5, 2.4), (2.6, 2.2), (2.7, 2.0), (2.8, 1.8), (2.9, 1.7)]
    for step, (eval_loss, loss) in enumerate(losses):
        alarm.observe(step, eval_loss, loss)
    assert listener.alerts == ["overfitting"]
    for step, (eval_loss, loss) in enumerate([(2.4, 1.6), (2.6, 1.5), (2.6, 1.4), (2.6, 1.3)]):
        alarm.observe(10 + step, eval_loss, loss)
    assert listener.alerts == ["overfitting", "overfitting"]


def test_noise_and_a_diverging_run_are_no_overfitting() -> None:
    listener = Listener()
    alarm = OverfittingAlarm(listener)
    for step, (eval_loss, loss) in enumerate([(2.5, 2.4), (2.51, 2.2), (2.51, 2.1), (2.51, 2.0)]):
        alarm.observe(step, eval_loss, loss)
    for step, loss in enumerate((3.0, 4.0, 5.0, 6.0)):
        alarm.observe(10 + step, loss, loss)
    assert listener.alerts == []
