"""Validates a model and the unigram baseline on the same masks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.backends.base import Backend
from core.errors import ShardError
from core.events import Reporter
from core.objectives.mlm import unigram_baseline
from core.objectives.objective import Batch
from core.training.batches import BatchPrefetcher, EvalBatches
from core.training.checkpoint import EvalResults

_PROGRESS_SECONDS = 0.5


class Evaluation:
    """Evaluates a model; `token_counts` are training label counts, (vocab_size,)."""

    def __init__(
        self,
        engine: Backend,
        batches: EvalBatches,
        token_counts: NDArray[np.int64],
        reporter: Reporter,
    ) -> None:
        self._engine = engine
        self._batches = batches
        self._token_counts = token_counts
        self._reporter = reporter
        self._baseline: float | None = None
        self._label_counts = np.zeros(len(token_counts), np.int64)

    def resume(self, results: EvalResults | None) -> None:
        """Takes the unigram baseline from an earlier validation."""
        self._baseline = results.frequency_baseline_loss if results else None

    def run(self, step: int, report_progress: Callable[[int, int], None]) -> EvalResults | None:
        """Evaluates the current weights; None after a stop request."""
        self._label_counts[:] = 0
        sums, reported = [], 0.0
        with BatchPrefetcher(self._prepare, 0, len(self._batches)) as feeder:
            for number, batch in enumerate(feeder):
                if self._reporter.stop_requested():
                    return None
                if time.monotonic() - reported >= _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    report_progress(number, len(self._batches))
                sums.append(self._engine.evaluate_step(batch))
            losses, right, weight = self._engine.fetch(sums).astype(np.float64).sum(axis=0)
        if not weight:
            raise _nothing_to_predict()
        loss = float(losses / weight)
        return EvalResults(
            step=step,
            eval_loss=loss,
            eval_accuracy=float(right / weight),
            eval_perplexity=_exp(loss),
            frequency_baseline_loss=self._unigram_baseline(),
        )

    def _prepare(self, numbers: range) -> list[Mapping[str, Any]]:
        return [self._prepare_one(number) for number in numbers]

    def _prepare_one(self, number: int) -> Mapping[str, Any]:
        batch = self._batches(number)
        if self._baseline is None:
            self._count_labels(batch)
        mine = self._engine.part(self._batches.batch_size)
        return self._engine.put({name: values[mine] for name, values in batch.items()})

    def _count_labels(self, batch: Batch) -> None:
        labels = batch["labels"][batch["label_weights"] > 0]
        self._label_counts += np.bincount(labels, minlength=len(self._label_counts))

    def _unigram_baseline(self) -> float:
        if self._baseline is None:
            ids = np.arange(len(self._label_counts), dtype=np.int32)
            weights = self._label_counts.astype(np.float32)
            self._baseline = unigram_baseline(self._token_counts, ids, weights)
        return self._baseline


def eval_figures(results: EvalResults) -> dict[str, float]:
    """Returns the results as metrics."""
    return {
        "eval_loss": results.eval_loss,
        "eval_accuracy": results.eval_accuracy,
        "eval_perplexity": results.eval_perplexity,
        "frequency_baseline_loss": results.frequency_baseline_loss,
    }


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _nothing_to_predict() -> ShardError:
    return ShardError(
        "The validation sequences contain no tokens to predict",
        expected="sequences with ordinary tokens",
        received="sequences of special tokens only",
        fix="build the shards again from other text",
    )
