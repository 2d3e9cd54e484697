"""Formats a model's stored evaluations for its card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from core.artifacts.evaluations import read_settings
from core.config.evaluate import BLIMP, EvaluateConfig
from core.publishing.markdown import Markdown, table
from core.workspace.manifests import Manifest

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_SCORES = {
    "pseudo_log_likelihood": "the pseudo-log-likelihood (each token masked once)",
    "log_likelihood": "the log-likelihood",
    "masked_source_log_likelihood": "the likelihood of each token given a source that masks it",
}
_METRICS = {
    "minimal_pairs": (
        ("accuracy", "Accuracy (a tie counts half)", "accuracy"),
        ("accuracy", "Official accuracy (a tie counts as right)", "official_accuracy"),
    ),
    "text": (
        ("loss", "Loss (nats per token)", "loss"),
        ("perplexity", "Perplexity", "perplexity"),
        ("bits_per_byte", "Bits per byte", "bits_per_byte"),
    ),
}
# Settings that the name of the data, or of the task, tells.
_NAMED = ("task", "path", "dataset_name", "dataset_config", "split", "limit")


class _Data(NamedTuple):
    type: str
    name: str
    config: str | None
    split: str | None


def stored_results(evaluations: Iterable[Manifest], task: tuple[str, str]) -> Iterator[EvalResult]:
    """Yields entries of `model-index`; `task` has the Hub's type and name."""
    from huggingface_hub import EvalResult

    for evaluation in evaluations:
        data = _data_of(evaluation.config)
        for kind, name, figure in _METRICS.get(str(evaluation.counts.get("task")), ()):
            yield EvalResult(
                task_type=task[0],
                task_name=task[1],
                dataset_type=data.type,
                dataset_name=data.name,
                dataset_config=data.config,
                dataset_split=data.split,
                metric_type=kind,
                metric_name=name,
                metric_value=round(float(evaluation.counts[figure]), 6),
            )


def describe_evaluations(evaluations: Iterable[Manifest]) -> str:
    """Returns a Markdown table of evaluations."""
    rows = [
        (_data_of(evaluation.config).name, Markdown(_describe(evaluation.counts)))
        for evaluation in evaluations
        if evaluation.counts.get("task") in _METRICS
    ]
    if not rows:
        return ""
    scores = dict.fromkeys(str(evaluation.counts.get("score")) for evaluation in evaluations)
    named = " and ".join(_SCORES[score] for score in scores if score in _SCORES)
    return f"Scored by {named}:\n\n{table(('data', 'result'), rows)}"


def _describe(counts: Mapping[str, Any]) -> str:
    if counts["task"] == "text":
        return (
            f"**{counts['bits_per_byte']:.4f}** bits per byte, {counts['loss']:.4f} nats per "
            f"token, perplexity {counts['perplexity']:.4g}, {counts['tokens']:,} tokens"
        )
    low, high = (f"{100 * bound:.1f}" for bound in counts["interval"])
    return (
        f"**{100 * counts['accuracy']:.1f} %** of {counts['pairs']:,} minimal pairs "
        f"(95 % interval {low} to {high})"
    )


def _data_of(config: Mapping[str, Any]) -> _Data:
    """Names the data; of a local path, only its last part."""
    part = _part_of(config)
    shown = f" ({part})" if part else ""
    if path := str(config.get("path") or ""):
        name = PurePath(path).name
        return _Data(PurePath(path).stem or "text", name + shown, part or None, None)
    dataset = str(config.get("dataset_name"))
    title = "BLiMP" if dataset == BLIMP else dataset
    # The Hub shows results with equal configurations as those of the same data.
    configuration = ", ".join(filter(None, [str(config.get("dataset_config") or ""), part]))
    split = str(config.get("split") or "") or None
    return _Data(dataset, title + shown, configuration or None, split)


def _part_of(config: Mapping[str, Any]) -> str:
    """Describes the evaluated part of the data, if not all, and options other than defaults."""
    limit = config.get("limit")
    unit = "documents" if config.get("task") == "text" else "of each paradigm"
    first = [f"first {limit:,} {unit}"] if limit else []
    fields = EvaluateConfig.model_fields
    own = [
        f"{name}={value}"
        for name, value in read_settings(config).items()
        if name not in _NAMED and value != fields[name].default
    ]
    return ", ".join([*first, *own])
