"""Tests the verdict on a run: one sentence, and the one thing to do next."""

from __future__ import annotations

from typing import Any

import pytest

from core.report.verdicts import verdict_of


def figures(loss: float, best_step: int = 900) -> dict[str, Any]:
    return {
        "eval_loss": loss, "frequency_baseline_loss": 6.0,
        "best_step": best_step, "num_train_steps": 1000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("results", "level", "action"),
    [
        (figures(4.0), "learned", "open_playground"),
        (figures(5.8), "learned little", "train_longer"),
        (figures(5.8, best_step=300), "learned little", "add_text"),
        (figures(6.0), "not yet", "train_longer"),
        (figures(6.5, best_step=100), "not yet", "add_text"),
        ({}, "done", "open_playground"),
        ({**figures(1.0), "eval_loss": float("nan")}, "done", "open_playground"),
    ],
)
def test_training_is_judged_by_its_gain_over_token_frequencies(
    results: dict[str, Any], level: str, action: str
) -> None:
    verdict = verdict_of("train", "done", results)
    assert (verdict.level, verdict.action) == (level, action)
    assert verdict.sentence and verdict.label


@pytest.mark.parametrize(
    ("reason", "action"),
    [("LossNotFiniteError", "lower_rate"), ("ShardError", "build_again"), ("killed", "read_log")],
)
def test_failure_says_its_problem_and_the_repair(reason: str, action: str) -> None:
    verdict = verdict_of("train", "failed", {}, {"problem": "It broke."}, reason)
    assert (verdict.level, verdict.sentence, verdict.action) == ("failed", "It broke", action)


def test_other_states_lead_on() -> None:
    assert verdict_of("tokenizer", "done", {}).action == "build_shards"
    assert verdict_of("train", "stopped", {}).action == "resume"
    assert verdict_of("train", "running", {}).level == "running"
