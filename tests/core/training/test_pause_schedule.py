"""Tests of the steps at which a run pauses."""

from __future__ import annotations

from core.training.pause_schedule import PauseSchedule
from core.training.recipe import Plan

PLAN = Plan(
    num_train_steps=25, num_train_epochs=1.0, train_rows=100, row_length=8, global_batch_size=4,
    warmup_steps=2, eval_steps=10, save_steps=5, logging_steps=5,
)  # fmt: skip


def schedule(begun_at: int = 0) -> PauseSchedule:
    return PauseSchedule(
        PLAN, begun_at, validates_first=False, evaluate_every=10, marks={7: [500]},
        steps_per_execution=4,
    )  # fmt: skip


def test_several_steps_are_executed_at_once_only_if_no_pause_is_nearer() -> None:
    assert [schedule().steps_per_call(step) for step in (0, 1, 3, 5, 7, 10, 20, 22)] == [
        4, 4, 1, 1, 1, 4, 4, 1,
    ]  # fmt: skip


def test_resumed_run_repeats_no_evaluation_and_keeps_no_model_again() -> None:
    assert schedule().is_evaluation_due(10) and schedule().is_mark_due(7)
    assert not schedule(begun_at=10).is_evaluation_due(10)
    assert not schedule(begun_at=7).is_mark_due(7)


def test_last_step_is_always_validated_saved_and_logged() -> None:
    assert schedule().is_validation_due(25) and schedule().is_save_due(25)
    assert schedule().is_log_due(25) and not schedule().is_validation_due(0)


def test_pauses_left_are_counted_by_reason() -> None:
    assert schedule().count_pauses_left(5) == {"eval": 2, "save": 4, "interim": 2, "mark": 1}
    assert schedule().count_pauses_left(20) == {"eval": 0, "save": 1, "interim": 0, "mark": 0}
