"""Reads the examples of a task and divides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePath

import numpy as np

from core.config.finetune import FinetuneConfig
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
        train, validation = hold_out(train)
    name = _name_of(config.test_path, config.test_split) if test else "development set"
    return Splits(train, validation, test or validation, name)


def check_files(config: FinetuneConfig) -> None:
    """Reads the first examples of each file; raises ConfigError or CorpusError."""
    for field in ("train_path", "validation_path", "test_path"):
        if path := getattr(config, field):
            _read(config, path, "", field, _CHECKED)


def hold_out(examples: Found) -> tuple[Found, Found]:
    """Holds out a tenth of the examples, at random but always the same ones."""
    count = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(examples))))
    if len(examples) < 2:
        raise CorpusError(
            "There are too few training examples",
            expected="at least 2, of which one is held out for early stopping",
            received=str(len(examples)),
            fix="add examples",
            field="train_path",
        )
    order = np.random.default_rng(_HOLD_OUT_SEED).permutation(len(examples))
    chosen = set(order[:count].tolist())
    kept = [one for number, one in enumerate(examples) if number not in chosen]
    return kept, [examples[number] for number in sorted(chosen)]


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
    return (_with_name(one, names) for one in found) if names else found


def _with_name(example: Example, names: Sequence[str]) -> Example:
    """Replaces the number of a GLUE class by its name."""
    is_number = example.label.isdecimal() and int(example.label) < len(names)
    return example._replace(label=names[int(example.label)]) if is_number else example


def _is_table(path: str) -> bool:
    """Tells tables with lists of words from column files, which may end in .tsv, too."""
    suffixes = [one.lower() for one in PurePath(path).suffixes if one.lower() not in _PACKED]
    return bool(suffixes) and suffixes[-1] in _TABLES and suffixes[-1] not in (".csv", ".tsv")


def _name_of(path: str, split: str) -> str:
    return PurePath(path).name if path else split
