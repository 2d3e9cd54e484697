"""Reads the examples of a task and divides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePath

import numpy as np

from core.config.finetune import FinetuneConfig, FinetuneTask
from core.errors import ConfigError, CorpusError
from core.finetuning.conll import read_sentences
from core.finetuning.examples import Example, Sentence, Splits
from core.finetuning.glue import TASKS
from core.finetuning.tables import file_records, hub_records, read_examples, read_word_lists

# Share of the training examples, for early stopping, if there is no development set.
_HELD_OUT = 0.1
_MOST_HELD_OUT = 2000
_CHECKED = 20
_HOLD_OUT_SEED = 20_190_106
_ENOUGH: dict[FinetuneTask, str] = {
    "classification": "at least 2 examples of some class",
    "regression": "at least 3 examples",
    "token_classification": "at least 2 sentences",
}
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip")

Found = Sequence[Example | Sentence]


def read_splits(config: FinetuneConfig) -> Splits:
    """Reads all examples.

    Raises:
        ConfigError, CorpusError: They are missing, unreadable or unsuitable.
    """
    if not config.train_path and not config.dataset_name:
        raise ConfigError(
            "There are no training examples",
            expected="a training file, a dataset or a GLUE task",
            received="nothing",
            fix="set train_path or dataset_name, or choose a GLUE task",
            field="train_path",
        )
    train = _read(config, config.train_path, config.train_split, "train_path", config.limit)
    validation = _read(config, config.validation_path, config.validation_split, "validation_path")
    test = _read(config, config.test_path, config.test_split, "test_path")
    if not validation:
        train, validation = hold_out(train, config.task)
    name = _name_of(config.test_path, config.test_split) if test else "development set"
    return Splits(train, validation, test or validation, name)


def check_files(config: FinetuneConfig) -> None:
    """Reads the first examples of each file; raises ConfigError or CorpusError."""
    for field in ("train_path", "validation_path", "test_path"):
        if path := getattr(config, field):
            _read(config, path, "", field, _CHECKED)


def hold_out(examples: Found, task: FinetuneTask) -> tuple[Found, Found]:
    """Holds out a tenth of the examples, at random but always the same ones.

    Each class keeps a training example. Held-out numbers differ, so that they have a correlation.

    Raises:
        CorpusError: There are too few examples.
    """
    count = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(examples))))
    order = np.random.default_rng(_HOLD_OUT_SEED).permutation(len(examples)).tolist()
    if task == "classification":
        order = _without_last_of_class(examples, order)
    if task == "regression":
        order = _with_different_numbers_first(examples, order)
        count = max(2, count)
    chosen = set(order[:count])
    if not 0 < len(chosen) < len(examples):
        raise CorpusError(
            "There are too few training examples to hold some out for early stopping",
            expected=_ENOUGH[task],
            received=f"{len(examples)}",
            fix="add examples, or set validation_path to a development set",
            field="train_path",
        )
    kept = [one for number, one in enumerate(examples) if number not in chosen]
    return kept, [examples[number] for number in sorted(chosen)]


def _without_last_of_class(examples: Found, order: Sequence[int]) -> list[int]:
    """Leaves out the last example of each class."""
    last = {_label_of(examples[number]): number for number in order}
    return [number for number in order if last[_label_of(examples[number])] != number]


def _with_different_numbers_first(examples: Found, order: list[int]) -> list[int]:
    """Moves the first number that differs from the very first to the second place."""
    others = (one for one in order if _label_of(examples[one]) != _label_of(examples[order[0]]))
    second = next(others, None)
    if second is None:
        return order
    return [order[0], second, *(one for one in order[1:] if one != second)]


def _label_of(example: Example | Sentence) -> str:
    assert isinstance(example, Example)
    return example.label


def _read(
    config: FinetuneConfig, path: str, split: str, field: str, limit: int | None = None
) -> Found:
    if not path and (config.train_path or not split):
        return []
    found = list(islice(_examples(config, path, split, field), limit))
    if not found:
        raise CorpusError(
            f"{path or config.dataset_name} has no examples",
            expected="at least one labelled example",
            received="none",
            fix="choose another file or split",
            field=field if path else "dataset_name",
        )
    return found


def _examples(
    config: FinetuneConfig, path: str, split: str, field: str
) -> Iterable[Example | Sentence]:
    is_tagging = config.task == "token_classification"
    if path and is_tagging and not _is_table(path):
        return read_sentences(config, path, field)
    records = file_records(config, path, field) if path else hub_records(config, split)
    if is_tagging:
        return read_word_lists(config, records)
    found = read_examples(config, records)
    names = TASKS[config.glue].labels if config.glue else ()
    return (_with_name(one, names, config.glue) for one in found) if names else found


def _with_name(example: Example, names: Sequence[str], task: str) -> Example:
    """Replaces the number of a GLUE class by its name; raises CorpusError for other labels."""
    by_number = {str(number): name for number, name in enumerate(names)}
    label = by_number.get(example.label, example.label)
    if label not in names:
        raise CorpusError(
            f"{example.place} has a label that the GLUE task {task} lacks",
            expected=", ".join((*names, *by_number)),
            received=example.label,
            fix="correct the label, or set task, text_column and label_column instead of glue",
            field="label_column",
        )
    return example._replace(label=label)


def _is_table(path: str) -> bool:
    """Tells tables with lists of words from column files, which may end in .tsv, too."""
    suffixes = [one.lower() for one in PurePath(path).suffixes if one.lower() not in _PACKED]
    return bool(suffixes) and suffixes[-1] in _TABLES and suffixes[-1] not in (".csv", ".tsv")


def _name_of(path: str, split: str) -> str:
    return PurePath(path).name if path else split
