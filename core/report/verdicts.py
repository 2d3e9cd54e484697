"""Judges a run in one sentence, with the one thing to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["learned", "learned little", "not yet", "failed", "stopped", "running", "done"]
Action = Literal[
    "open_playground", "train_longer", "lower_rate", "add_text", "build_again", "resume",
    "read_log", "build_shards", "train", "train_tokenizer", "wait", "none",
]  # fmt: skip

LOSS, BASELINE = "eval_loss", "frequency_baseline_loss"
# Nats below the unigram baseline.
_LEARNED, _LITTLE = 0.5, 0.05
_LABELS: dict[Action, str] = {
    "open_playground": "Open in Playground",
    "train_longer": "Train longer",
    "lower_rate": "Lower the learning rate",
    "add_text": "Add text",
    "build_again": "Build again",
    "resume": "Resume",
    "read_log": "Read the log",
    "build_shards": "Build shards",
    "train": "Train a model",
    "train_tokenizer": "Train a tokenizer",
    "wait": "Watch it",
    "none": "",
}
# Stages that read nothing but text.
_OF_TEXT = ("clean", "tokenizer")
# Failures that starting the stage that made the inputs again repairs.
_OF_INPUTS = ("ShardError", "TokenizerError", "CorpusError")
_NEXT: dict[str, Action] = {
    "clean": "train_tokenizer",
    "tokenizer": "build_shards",
    "shards": "train",
    "finetune": "open_playground",
}
_WHILE = ("queued", "running", "stopping")


@dataclass(frozen=True)
class Verdict:
    """The judgement on a run.

    Attributes:
        sentence: Why, for a reader who knows no figure.
        action: The next step; `label` is its button.
    """

    level: Level
    sentence: str
    action: Action

    @property
    def label(self) -> str:
        return _LABELS[self.action]


def verdict_of(
    stage: str, state: str, results: Mapping[str, Any], error: Mapping[str, Any] | None = None,
    reason: str = "",
) -> Verdict:  # fmt: skip
    """Judges a run by its state and figures.

    Args:
        results: The figures of a finished run.
        error: `StudioError.to_dict` of a failed one.
        reason: Reason of the state, such as out_of_memory.
    """
    if state in _WHILE:
        return Verdict("running", f"It is {state}", "wait")
    if state == "stopped":
        return Verdict("stopped", "It was stopped, and can go on from where it was", "resume")
    if state != "done":
        return _failure(stage, state, error or {}, reason)
    if stage == "train":
        return _of_training(results)
    return Verdict("done", "It is done", _NEXT.get(stage, "none"))


def _failure(stage: str, state: str, error: Mapping[str, Any], reason: str) -> Verdict:
    problem = str(error.get("problem") or "").rstrip(".")
    sentence = problem or f"It is {state}" + (f": {reason.replace('_', ' ')}" if reason else "")
    if reason == "LossNotFiniteError":
        return Verdict("failed", sentence, "lower_rate")
    if reason not in _OF_INPUTS:
        return Verdict("failed", sentence, "read_log")
    return Verdict("failed", sentence, "add_text" if stage in _OF_TEXT else "build_again")


def _of_training(results: Mapping[str, Any]) -> Verdict:
    loss, baseline = _number(results.get(LOSS)), _number(results.get(BASELINE))
    if loss is None or baseline is None:
        return Verdict("done", "It is done", "open_playground")
    gain = baseline - loss
    figures = f"validation loss {loss:.2f}, unigram baseline {baseline:.2f}"
    has_ended_early = _best_share(results) < 0.6
    if gain >= _LEARNED:
        sentence = f"It uses context: {gain:.2f} nats better than token frequencies ({figures})"
        return Verdict("learned", sentence, "open_playground")
    more: Action = "add_text" if has_ended_early else "train_longer"
    if gain >= _LITTLE:
        why = "it then only learned the text by heart" if has_ended_early else "it still improved"
        sentence = (
            f"It is only {gain:.2f} nats better than token frequencies, and {why} ({figures})"
        )
        return Verdict("learned little", sentence, more)
    sentence = f"It predicts no better than token frequencies alone ({figures})"
    return Verdict("not yet", sentence, more)


def _best_share(results: Mapping[str, Any]) -> float:
    """Returns at which share of the steps the validation loss was lowest."""
    best, steps = _number(results.get("best_step")), _number(results.get("num_train_steps"))
    return best / steps if best is not None and steps else 1.0


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
