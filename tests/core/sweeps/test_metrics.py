"""The metric of a sweep: its direction, and whether the stage measures it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import TrainConfig
from core.config.metrics import direction_of, quality_direction
from core.config.sweep import SweepConfig
from core.errors import ConfigError
from core.evaluation.minimal_pairs import ScoredPair, summarize_pairs
from core.evaluation.pairs import Pair
from core.evaluation.text import TextTally
from core.finetuning.metrics import classification_metrics, regression_metrics, tagging_metrics
from core.finetuning.names import METRICS
from core.finetuning.spans import Scheme
from core.records.events import Reporter
from core.sweeps.client import create_sweep, parse_sweep
from core.sweeps.folder import Trial
from core.sweeps.metrics import check_metric
from core.sweeps.view import best_trial
from core.training.trainer import train
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs

OPTIONS = {"seed": [1, 2]}


@pytest.mark.parametrize(
    ("metrics", "direction"),
    [
        ("loss eval_loss eval_loss/books text_loss eval_perplexity text_bits_per_byte", "minimize"),
        ("mse eval_mse random_init_mse seconds cost tokens_per_word", "minimize"),
        ("accuracy eval_accuracy official_accuracy pairs_accuracy/island f1 eval_f1", "maximize"),
        ("f1_macro matthews pearson spearman span_f1 span_precision span_recall", "maximize"),
        ("pairs_mean_over_phenomena mean_over_paradigms tokens_per_second", "maximize"),
        ("learning_rate parameters accuracy_std floss data", None),
    ],
)
def test_direction_follows_from_the_metric(metrics: str, direction: str | None) -> None:
    assert {direction_of(one) for one in metrics.split()} == {direction}


def test_every_metric_of_finetuning_has_a_direction() -> None:
    found = {name: quality_direction(name) for name in METRICS}
    assert found == {name: "minimize" if name == "mse" else "maximize" for name in METRICS}


def test_best_trial_of_an_accuracy_is_the_highest_unless_a_direction_is_set(tmp_path: Path) -> None:
    for direction, best in (("", 1), ("auto", 1), ("minimize", 0), ("maximize", 1)):
        given = f'direction = "{direction}"\n' if direction != "auto" else ""
        text = f'metric = "eval_accuracy"\n{given}[base]\nshards = "rows"\n[options]\nseed = [1, 2]'
        folder = create_sweep(Workspace(tmp_path / f"of-{direction}"), parse_sweep(text))
        for number, value in enumerate((0.25, 0.75)):
            folder.write_trial(Trial(number, {}, "", f"train-{number}", "done", value=value))
        found = best_trial(folder.read_record(), folder.read_trials())
        assert found is not None and found.number == best, direction


def test_metric_of_unknown_direction_needs_one() -> None:
    with pytest.raises(ConfigError, match="low or high values of learning_rate") as caught:
        SweepConfig(metric="learning_rate", options=OPTIONS)
    assert caught.value.field == "direction"
    assert SweepConfig(metric="learning_rate", direction="maximize").goal == "maximize"


@pytest.mark.parametrize(
    ("stage", "metric", "base", "expected"),
    [
        ("evaluate", "eval_loss", {}, "accuracy, "),
        ("evaluate", "eval_loss", {"task": "text"}, "loss, perplexity"),
        ("evaluate", "accuracy", {"task": "text"}, "loss"),
        ("finetune", "eval_perplexity", {}, "eval_"),
        ("finetune", "accuracy", {"task": "regression"}, "pearson"),
        ("finetune", "accuracy", {"glue": "stsb"}, "pearson"),
        ("train", "accuracy", {}, "eval_accuracy"),
        ("train", "pairs_accuracy", {}, "eval_accuracy"),
        ("train", "pairs_accuracy", {"evaluate_every": 5, "evaluate_text_path": "a"}, "text_loss"),
        ("train", "text_loss", {"evaluate_every": 5}, "eval_loss"),
        ("tokenizer", "eval_loss", {}, "tokens_per_word"),
        ("shards", "eval_loss", {}, "train_rows"),
        ("clean", "eval_loss", {}, "train_documents"),
    ],
)
def test_metric_that_the_stage_does_not_measure_is_refused(
    stage: str, metric: str, base: Mapping[str, Any], expected: str
) -> None:
    config = SweepConfig(stage=stage, metric=metric, base=dict(base), options=OPTIONS)
    with pytest.raises(ConfigError, match=f"doesn't measure {metric}") as caught:
        check_metric(config)
    assert expected in caught.value.expected and caught.value.field == "metric"


@pytest.mark.parametrize(
    ("stage", "metric", "options"),
    [
        ("evaluate", "loss", {"task": ["text", "minimal_pairs"]}),
        ("finetune", "mse", {"task": ["classification", "regression"]}),
        ("train", "pairs_accuracy", {"evaluate_every": {"min": 5, "max": 9}}),
        ("tokenizer", "tokens_per_word", {"vocab_size": [100, 200]}),
    ],
)
def test_metric_that_some_trial_measures_is_accepted(
    stage: str, metric: str, options: dict[str, Any]
) -> None:
    check_metric(SweepConfig(stage=stage, metric=metric, options=options))


def test_sweep_of_evaluations_is_refused_before_its_first_trial(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    text = 'stage = "evaluate"\n[base]\nmodel = "m"\n[options]\nlimit = [1, 2]'
    with pytest.raises(ConfigError, match="stage evaluate doesn't measure eval_loss"):
        create_sweep(workspace, parse_sweep(text))
    assert not workspace.sweeps.exists()
    create_sweep(workspace, parse_sweep(f'metric = "accuracy"\n{text}'))


def test_figures_of_evaluation_and_finetuning_are_known() -> None:
    pairs = [ScoredPair(Pair("a b", "b a", "p", "order", "x"), -1.0, -2.0)]
    classes, numbers = np.array([0, 1, 1]), np.array([0.0, 1.0, 2.0])
    tags = [["B-x", "O"]]
    for stage, base, figures in (
        ("evaluate", {}, summarize_pairs(pairs)),
        ("evaluate", {"task": "text"}, TextTally(1.0, 1, 1, 1).to_json()),
        ("finetune", {}, classification_metrics(classes, classes, 2)),
        ("finetune", {"task": "regression"}, regression_metrics(numbers, numbers)),
        ("finetune", {"task": "token_classification"}, tagging_metrics(tags, tags, Scheme())),
    ):
        check_all(figures, stage, base)
        if stage == "finetune":
            for prefix in ("eval_", "random_init_", "majority_"):
                check_all({f"{prefix}{name}": one for name, one in figures.items()}, stage, base)


def check_all(figures: Mapping[str, Any], stage: str, base: Mapping[str, Any]) -> None:
    """Checks that a sweep accepts each figure as its metric."""
    for name, value in figures.items():
        if isinstance(value, int | float):
            config = SweepConfig(stage=stage, metric=name, direction="minimize", base=dict(base))
            check_metric(config)


class Listener(Reporter):
    def __init__(self) -> None:
        self.names: dict[str, float] = {}

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.names.update(values)


@pytest.mark.long
@pytest.mark.slow(30)
def test_figures_of_a_training_with_evaluations_are_known(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path / "workspace")
    text, pairs = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("one two three\n")
    pairs.write_text('{"sentence_good": "one two", "sentence_bad": "two one", "UID": "a"}\n')
    base = {
        "shards": "rows", "preset": "custom", "device": "cpu", "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_train_steps": 4, "eval_steps": 2,
        "logging_steps": 1, "evaluate_every": 2, "evaluate_text_path": str(text),
        "evaluate_pairs_path": str(pairs),
    }  # fmt: skip
    listener = Listener()
    artifact = train(TrainConfig(**base), workspace, listener)
    assert {"loss", "eval_loss", "pairs_accuracy", "text_loss"} <= listener.names.keys()
    check_all({**artifact.manifest.counts, **listener.names}, "train", base)
