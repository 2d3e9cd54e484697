"""Validates a model and the unigram baseline on the same masks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.artifacts.checkpoint import EvalResults
from core.backends.base import Backend
from core.backends.devices import Devices
from core.config.options import settled
from core.config.train import TrainConfig
from core.errors import ShardError
from core.objectives.mlm import unigram_baseline
from core.objectives.objective import Batch
from core.records.events import Reporter
from core.training.batches import BatchPrefetcher, EvalBatches
from core.training.inputs import TrainingInputs, tolerate_damage
from core.training.mixture import BLOCK

_PROGRESS_SECONDS = 0.5


@dataclass
class ValidationSource:
    """Validation sequences with their part of the total.

    Attributes:
        name: Only for a mixture.
        weight: Its share of the training sequences; all sum to 1.
    """

    batches: EvalBatches
    name: str = ""
    weight: float = 1.0
    baseline: float | None = None
    label_counts: NDArray[np.int64] | None = None

    def count_labels(self, batch: Batch, vocab_size: int) -> None:
        """Adds a batch's labels to the counts, for the unigram baseline."""
        labels = batch["labels"][batch["label_weights"] > 0]
        counts = np.bincount(labels, minlength=vocab_size)
        self.label_counts = counts if self.label_counts is None else self.label_counts + counts


class Evaluation:
    """Evaluates a model; the total of several sources weights each by its training share.

    Args:
        token_counts: Training label counts, (vocab_size,).
    """

    def __init__(
        self,
        backend: Backend,
        sources: Sequence[ValidationSource],
        token_counts: NDArray[np.int64],
        reporter: Reporter,
    ) -> None:
        self._backend = backend
        self._sources = list(sources)
        self._token_counts = token_counts
        self._reporter = reporter

    def resume(self, results: EvalResults | None) -> None:
        """Takes the unigram baselines from an earlier validation."""
        if results is None:
            return
        for source in self._sources:
            own = results.sources.get(source.name, {})
            total = None if source.name else results.frequency_baseline_loss
            source.baseline = own.get("frequency_baseline_loss", total)

    def run(self, step: int, report_progress: Callable[[int, int], None]) -> EvalResults | None:
        """Evaluates the current weights; None after a stop request."""
        by_source: dict[str, dict[str, float]] = {}
        total = sum(len(source.batches) for source in self._sources)
        done = 0
        for source in self._sources:
            figures = self._run_one(source, report_progress, done, total)
            if figures is None:
                return None
            by_source[source.name] = figures
            done += len(source.batches)
        figures = self._total(by_source)
        return EvalResults(
            step=step,
            eval_perplexity=_exp(figures["eval_loss"]),
            **figures,
            sources=by_source if len(by_source) > 1 else {},
        )

    def _run_one(
        self,
        source: ValidationSource,
        report_progress: Callable[[int, int], None],
        done: int,
        total: int,
    ) -> dict[str, float] | None:
        source.label_counts = None
        sums, reported = [], 0.0
        prepare = partial(self._prepare, source)
        with BatchPrefetcher(prepare, 0, len(source.batches)) as feeder:
            for number, batch in enumerate(feeder):
                if self._reporter.stop_requested():
                    return None
                if time.monotonic() - reported >= _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    report_progress(done + number, total)
                sums.append(self._backend.evaluate_step(batch))
            losses, right, weight = self._backend.fetch(sums).astype(np.float64).sum(axis=0)
        if not weight:
            raise _nothing_to_predict(source.name)
        return {
            "eval_loss": float(losses / weight),
            "eval_accuracy": float(right / weight),
            "frequency_baseline_loss": self._unigram_baseline(source),
        }

    def _total(self, by_source: dict[str, dict[str, float]]) -> dict[str, float]:
        first = next(iter(by_source.values()))
        if len(by_source) == 1:
            return first
        return {
            name: float(
                sum(source.weight * by_source[source.name][name] for source in self._sources)
            )
            for name in first
        }

    def _prepare(self, source: ValidationSource, numbers: range) -> list[Mapping[str, Any]]:
        return [self._prepare_one(source, number) for number in numbers]

    def _prepare_one(self, source: ValidationSource, number: int) -> Mapping[str, Any]:
        batch = source.batches(number)
        if source.baseline is None:
            source.count_labels(batch, len(self._token_counts))
        own_rows = self._backend.part(source.batches.batch_size)
        return self._backend.put({name: values[own_rows] for name, values in batch.items()})

    def _unigram_baseline(self, source: ValidationSource) -> float:
        if source.baseline is None:
            assert source.label_counts is not None
            ids = np.arange(len(source.label_counts), dtype=np.int32)
            weights = source.label_counts.astype(np.float32)
            source.baseline = unigram_baseline(self._token_counts, ids, weights)
        return source.baseline


def create_evaluation(
    config: TrainConfig,
    inputs: TrainingInputs,
    backend: Backend,
    devices: Devices,
    reporter: Reporter,
) -> Evaluation:
    """Creates the evaluation of a run's model on all its sources."""
    sources = inputs.sources
    wanted = config.per_replica_eval_batch_size or settled(config.per_replica_batch_size)
    # The same for all sources, because each shape is compiled.
    longest = max(len(source.validation_rows) for source in sources.all)
    batch_size = min(wanted, -(-longest // devices.count)) * devices.count
    validation = [
        ValidationSource(
            EvalBatches(
                tolerate_damage(source.validation_rows, config, inputs, reporter),
                inputs.eval_objective,
                batch_size,
            ),
            source.name if sources.is_mixture else "",
            source.share / BLOCK,
        )
        for source in sources.all
    ]
    # Several processes could not all stop at the same batch.
    listener = reporter if devices.processes == 1 else Reporter()
    return Evaluation(backend, validation, inputs.label_counts, listener)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _nothing_to_predict(source: str) -> ShardError:
    return ShardError(
        "The validation sequences contain no tokens to predict"
        + (f", those of {source}" if source else ""),
        expected="sequences with ordinary tokens",
        fix="build the shards again from other text",
    )
