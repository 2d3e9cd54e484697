"""Trains a classifier once, with early stopping on the development set.

The last epochs have the lowest learning rate, and a development set of some hundred examples often
can't tell them from the best one. So the last epoch is kept whose score is within a standard error
of the best score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import RunError
from core.finetuning.batches import shuffled_batches
from core.finetuning.names import RANDOM_INIT
from core.finetuning.session import Session, State, make_schedule
from core.finetuning.tasks import Outputs, Prepared, Task
from core.records.events import Reporter

_LOGS_PER_EPOCH = 10
_SHARES = ("accuracy", "f1", "f1_macro", "span_f1")
_CORRELATIONS = ("pearson", "spearman", "matthews")


@dataclass(frozen=True)
class Trained:
    """The epoch of a training that is kept.

    Attributes:
        validation: Metrics and loss on the development set.
        score: The task's metric on the development set.
        outputs: Logits for the test set.
        weights: None unless they were to be kept.
    """

    learning_rate: float
    seed: int
    epoch: int
    score: float
    validation: dict[str, float]
    outputs: Outputs
    weights: dict[str, NDArray[np.float32]] | None


@dataclass
class Progress:
    """Counts the steps of all trainings, for the curves and the progress bar."""

    reporter: Reporter
    total: int
    done: int = 0

    def add(self, note: str) -> None:
        self.reporter.raise_if_stopped()
        self.done += 1
        self.reporter.progress(min(self.done, self.total), self.total, "steps", note)

    def skip_to(self, step: int) -> None:
        """Continues after the steps that early stopping saved."""
        self.done = step


class Trainer:
    """Trains from given weights, and remembers the data."""

    def __init__(
        self,
        session: Session,
        task: Task,
        train: Prepared,
        validation: Prepared,
        test: Prepared,
        progress: Progress,
    ) -> None:
        self._session = session
        self._task = task
        self._train = train
        self._validation = validation
        self._test = test
        self._progress = progress
        self._lengths = [len(sequence.ids) for sequence in train.data.sequences]
        self._prefix = ""
        self.steps_per_epoch = -(-len(self._lengths) // session.batch_size)

    @property
    def steps_done(self) -> int:
        """Steps of all trainings so far."""
        return self._progress.done

    def run(self, pretrained: State, rate: float, seed: int, note: str, *, keep: bool) -> Trained:
        """Trains with a learning rate and a seed.

        Args:
            pretrained: Weights by variable path; empty: all random, and the figures are named so.
            note: Names the training in the log.
            keep: Whether to return the weights.

        Raises:
            RunStopped: The reporter requested it.
        """
        self._prefix = "" if pretrained else RANDOM_INIT
        config, first = self._session.config, self._progress.done
        steps = config.num_train_epochs * self.steps_per_epoch
        self._session.start(pretrained, make_schedule(config, rate, steps), seed)
        selected_run: Trained | None = None
        best, best_epoch = -math.inf, 0
        for epoch in range(1, config.num_train_epochs + 1):
            self._run_epoch(epoch, seed, rate, steps, note)
            validation = self._evaluate()
            score = validation[self._task.metric]
            if score > best:
                best, best_epoch = score, epoch
            if selected_run is None or score >= best - self._standard_error(best):
                outputs = self._session.predict(self._test.data)
                weights = self._session.weights() if keep else None
                selected_run = Trained(rate, seed, epoch, score, validation, outputs, weights)
            if epoch - best_epoch >= config.patience:
                break
        assert selected_run is not None
        self._progress.skip_to(first + steps)
        self._progress.reporter.note(
            f"{note}: learning rate {rate:g}, seed {seed}: {self._task.metric} "
            f"{selected_run.score:.4f} on the development set after epoch {selected_run.epoch}"
        )
        return selected_run

    def _standard_error(self, score: float) -> float:
        labels = sum(float(weights.sum()) for weights in self._validation.data.weights)
        return standard_error(self._task.metric, score, labels)

    def _run_epoch(self, epoch: int, seed: int, rate: float, steps: int, note: str) -> None:
        schedule = make_schedule(self._session.config, rate, steps)
        losses: list[Any] = []
        batches = shuffled_batches(self._lengths, self._session.batch_size, 1000 * seed + epoch)
        often = max(1, len(batches) // _LOGS_PER_EPOCH)
        for number, chosen in enumerate(batches, 1):
            step = (epoch - 1) * len(batches) + number
            losses.append(self._session.step(self._train.data, chosen, step))
            self._progress.add(note)
            if number % often == 0 or number == len(batches):
                loss = float(self._session.fetch(losses).mean())
                losses = []
                _check_finite(loss, rate)
                figures = {"loss": loss, "learning_rate": float(schedule.at(step - 1)),
                           "epoch": step / len(batches)}  # fmt: skip
                self._report(figures)

    def _evaluate(self) -> dict[str, float]:
        outputs = self._session.predict(self._validation.data)
        metrics = self._task.measure(self._validation, outputs)
        metrics = {"loss": mean_loss(self._validation, outputs, self._task), **metrics}
        self._report({f"eval_{name}": value for name, value in metrics.items()})
        return metrics

    def _report(self, figures: dict[str, float]) -> None:
        named = {f"{self._prefix}{name}": value for name, value in figures.items()}
        self._progress.reporter.metrics(self._progress.done, named)


def standard_error(metric: str, score: float, labels: float) -> float:
    """Approximates the standard error of a share or a correlation; 0 for other metrics."""
    if metric in _CORRELATIONS:
        return (1 - score**2) / math.sqrt(max(labels - 1, 1))
    if metric in _SHARES:
        return math.sqrt(score * (1 - score) / max(labels, 1))
    return 0.0


def mean_loss(prepared: Prepared, outputs: Outputs, task: Task) -> float:
    """Computes the mean cross-entropy in nats, or squared error of standardised numbers."""
    total = weight = 0.0
    data = prepared.data
    for logits, labels, weights in zip(outputs, data.labels, data.weights, strict=True):
        predictions = logits[: len(labels)].astype(np.float64)
        if task.labels is None:
            losses = (predictions[:, 0] - labels.astype(np.float64)) ** 2
        else:
            shifted = predictions - predictions.max(axis=-1, keepdims=True)
            chosen = shifted[np.arange(len(labels)), labels.astype(np.intp)]
            losses = np.log(np.exp(shifted).sum(axis=-1)) - chosen
        total += float(losses @ weights)
        weight += float(weights.sum())
    return total / max(weight, 1.0)


def _check_finite(loss: float, rate: float) -> None:
    if not math.isfinite(loss):
        raise RunError(
            "The training diverged",
            expected="a finite loss",
            received=f"{loss} with the learning rate {rate:g}",
            fix="set ⟬learning_rates⟭ to lower values, or ⟬dtype_policy⟭ to float32",
        )
