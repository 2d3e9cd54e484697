"""Which metrics the tasks have, and which of them decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.config.finetune import FinetuneConfig
from core.errors import CorpusError
from core.finetuning.alignment import Window
from core.finetuning.batches import LabelledSequences
from core.finetuning.encoding import TokenSequence
from core.finetuning.examples import Example, Sentence, Splits
from core.finetuning.tasks import Prepared, Regression, Tagging, make_task
from core.finetuning.training import mean_loss

SPANS = [Sentence(("EU", "runs"), ("B-ORG", "O"))] * 2
OUTSIDE = [Sentence(("it", "runs"), ("O", "O"))] * 4


class FakeEncoder:
    """Encodes each word as one token."""

    def windows(self, sentences: list[tuple[str, ...]]) -> list[Window]:
        return [_window(number, len(words)) for number, words in enumerate(sentences)]


def _window(sentence: int, words: int) -> Window:
    places = np.arange(words, dtype=np.int32)
    return Window(sentence, 0, places, places, np.ones(words, bool))


def measure(task: Tagging, examples: list[Sentence], tag: str) -> dict[str, float]:
    """Computes the metrics of always predicting a tag."""
    assert task.labels is not None
    logits = np.eye(task.outputs, dtype=np.float32)[[task.labels.number(tag)] * 2]
    windows = [_window(number, len(one.words)) for number, one in enumerate(examples)]
    prepared = Prepared(LabelledSequences([], [], []), examples, windows)
    return task.measure(prepared, [logits] * len(examples))


def test_figures_of_spans_depend_on_the_training_tags_only() -> None:
    task = Tagging(Splits([*SPANS, *OUTSIDE], OUTSIDE, OUTSIDE, "test"))
    names = {"accuracy", "f1_macro", "span_f1", "span_precision", "span_recall"}
    for examples in (SPANS, OUTSIDE):
        for tag in ("O", "B-ORG"):
            assert measure(task, examples, tag).keys() == names
        assert task.baseline([*SPANS, *OUTSIDE], examples).keys() == names
    unknown = [Sentence(("it", "runs"), ("O", "PRON"))]
    assert measure(task, unknown, "O").keys() == names


@pytest.mark.parametrize(("validation", "metric"), [(SPANS, "span_f1"), (OUTSIDE, "accuracy")])
def test_spans_decide_if_the_development_set_has_some(
    validation: list[Sentence], metric: str
) -> None:
    assert Tagging(Splits([*SPANS, *OUTSIDE], validation, [], "test")).metric == metric


def test_words_without_a_tag_weigh_nothing() -> None:
    train = [Sentence(("a", "b", "c"), ("", "X", "Y"))]
    task = Tagging(Splits(train, train, train, "test"))
    assert task.labels is not None and task.labels.names == ("X", "Y")
    prepared = task.prepare(train, FakeEncoder())  # type: ignore[arg-type]
    assert prepared.data.weights[0].tolist() == [0, 1, 1]
    assert task.baseline(train, train)["accuracy"] == 1 / 2


def texts(*labels: str) -> list[Any]:
    return [Example(("a",), label) for label in labels]


@pytest.mark.parametrize("numbers", [("1.0",), ("1.0", "1.0", "1")])
def test_development_set_without_a_correlation_is_refused(numbers: tuple[str, ...]) -> None:
    config = FinetuneConfig(task="regression")
    with pytest.raises(CorpusError, match="a larger development set") as caught:
        make_task(config, Splits(texts("1", "2"), texts(*numbers), texts("1", "2"), "test"))
    assert caught.value.field == "validation_path"
    assert make_task(config, Splits(texts("1"), texts("1", "2"), [], "test")).metric == "pearson"


class OneTokenEncoder:
    """Encodes each text as one token."""

    def encode(self, texts: list[tuple[str, ...]]) -> list[TokenSequence]:
        return [TokenSequence(np.zeros(1, np.int32), position=0) for _ in texts]


@pytest.mark.parametrize(
    ("numbers", "deviation"),
    [
        ((0.0, 25.0, 50.0), 20.412414),
        ((1e5, 1.01e5), 500.0),
        ((-3.0, -3.0), 1.0),
        ((0.1,) * 3, 1.0),
    ],
)
def test_regression_learns_standardised_numbers(
    numbers: tuple[float, ...], deviation: float
) -> None:
    train, test = texts(*map(str, numbers)), texts("1.0", str(2 + numbers[-1]))
    task = Regression(Splits(train, test, test, "test"))
    assert task.scale and task.scale.deviation == pytest.approx(deviation)
    labels = [task.prepare(one, OneTokenEncoder()).data.labels  # type: ignore[arg-type]
              for one in (train, test)]  # fmt: skip
    wanted = np.array(numbers) - np.mean(numbers)
    assert np.concatenate(labels[0]) == pytest.approx(wanted / deviation, abs=1e-6)
    prepared = task.prepare(test, OneTokenEncoder())  # type: ignore[arg-type]
    outputs = [one[:, None] for one in labels[1]]
    assert mean_loss(prepared, outputs, task) == 0
    found = task.measure(prepared, outputs)
    assert found["pearson"] == pytest.approx(1, abs=1e-4) and found["mse"] < 1e-3
    off = task.measure(prepared, [one + 0.5 for one in outputs])
    assert off["mse"] == pytest.approx((deviation / 2) ** 2, rel=1e-3), "in the original units"
    assert mean_loss(prepared, [one + 0.5 for one in outputs], task) == pytest.approx(0.25)


def test_classes_keep_the_order_of_a_dataset_if_it_names_all() -> None:
    train = texts("spam", "ham")
    for names, found in ((("x", "spam", "ham"), ("spam", "ham")), (("spam",), ("ham", "spam"))):
        task = make_task(FinetuneConfig(), Splits(train, train, train, "test", names))
        assert task.labels and task.labels.names == found


def test_accuracy_decides_if_the_development_set_has_one_class() -> None:
    train = texts("acceptable", "unacceptable")
    config = FinetuneConfig(glue="cola")
    assert make_task(config, Splits(train, train, train, "test")).metric == "matthews"
    assert make_task(config, Splits(train, train[:1], train, "test")).metric == "accuracy"
