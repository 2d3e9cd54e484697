"""Reads the examples of a task and divides them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np

from core.config.finetune import FinetuneConfig, FinetuneTask
from core.errors import ConfigError, CorpusError
from core.finetuning.conll import read_sentences
from core.finetuning.examples import NO_TAG, Example, Sentence, Splits
from core.finetuning.file_kinds import holds_tables
from core.finetuning.glue import TASKS
from core.finetuning.sampling import sample
from core.finetuning.tables import Choose, TableReader, file_records, hub_records
from core.finetuning.unused import check_used

# Share of the training examples, for early stopping, if there is no development set.
_HELD_OUT = 0.1
_MOST_HELD_OUT = 2000
_CHECKED = 20
_HOLD_OUT_SEED = 20_190_106
_ENOUGH: dict[FinetuneTask, str] = {
    "classification": "a class with at least 2 examples",
    "regression": "at least 3 examples",
    "token_classification": "a sentence without which the others have at least 2 tags",
}
_SHOWN_TAGS = 10
_FEW_MEASURED = 20
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")

Found = Sequence[Example | Sentence]


@dataclass(frozen=True)
class _Part:
    """Examples, with the order of their classes if the data define one."""

    examples: Found = ()
    class_names: tuple[str, ...] = ()


def read_splits(config: FinetuneConfig, note: Callable[[str], Any] | None = None) -> Splits:
    """Reads all examples.

    Args:
        note: Called with a message if rows are left out, or tags can't be learned.

    Raises:
        ConfigError, CorpusError: They are missing, unreadable or unsuitable.
    """
    _check_settings(config)
    limited = partial(sample, count=config.limit) if config.limit else iter
    part = _read(config, "train", limited, note)
    validation = _read(config, "validation", iter, note).examples
    test = _read(config, "test", iter, note).examples
    train = part.examples
    is_sample = bool(config.limit) and len(train) == config.limit
    if not validation:
        train, validation = hold_out(train, config.task, is_sample=is_sample)
    name = _name_of(config.test_path, config.test_split) if test else "development set"
    splits = Splits(train, validation, test or validation, name, part.class_names, is_sample)
    if note:
        if config.task == "token_classification":
            _note_unknown_tags(splits, note)
        _note_few_measured(splits, config.task, note)
    return splits


def _check_settings(config: FinetuneConfig) -> None:
    if not config.train_path and not config.dataset_name:
        raise ConfigError(
            "There are no training examples",
            expected="a training file, a dataset or a GLUE task",
            fix="set ⟬train_path⟭ or ⟬dataset_name⟭, or choose a GLUE task",
            field="train_path",
        )
    check_used(config)


def check_files(config: FinetuneConfig) -> None:
    """Reads the first examples of each file; raises ConfigError or CorpusError."""
    _check_settings(config)
    for part in ("train", "validation", "test"):
        if getattr(config, f"{part}_path"):
            _read(config, part, lambda items: islice(items, _CHECKED))


def read_beginning(config: FinetuneConfig, part: str, count: int) -> Found:
    """Reads the first examples of a part: train, validation or test; raises as `read_splits`."""
    return _read(config, part, lambda items: islice(items, count)).examples


def _note_unknown_tags(splits: Splits, note: Callable[[str], Any]) -> None:
    known = _tags_of(splits.train)
    parts = {"development": splits.validation, "test": splits.test}
    if splits.test is splits.validation:
        del parts["test"]
    for name, examples in parts.items():
        if unknown := sorted(_tags_of(examples) - known):
            more = f" and {len(unknown) - _SHOWN_TAGS} more" if len(unknown) > _SHOWN_TAGS else ""
            note(
                f"Only the {name} set has the tags {', '.join(unknown[:_SHOWN_TAGS])}{more}: the "
                "model doesn't learn them, and their words count as errors"
                + ("; a larger limit may help" if splits.is_sample else "")
            )


def _note_few_measured(splits: Splits, task: FinetuneTask, note: Callable[[str], Any]) -> None:
    """Warns of a test set that is too small, or lacks a class."""
    count = len(splits.test)
    if count < _FEW_MEASURED:
        examples = "1 example" if count == 1 else f"{count} examples"
        note(
            f"The figures rest on {examples} ({splits.test_name}), too few to say how good the "
            "model is; more labelled examples help"
        )
    missing = sorted(_tags_of(splits.train) - _tags_of(splits.test))
    if task == "classification" and missing:
        shown = ", ".join(missing[:_SHOWN_TAGS]) + (" …" if len(missing) > _SHOWN_TAGS else "")
        note(f"No example of the {splits.test_name} has the class {shown}: it isn't measured")


def _tags_of(examples: Found) -> set[str]:
    return {label for example in examples for label in _labels_of(example)}


def hold_out(
    examples: Found, task: FinetuneTask, *, is_sample: bool = False
) -> tuple[Found, Found]:
    """Holds out a tenth of the examples, at random but always the same ones.

    Each class keeps a training example, and each tag a sentence unless no sentence can be spared.
    Held-out numbers differ, so that they have a correlation.

    Args:
        is_sample: Whether the option `limit` chose the examples.

    Raises:
        CorpusError: There are too few examples.
    """
    count = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(examples))))
    order = np.random.default_rng(_HOLD_OUT_SEED).permutation(len(examples)).tolist()
    if task != "regression":
        order = _sparing_labels(examples, order) or _leaving_two_tags(examples, order, task)
    if task == "regression":
        order = _with_different_numbers_first(examples, order)
        count = max(2, count)
    chosen = set(order[:count])
    if not 0 < len(chosen) < len(examples):
        raise CorpusError(
            "There are too few training examples to hold some out for early stopping",
            expected=_ENOUGH[task],
            received=f"{len(examples)} sentences with {len(_tags_of(examples))} tags"
            if task == "token_classification"
            else _describe_labels(examples),
            fix=f"{_advice(examples, task, is_sample=is_sample)}, or set ⟬validation_path⟭ to a "
            "development set",
            field="train_path",
        )
    remaining = [example for number, example in enumerate(examples) if number not in chosen]
    return remaining, [examples[number] for number in sorted(chosen)]


def _describe_labels(examples: Found) -> str:
    different = len({label for example in examples for label in _labels_of(example)})
    return f"{len(examples)} examples with {different} different labels"


def _advice(examples: Found, task: FinetuneTask, *, is_sample: bool) -> str:
    if is_sample:
        return "raise limit"
    if task == "classification" and all(_is_number(example) for example in examples):
        return "set ⟬task⟭ to regression if the labels are numbers, add examples"
    return "add examples"


def _is_number(example: Example | Sentence) -> bool:
    return all(_NUMBER.fullmatch(label) for label in _labels_of(example))


def _sparing_labels(examples: Found, order: Sequence[int]) -> list[int]:
    """Leaves out examples without which the others would lack a class or a tag."""
    left = Counter(label for example in examples for label in _labels_of(example))
    chosen_numbers = []
    for number in order:
        labels = _labels_of(examples[number])
        if all(left[label] > 1 for label in labels):
            left.subtract(labels)
            chosen_numbers.append(number)
    return chosen_numbers


def _leaving_two_tags(examples: Found, order: Sequence[int], task: FinetuneTask) -> list[int]:
    """Returns a sentence without which the others still have two tags, if there is one."""
    if task == "token_classification":
        for number in order:
            others = [example for other, example in enumerate(examples) if other != number]
            if len(_tags_of(others)) > 1:
                return [number]
    return []


def _with_different_numbers_first(examples: Found, order: list[int]) -> list[int]:
    """Moves the first number that differs from the very first to the second place."""
    first = _labels_of(examples[order[0]])
    others = (number for number in order if _labels_of(examples[number]) != first)
    second = next(others, None)
    if second is None:
        return order
    return [order[0], second, *(number for number in order[1:] if number != second)]


def _labels_of(example: Example | Sentence) -> set[str]:
    """Returns the class of a text, or the tags of a sentence."""
    return {example.label} if isinstance(example, Example) else set(example.tags) - {NO_TAG}


def _read(
    config: FinetuneConfig, part: str, choose: Choose, note: Callable[[str], Any] | None = None
) -> _Part:
    """Reads a part of the data: train, validation or test."""
    path, split = getattr(config, f"{part}_path"), getattr(config, f"{part}_split")
    if not path and (config.train_path or not split):
        return _Part()
    field = f"{part}_path"
    if path and config.task == "token_classification" and not holds_tables(path, field):
        sentences = list(choose(read_sentences(config, path, field)))
        return _Part(_not_empty(sentences, path, field))
    where = path or f"{config.dataset_name} ({split})"
    records = (
        file_records(config, path, field) if path else hub_records(config, split, f"{part}_split")
    )
    reader = TableReader(config, records)
    examples = list(_with_glue_names(config, reader.examples(choose)))
    if reader.unlabelled and note:
        note(
            f"Left out {reader.unlabelled:,} rows of {where}: their class is -1, which means that "
            "they have no label"
        )
    return _Part(
        _not_empty(examples, where, field if path else f"{part}_split", reader.unlabelled),
        reader.class_names,
    )


def _not_empty(examples: Found, where: str, field: str, unlabelled: int = 0) -> Found:
    if examples:
        return examples
    raise CorpusError(
        f"{where} has no examples",
        expected="at least one labelled example",
        received=f"{unlabelled:,} rows, all of the class -1, which means no label"
        if unlabelled
        else "none",
        fix="choose another file or split",
        field=field,
    )


def _with_glue_names(
    config: FinetuneConfig, examples: Iterable[Example | Sentence]
) -> Iterator[Example | Sentence]:
    names = TASKS[config.glue].labels if config.glue else ()
    for example in examples:
        yield _with_name(example, names, config.glue) if names else example  # type: ignore[arg-type]


def _with_name(example: Example, names: Sequence[str], task: str) -> Example:
    """Replaces the number of a GLUE class by its name; raises CorpusError for other labels."""
    by_number = {str(number): name for number, name in enumerate(names)}
    label = by_number.get(example.label, example.label)
    if label not in names:
        raise CorpusError(
            f"{example.place} has a label that the GLUE task {task} lacks",
            expected=", ".join((*names, *by_number)),
            received=example.label,
            fix="correct the label, or set ⟬task⟭, ⟬text_column⟭ and ⟬label_column⟭ instead of "
            "⟬glue⟭",
            field="label_column",
        )
    return example._replace(label=label)


def _name_of(path: str, split: str) -> str:
    return PurePath(path).name if path else split
