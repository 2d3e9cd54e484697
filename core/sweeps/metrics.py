"""Checks that a sweep's stage measures the metric, before the first trial."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from core.config.metrics import quality_direction
from core.config.sweep import SweepConfig
from core.errors import ConfigError
from core.finetuning.glue import TASKS
from core.stages.registry import find_stage

_TRAINING = (
    "eval_loss", "eval_accuracy", "eval_perplexity", "loss", "frequency_baseline_loss",
    "eval_loss/*", "eval_accuracy/*", "eval_perplexity/*", "frequency_baseline_loss/*",
    "best_step", "num_train_steps", "tokens", "parameters", "seconds", "skipped_batches",
    "learning_rate", "tokens_per_second", "data_wait_percent", "epoch", "epoch/*", "share/*",
    "cpu_percent", "memory_gib", "gpu_percent", "gpu_memory_gib",
)  # fmt: skip
_EVALUATIONS = ("evaluation_seconds", "evaluation_percent", "tokens_seen", "words_seen")
_OF_PAIRS = (
    "pairs_accuracy", "pairs_official_accuracy", "pairs_mean_over_paradigms",
    "pairs_mean_over_phenomena", "pairs_accuracy/*",
)  # fmt: skip
_OF_TEXT = ("text_loss", "text_perplexity", "text_bits_per_byte", "text_*/*")
_BY_EVALUATION = {
    "minimal_pairs": (
        "accuracy", "official_accuracy", "mean_over_paradigms", "mean_over_phenomena", "pairs",
        "ties", "seconds", "step",
    ),
    "text": (
        "loss", "perplexity", "bits_per_byte", "tokens", "bytes", "documents", "unknown_tokens",
        "context_tokens", "seconds", "step",
    ),
}  # fmt: skip
_BY_FINETUNING = {
    "classification": ("accuracy", "f1", "f1_macro", "matthews"),
    "regression": ("pearson", "spearman", "mse"),
    "token_classification": (
        "accuracy", "f1_macro", "span_f1", "span_precision", "span_recall",
    ),
}  # fmt: skip
_FINETUNING = (
    "eval_loss", "loss", "learning_rate", "epoch", "random_init_*", "majority_*", "*_std",
    "train_examples", "validation_examples", "test_examples", "seconds", "cpu_percent",
    "memory_gib", "gpu_percent", "gpu_memory_gib",
)  # fmt: skip
_MOST_SHOWN = 12


def check_metric(config: SweepConfig) -> None:
    """Raises ConfigError if it is known that no trial measures the sweep's metric."""
    metric, stage = config.metric, find_stage(config.stage)
    known = stage.list_metrics(config)
    if known and not any(fnmatchcase(metric, pattern) for pattern in known):
        raise _error(config, _shown(metric, known))
    if stage.counts and quality_direction(metric):
        raise _error(config, f"a figure such as {stage.counts}")


def list_evaluation_metrics(config: SweepConfig) -> Sequence[str]:
    """Returns the metrics of the tasks that some trial may have."""
    tasks = _possible(config, "task")
    return [metric for task in tasks for metric in _BY_EVALUATION.get(task, ())]


def list_finetuning_metrics(config: SweepConfig) -> Sequence[str]:
    """Returns patterns of the metrics on the development and the test set."""
    tasks = _finetuning_tasks(config)
    of_tasks = [metric for task in tasks for metric in _BY_FINETUNING.get(task, ())]
    return [*of_tasks, *(f"eval_{metric}" for metric in of_tasks), *_FINETUNING]


def list_training_metrics(config: SweepConfig) -> Sequence[str]:
    """Returns patterns of the metrics of trainings, perhaps with evaluations."""
    if not _evaluates(config):
        return _TRAINING
    texts = _possible(config, "evaluate_text_path")
    if any(_possible(config, "evaluate_text_dataset_name")):
        texts = ["dataset"]
    # Minimal pairs of the Hub, if there is neither a text nor a file of pairs.
    has_pairs = any(_possible(config, "evaluate_pairs_path")) or not all(texts)
    patterns = (*(_OF_PAIRS if has_pairs else ()), *(_OF_TEXT if any(texts) else ()))
    return (*patterns, *_TRAINING, *_EVALUATIONS)


def _evaluates(config: SweepConfig) -> bool:
    """Returns whether trainings are evaluated on minimal pairs or held-out text."""
    return any(_possible(config, "evaluate_every"))


def _finetuning_tasks(config: SweepConfig) -> set[Any]:
    tasks: set[Any] = set()
    for glue in _possible(config, "glue"):
        if glue in TASKS:
            tasks.add("classification" if TASKS[glue].labels else "regression")
        else:
            tasks |= set(_possible(config, "task"))
    return tasks


def _possible(config: SweepConfig, name: str) -> list[Any]:
    """Returns the values that an option has in some trial."""
    if name not in config.options:
        return [config.base.get(name, find_stage(config.stage).config.model_fields[name].default)]
    wanted = config.options[name]
    values = wanted.get("values", wanted.get("max")) if isinstance(wanted, Mapping) else wanted
    return list(values) if isinstance(values, list | tuple) else [values]


def _shown(metric: str, known: Sequence[str]) -> str:
    plain = list(dict.fromkeys(name for name in known if "*" not in name))
    near = difflib.get_close_matches(metric, plain, n=_MOST_SHOWN, cutoff=0.5)
    return "one of " + ", ".join(list(dict.fromkeys([*near, *plain]))[:_MOST_SHOWN])


def _error(config: SweepConfig, expected: str) -> ConfigError:
    is_training = config.stage == "train" and not _evaluates(config)
    hint = ", or ⟬evaluate_every⟭ in base for figures of evaluations" if is_training else ""
    return ConfigError(
        f"The stage {config.stage} doesn't measure {config.metric}, the metric of the sweep",
        expected=expected,
        received=config.metric,
        fix=f"set metric{hint}",
        field="metric",
    )
