"""Reads examples from tables: CSV, TSV, JSON lines, Parquet, and datasets on the Hub."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Any

from core.config import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.corpus.files import FilesSource
from core.corpus.hub import HubSource
from core.errors import ConfigError, CorpusError
from core.finetuning.columns import (
    TAGS,
    find_label_column,
    find_text_columns,
    find_words_column,
)
from core.finetuning.examples import Example, Sentence
from core.foreign_files import shown
from core.tokenizer.roles import without_lone_surrogates

Records = Iterator[tuple[str, Mapping[str, Any]]]

# Sums of larger numbers' squared errors, and of their gradients, can overflow float32.
_LARGEST_NUMBER = 1e15


def file_records(config: FinetuneConfig, path: str, field: str) -> Records:
    """Yields the place and values of each row of files."""
    # https://www.iana.org/assignments/media-types/text/tab-separated-values
    is_tsv = ".tsv" in PurePath(path).suffixes
    corpus = CorpusConfig(
        source="files",
        path=path,
        encoding=config.encoding,
        quoting="no" if is_tsv and config.quoting == "auto" else config.quoting,
        csv_header=config.csv_header,
    )
    with _renamed("path", field):
        source = FilesSource(corpus)
    for row in source.table_rows("train"):
        yield row.place, row.values


def hub_records(config: FinetuneConfig, split: str) -> Records:
    """Yields the place and values of each row of a split on the Hub."""
    corpus = CorpusConfig(source="hub", dataset_name=config.dataset_name, train_split=split)
    source = HubSource(corpus)
    for number, values in enumerate(source.rows(config.dataset_config), 1):
        yield f"Row {number} of {config.dataset_name} ({split})", values


def read_examples(config: FinetuneConfig, records: Records) -> Iterator[Example]:
    """Makes examples of texts; raises ConfigError and CorpusError for unsuitable columns."""
    columns, records = _with_columns(records)
    if not columns:
        return
    texts = find_text_columns(columns, config.text_column, config.text_pair_column)
    label = find_label_column(columns, config.label_column)
    first, *second = texts
    # GLUE's QQP has an empty second question: https://github.com/huggingface/datasets/issues/277
    can_be_empty = bool(config.glue)
    for place, values in records:
        found = (
            _text(values.get(first), first, place),
            *(_text(values.get(one), one, place, can_be_empty=can_be_empty) for one in second),
        )
        yield Example(found, _label(values.get(label), label, place, config), place)


def read_word_lists(config: FinetuneConfig, records: Records) -> Iterator[Sentence]:
    """Makes sentences of rows with lists of words and tags."""
    columns, records = _with_columns(records)
    if not columns:
        return
    words = find_words_column(columns, config.text_column)
    tags = find_label_column(columns, config.label_column, TAGS)
    for place, values in records:
        found, named = values.get(words), values.get(tags)
        if not isinstance(found, list) or not isinstance(named, list) or len(found) != len(named):
            raise CorpusError(
                f"{place} has no word for each tag",
                expected=f"lists of equal length in {words!r} and {tags!r}",
                received=f"{shown(found)} and {shown(named)}",
                fix="correct the data, or set text_column and label_column",
                field="text_column",
            )
        if not found:
            continue
        yield Sentence(
            tuple(_text(one, words, place) for one in found),
            tuple(_label(one, tags, place, config) for one in named),
            place,
        )


def _with_columns(records: Records) -> tuple[Sequence[str], Records]:
    first = next(records, None)
    if first is None:
        return [], records
    return list(map(str, first[1])), chain([first], records)


def _text(value: Any, column: str, place: str, *, can_be_empty: bool = False) -> str:
    if isinstance(value, str) and (value.strip() or can_be_empty):
        return without_lone_surrogates(value)
    raise CorpusError(
        f"{place} has no text in the column {column!r}",
        expected="text that isn't empty",
        received=shown(value),
        fix="correct or remove the row, or set text_column and text_pair_column to columns of text",
        field="text_column",
    )


def _label(value: Any, column: str, place: str, config: FinetuneConfig) -> str:
    if config.task == "regression":
        return _number(value, column, place)
    if label := _class(value):
        return label
    raise CorpusError(
        f"{place} has no label in the column {column!r}",
        expected="a class",
        received=shown(value),
        fix="correct the data, or set label_column to the right column",
        field="label_column",
    )


def _class(value: Any) -> str:
    """Returns the name of a class; 1.0 and true are 1, as programs exchange them."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        value = int(value) if value.is_integer() else value
    if isinstance(value, bool):
        value = int(value)
    return (
        without_lone_surrogates(str(value).strip()) if isinstance(value, str | int | float) else ""
    )


def _number(value: Any, column: str, place: str) -> str:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        number = math.nan
    except OverflowError:
        number = math.inf
    if abs(number) <= _LARGEST_NUMBER:
        return repr(number)
    raise CorpusError(
        f"{place} has {'no' if math.isnan(number) else 'too large a'} number in the column "
        f"{column!r}",
        expected=f"a number from {-_LARGEST_NUMBER:g} to {_LARGEST_NUMBER:g}, whose squared errors "
        "are within float32's range",
        received=shown(value),
        fix="correct or rescale the number, or set label_column to the right column",
        field="label_column",
    )


class _renamed:
    """Names this stage's option in errors about a corpus's option."""

    def __init__(self, theirs: str, ours: str) -> None:
        self._theirs, self._ours = theirs, ours

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ConfigError | CorpusError) and error.field == self._theirs:
            error.field = self._ours
