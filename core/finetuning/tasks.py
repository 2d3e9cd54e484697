"""Defines the interface of the tasks: sequences to train on, and metrics of the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from core.config.finetune import FinetuneConfig
from core.errors import CorpusError
from core.finetuning.alignment import Window
from core.finetuning.batches import LabelledSequences
from core.finetuning.encoding import TextEncoder, TokenSequence, check_not_empty
from core.finetuning.examples import NO_TAG, Example, Sentence, Splits
from core.finetuning.glue import TASKS
from core.finetuning.labels import Labels, check_known
from core.finetuning.metrics import classification_metrics, regression_metrics, tagging_metrics
from core.finetuning.spans import find_scheme
from core.finetuning.target_scale import TargetScale

Outputs = Sequence[NDArray[np.float32]]


@dataclass(frozen=True)
class Prepared:
    """Encoded examples, and how to measure a model's outputs for them."""

    data: LabelledSequences
    examples: Sequence[Any]
    windows: Sequence[Window] = ()


class Task(Protocol):
    """A kind of task.

    Attributes:
        labels: The classes; None for regression.
        outputs: Logits per text or token.
        scale: Mean and deviation of the numbers that regression learns; None for classes.
        metric: Selects the best epoch and learning rate; higher is better. Its value on the
            development set depends on what is predicted.
        note: Notes on the labels; mostly empty.
    """

    labels: Labels | None
    outputs: int
    scale: TargetScale | None
    metric: str
    note: str

    def prepare(self, examples: Sequence[Any], encoder: TextEncoder) -> Prepared:
        """Encodes examples."""

    def measure(self, prepared: Prepared, outputs: Outputs) -> dict[str, float]:
        """Computes the metrics of logits, one array per sequence."""

    def baseline(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Computes the metrics of always predicting the same: the majority class or the mean."""


class Classification:
    """A class per text."""

    scale: TargetScale | None = None
    note = ""

    def __init__(self, splits: Splits, config: FinetuneConfig) -> None:
        train = cast("Sequence[Example]", splits.train)
        validation = cast("Sequence[Example]", splits.validation)
        is_sample = splits.is_sample and not config.glue
        self.labels: Labels | None = Labels.of(
            (example.label for example in train), splits.class_names, is_sample=splits.is_sample
        )
        if config.glue:
            self.labels = Labels(TASKS[config.glue].labels)
        for name, part in (
            ("The development set", validation),
            ("The test set", cast("Sequence[Example]", splits.test)),
        ):
            check_known(self.labels, [example.label for example in part], name, is_sample=is_sample)
        self.outputs = len(self.labels)
        # Matthews correlation and F1 of one class may be 0 whatever is predicted.
        has_classes = len({example.label for example in validation}) > 1
        is_official = bool(config.glue) and has_classes
        self.metric = TASKS[config.glue].metrics[0] if is_official else "accuracy"

    def prepare(self, examples: Sequence[Any], encoder: TextEncoder) -> Prepared:
        assert self.labels is not None
        numbers = {name: number for number, name in enumerate(self.labels.names)}
        values = [np.array([numbers[example.label]], np.int32) for example in examples]
        return _prepared_texts(examples, values, encoder)

    def measure(self, prepared: Prepared, outputs: Outputs) -> dict[str, float]:
        return self._metrics(prepared.examples, [int(logits[0].argmax()) for logits in outputs])

    def baseline(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        assert self.labels is not None
        most = np.bincount(self._numbers(train), minlength=self.outputs).argmax()
        return self._metrics(test, [int(most)] * len(test))

    def _metrics(self, examples: Sequence[Any], predicted: Sequence[int]) -> dict[str, float]:
        truth = self._numbers(examples)
        return classification_metrics(truth, np.array(predicted, np.int64), self.outputs)

    def _numbers(self, examples: Sequence[Any]) -> NDArray[np.int64]:
        assert self.labels is not None
        numbers = {name: number for number, name in enumerate(self.labels.names)}
        return np.array([numbers[example.label] for example in examples], np.int64)


class Regression:
    """A number per text.

    The model learns standardised numbers; the metrics are those of the numbers themselves.
    """

    labels: Labels | None = None
    outputs = 1
    metric = "pearson"
    note = ""

    def __init__(self, splits: Splits, *, adds_constant: bool = True) -> None:
        if len(np.unique(_values(splits.validation))) < 2:
            can_differ = len(np.unique(_values(splits.train))) > 1
            raise CorpusError(
                "The development set has no two different numbers, so their correlation, which "
                "selects the best epoch, is undefined",
                expected="at least 2 examples with different numbers",
                received=f"{len(splits.validation)} with the number {splits.validation[0][1]}",
                fix="set ⟬validation_path⟭ or ⟬validation_split⟭ to a larger development set"
                if can_differ
                else "set ⟬label_column⟭ to a column whose numbers differ",
                field="validation_path" if can_differ else "label_column",
            )
        self._scale = TargetScale.of(_values(splits.train), adds_constant=adds_constant)
        self.scale: TargetScale | None = self._scale

    def prepare(self, examples: Sequence[Any], encoder: TextEncoder) -> Prepared:
        values = list(self._scale.standardised(_values(examples))[:, None])
        return _prepared_texts(examples, values, encoder)

    def measure(self, prepared: Prepared, outputs: Outputs) -> dict[str, float]:
        predicted = self._scale.restored(np.array([logits[0, 0] for logits in outputs], np.float32))
        return regression_metrics(_values(prepared.examples), predicted)

    def baseline(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        return regression_metrics(_values(test), np.full(len(test), _values(train).mean()))


class Tagging:
    """A tag per word."""

    scale: TargetScale | None = None

    def __init__(self, splits: Splits) -> None:
        train = cast("Sequence[Sentence]", splits.train)
        self.labels: Labels | None = Labels.of(
            (tag for example in train for tag in example.tags if tag != NO_TAG),
            splits.class_names,
            is_sample=splits.is_sample,
        )
        self.outputs = len(self.labels)
        self._scheme, self.note = find_scheme(self.labels.names)
        validation = cast("Sequence[Sentence]", splits.validation)
        # Without a span in the development set, their F1 is 0 whatever is predicted.
        scheme = self._scheme
        is_telling = scheme and any(scheme.spans_of(example.tags) for example in validation)
        self.metric = "span_f1" if is_telling else "accuracy"

    def prepare(self, examples: Sequence[Any], encoder: TextEncoder) -> Prepared:
        windows = encoder.windows([example.words for example in examples])
        sequences = [TokenSequence(window.ids) for window in windows]
        check_not_empty(sequences, [examples[window.sentence].place for window in windows])
        pairs = [self._labels(examples[window.sentence].tags, window) for window in windows]
        data = LabelledSequences(
            sequences, [labels for labels, _ in pairs], [weights for _, weights in pairs]
        )
        return Prepared(data, examples, windows)

    def measure(self, prepared: Prepared, outputs: Outputs) -> dict[str, float]:
        tags = self.tags_of(prepared, outputs)
        truth = [example.tags for example in prepared.examples]
        return tagging_metrics(truth, tags, self._scheme)

    def tags_of(self, prepared: Prepared, outputs: Outputs) -> list[list[str]]:
        """Returns each word's predicted tag, by sentence."""
        assert self.labels is not None
        return join_windows(prepared.windows, outputs, self.labels.names, len(prepared.examples))

    def baseline(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        assert self.labels is not None
        counts = Counter(tag for example in train for tag in example.tags)
        most = max(self.labels.names, key=lambda name: counts[name])
        truth = [example.tags for example in test]
        constant = [[most] * len(tags) for tags in truth]
        return tagging_metrics(truth, constant, self._scheme)

    def _labels(
        self, tags: Sequence[str], window: Window
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Labels first subwords; missing tags, and unknown ones of tests, weigh nothing."""
        assert self.labels is not None
        numbers = {name: number for number, name in enumerate(self.labels.names)}
        labels = np.zeros(len(window.ids), np.int32)
        weights = np.zeros(len(window.ids), np.float32)
        words = zip(window.positions, window.has_own, strict=True)
        for number, (position, has_own) in enumerate(words, window.first):
            if has_own and tags[number] in numbers:
                labels[position] = numbers[tags[number]]
                weights[position] = 1
        return labels, weights


def make_task(config: FinetuneConfig, splits: Splits, *, adds_constant: bool = True) -> Task:
    """Makes the task that a config names.

    Args:
        adds_constant: Whether the model can add a constant to its logits.
    """
    if config.task == "token_classification":
        return Tagging(splits)
    if config.task == "classification":
        return Classification(splits, config)
    return Regression(splits, adds_constant=adds_constant)


def join_windows(
    windows: Sequence[Window], outputs: Outputs, names: Sequence[str], sentences: int
) -> list[list[str]]:
    """Returns the most probable tag of each word, by sentence."""
    tags_of_sentences: list[list[str]] = [[] for _ in range(sentences)]
    for window, logits in zip(windows, outputs, strict=True):
        chosen = logits[window.positions].argmax(axis=-1)
        tags_of_sentences[window.sentence] += [names[number] for number in chosen]
    return tags_of_sentences


def _prepared_texts(
    examples: Sequence[Any], labels: Sequence[NDArray[np.generic]], encoder: TextEncoder
) -> Prepared:
    sequences = encoder.encode([example.texts for example in examples])
    check_not_empty(sequences, [example.place for example in examples])
    weights = [np.ones(1, np.float32)] * len(sequences)
    return Prepared(LabelledSequences(sequences, labels, weights), examples)


def _values(examples: Sequence[Any]) -> NDArray[np.float64]:
    return np.array([float(example.label) for example in examples], np.float64)
