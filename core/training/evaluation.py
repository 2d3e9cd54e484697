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
from core.errors import ShardError
from core.objectives.mlm import unigram_baseline
from core.objectives.objective import Batch
from core.records.events import Reporter
from core.training.batches import BatchPrefetcher, EvalBatches

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
        engine: Backend,
        sources: Sequence[ValidationSource],
        token_counts: NDArray[np.int64],
        reporter: Reporter,
    ) -> None:
        self._engine = engine
        self._sources = list(sources)
        self._token_counts = token_counts
        self._reporter = reporter

    def resume(self, results: EvalResults | None) -> None:
        """Takes the unigram baselines from an earlier validation."""
        if results is None:
            return
        for one in self._sources:
            own = results.sources.get(one.name, {})
            total = None if one.name else results.frequency_baseline_loss
            one.baseline = own.get("frequency_baseline_loss", total)

    def run(self, step: int, report_progress: Callable[[int, int], None]) -> EvalResults | None:
        """Evaluates the current weights; None after a stop request."""
        found: dict[str, dict[str, float]] = {}
        total = sum(len(one.batches) for one in self._sources)
        done = 0
        for one in self._sources:
            figures = self._run_one(one, report_progress, done, total)
            if figures is None:
                return None
            found[one.name] = figures
            done += len(one.batches)
        figures = self._total(found)
        return EvalResults(
            step=step,
            eval_perplexity=_exp(figures["eval_loss"]),
            **figures,
            sources=found if len(found) > 1 else {},
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
                sums.append(self._engine.evaluate_step(batch))
            losses, right, weight = self._engine.fetch(sums).astype(np.float64).sum(axis=0)
        if not weight:
            raise _nothing_to_predict(source.name)
        return {
            "eval_loss": float(losses / weight),
            "eval_accuracy": float(right / weight),
            "frequency_baseline_loss": self._unigram_baseline(source),
        }

    def _total(self, found: dict[str, dict[str, float]]) -> dict[str, float]:
        if len(found) == 1:
            return next(iter(found.values()))
        names = next(iter(found.values()))
        return {
            name: float(sum(one.weight * found[one.name][name] for one in self._sources))
            for name in names
        }

    def _prepare(self, source: ValidationSource, numbers: range) -> list[Mapping[str, Any]]:
        return [self._prepare_one(source, number) for number in numbers]

    def _prepare_one(self, source: ValidationSource, number: int) -> Mapping[str, Any]:
        batch = source.batches(number)
        if source.baseline is None:
            source.count_labels(batch, len(self._token_counts))
        mine = self._engine.part(source.batches.batch_size)
        return self._engine.put({name: values[mine] for name, values in batch.items()})

    def _unigram_baseline(self, source: ValidationSource) -> float:
        if source.baseline is None:
            assert source.label_counts is not None
            ids = np.arange(len(source.label_counts), dtype=np.int32)
            weights = source.label_counts.astype(np.float32)
            source.baseline = unigram_baseline(self._token_counts, ids, weights)
        return source.baseline


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _nothing_to_predict(source: str) -> ShardError:
    return ShardError(
        "The validation sequences contain no tokens to predict"
        + (f", those of {source}" if source else ""),
        expected="sequences with ordinary tokens",
        received="sequences of special tokens only",
        fix="build the shards again from other text",
    )
