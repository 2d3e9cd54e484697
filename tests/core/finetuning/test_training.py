"""Which epoch of a training is kept, and what is reported."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from core.config.finetune import FinetuneConfig
from core.finetuning.batches import LabelledSequences
from core.finetuning.encoding import TokenSequence
from core.finetuning.session import Session
from core.finetuning.tasks import Prepared, Task
from core.finetuning.training import Progress, Trainer, standard_error
from core.records.events import Reporter


class FakeSession:
    """Its outputs are right for so many of 100 examples, by epoch."""

    batch_size = 100

    def __init__(self, right: list[int], **values: Any) -> None:
        self.config = FinetuneConfig(num_train_epochs=len(right), **values)
        self._right = right
        self._epoch = 0

    def start(self, *_: object) -> None:
        self._epoch = 0

    def step(self, *_: object) -> float:
        self._epoch += 1
        return 0.5

    def fetch(self, losses: list[float]) -> Any:
        return np.array(losses, np.float32)

    def predict(self, _: LabelledSequences) -> list[Any]:
        right = self._right[self._epoch - 1]
        return [np.array([[1.0, float(2 * (row < right))]]) for row in range(100)]

    def weights(self) -> dict[str, Any]:
        return {"epoch": np.array(self._epoch)}


class FakeTask:
    metric = "accuracy"
    labels = ("no", "yes")

    def measure(self, _: Prepared, outputs: list[Any]) -> dict[str, float]:
        return {"accuracy": sum(int(one[0].argmax()) for one in outputs) / len(outputs)}


def train(right: list[int], reporter: Reporter, *, is_random: bool = False, **values: Any) -> Any:
    one = np.ones(1, np.int32)
    data = LabelledSequences(
        [TokenSequence(np.arange(3, dtype=np.int32), position=0)] * 100, [one] * 100,
        [np.ones(1, np.float32)] * 100,
    )  # fmt: skip
    prepared = cast(Prepared, type("Prepared", (), {"data": data, "examples": ()}))
    session = cast(Session, FakeSession(right, **values))
    progress = Progress(reporter, len(right))
    trainer = Trainer(session, cast(Task, FakeTask()), prepared, prepared, prepared, progress)
    pretrained = {} if is_random else {"kernel": np.ones(1, np.float32)}
    return trainer.run(pretrained, 1e-3, 0, "training", keep=True)


@pytest.mark.parametrize(
    ("right", "epoch"),
    [
        ([70, 80, 78], 3),  # The standard error of 80 % of 100 is 4 %.
        ([70, 80, 75], 2),
        ([80, 78, 70, 90], 2),  # Stops after two epochs without a better result.
        ([90, 50, 91, 60, 40], 3),
    ],
)
def test_last_epoch_within_a_standard_error_of_the_best_is_kept(
    right: list[int], epoch: int
) -> None:
    found = train(right, Reporter(), patience=2)
    assert (found.epoch, found.score) == (epoch, right[epoch - 1] / 100)
    assert found.weights["epoch"] == epoch


class Figures(Reporter):
    """Keeps the last value of each figure."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def metrics(self, step: int, values: dict[str, float]) -> None:  # type: ignore[override]
        self.values |= values


def test_figures_of_random_weights_have_other_names() -> None:
    reporter = Figures()
    train([70], reporter)
    train([60], reporter, is_random=True)
    found = reporter.values
    assert found["eval_accuracy"] == 0.7 and found["random_init_eval_accuracy"] == 0.6


def test_standard_errors_are_those_of_shares_and_correlations() -> None:
    assert standard_error("accuracy", 0.8, 100) == pytest.approx(0.04)
    assert standard_error("pearson", 0.6, 101) == pytest.approx(0.064)
    assert standard_error("mse", 0.5, 100) == 0
