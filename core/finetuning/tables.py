"""Reads examples from tables: CSV, TSV, JSON lines, Parquet, and datasets on the Hub."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, islice
from typing import Any, NamedTuple

from core.config.corpus import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.corpus.files import FilesSource
from core.corpus.hub import HubSource
from core.errors import CorpusError
from core.finetuning.advice import naming_options
from core.finetuning.class_names import (
    NO_LABEL,
    ClassNames,
    class_names_in,
    named,
    names_of_column,
)
from core.finetuning.columns import (
    TAGS,
    check_different,
    find_label_column,
    find_text_columns,
    find_words_column,
)
from core.finetuning.examples import NO_TAG, Example, Sentence
from core.messages.values import shown
from core.tokenizer.roles import without_lone_surrogates

# Sums of larger numbers' squared errors, and of their gradients, can overflow float32.
_LARGEST_NUMBER = 1e15
# Rows of which the columns are those of all.
_LOOKED_AT = 100


class Record(NamedTuple):
    """A row of a table and its place, with names of the classes that it has as numbers."""

    place: str
    values: Mapping[str, Any]
    class_names: ClassNames = {}


class _Labelled(NamedTuple):
    record: Record
    label: Any


# Chooses some of a stream's items, in their order.
Choose = Callable[[Iterable[Any]], Iterable[Any]]


def file_records(config: FinetuneConfig, path: str, field: str) -> Iterator[Record]:
    """Yields each row of files."""
    corpus = CorpusConfig(
        source="files",
        path=path,
        encoding=config.encoding,
        quoting=config.quoting,
        csv_header="no" if config.csv_header == "no" else "yes",
    )
    metadata: Mapping[bytes, bytes] = {}
    names: ClassNames = {}
    with naming_options(field):
        # https://www.iana.org/assignments/media-types/text/tab-separated-values
        for row in FilesSource(corpus).table_rows("train", quotes_in_tsv=False):
            if row.metadata is not metadata:
                metadata, names = row.metadata, class_names_in(row.metadata, str(row.path))
            yield Record(row.place, row.values, names)


def hub_records(config: FinetuneConfig, split: str, field: str) -> Iterator[Record]:
    """Yields each row of a split on the Hub; `field` is the split's config field."""
    corpus = CorpusConfig(source="hub", dataset_name=config.dataset_name, train_split=split)
    with naming_options("dataset_name", field):
        source = HubSource(corpus)
        names = source.class_names(config.dataset_config)
        for number, values in enumerate(source.rows(config.dataset_config), 1):
            yield Record(f"Row {number} of {config.dataset_name} ({split})", values, names)


class TableReader:
    """Makes examples of the rows of tables.

    Raises:
        ConfigError: A column is missing or unclear.

    Attributes:
        class_names: Names of classes in a dataset's order, once the rows are read.
        unlabelled: Rows that were left out because their class is -1, which means no label.
    """

    def __init__(self, config: FinetuneConfig, records: Iterator[Record]) -> None:
        self._config = config
        self._is_tagging = config.task == "token_classification"
        self._records: Iterator[Record] = iter(())
        self._ordered: dict[str, None] = {}
        self.unlabelled = 0
        # Rows of JSON may lack fields that later ones have.
        first = list(islice(records, _LOOKED_AT))
        if not first:
            return
        self._records = chain(first, records)
        columns = list(dict.fromkeys(str(name) for record in first for name in record.values))
        self._texts: tuple[str, ...]
        if self._is_tagging:
            self._texts = (find_words_column(columns, config.text_column),)
            self._label = find_label_column(columns, config.label_column, TAGS)
        else:
            self._texts = find_text_columns(columns, config.text_column, config.text_pair_column)
            self._label = find_label_column(columns, config.label_column)
        check_different(self._texts, self._label)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self._ordered)

    def examples(self, choose: Choose) -> Iterator[Example | Sentence]:
        """Yields examples of chosen rows, without rows that have no label, or no words.

        Raises:
            CorpusError: A row is malformed.
        """
        for labelled_record in choose(self._labelled()):
            yield (
                self._sentence(labelled_record)
                if self._is_tagging
                else self._example(labelled_record)
            )

    def _labelled(self) -> Iterator[_Labelled]:
        source: ClassNames = {}
        names: tuple[str, ...] = ()
        for record in self._records:
            if record.class_names is not source:
                source = record.class_names
                names = names_of_column(source, self._label, record.place)
                self._ordered |= dict.fromkeys(map(_class, names))
            label = record.values.get(self._label)
            if names:
                label = self._named(label, names, record.place)
            if label is NO_LABEL:
                self.unlabelled += 1
            elif not (self._is_tagging and label == record.values.get(self._texts[0]) == []):
                yield _Labelled(record, label)

    def _named(self, value: Any, names: tuple[str, ...], place: str) -> Any:
        """Replaces numbers of classes by names, but not the numbers that regression learns."""
        if not self._is_tagging:
            name = named(value, names, place, self._label)
            is_number = self._config.task == "regression" and name is not NO_LABEL
            return value if is_number else name
        if not isinstance(value, list):
            return value
        tags = [named(label, names, place, self._label) for label in value]
        return NO_LABEL if tags and all(label is NO_LABEL for label in tags) else tags

    def _example(self, labelled_record: _Labelled) -> Example:
        place, values, _ = labelled_record.record
        first, *second = self._texts
        # GLUE's QQP has an empty second question:
        # https://github.com/huggingface/datasets/issues/277
        can_be_empty = bool(self._config.glue)
        texts = (
            _text(values.get(first), first, place),
            *(_text(values.get(name), name, place, can_be_empty=can_be_empty) for name in second),
        )
        return Example(
            texts, _label(labelled_record.label, self._label, place, self._config), place
        )

    def _sentence(self, labelled_record: _Labelled) -> Sentence:
        (place, values, _), tags = labelled_record
        (column,) = self._texts
        words = values.get(column)
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            raise CorpusError(
                f"{place} has no word for each tag",
                expected=f"lists of equal length in {column!r} and {self._label!r}",
                received=f"{shown(words)} and {shown(values.get(self._label))}",
                fix="correct the data, or set ⟬text_column⟭ and ⟬label_column⟭",
                field="text_column",
            )
        return Sentence(
            tuple(_text(word, column, place) for word in words),
            tuple(
                NO_TAG if tag is NO_LABEL else _label(tag, self._label, place, self._config)
                for tag in tags
            ),
            place,
        )


def _text(value: Any, column: str, place: str, *, can_be_empty: bool = False) -> str:
    if isinstance(value, str) and (value.strip() or can_be_empty):
        return without_lone_surrogates(value)
    raise CorpusError(
        f"{place} has no text in the column {column!r}",
        expected="text that isn't empty",
        received=shown(value),
        fix="correct or remove the row, or set ⟬text_column⟭ and ⟬text_pair_column⟭ to columns of "
        "text",
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
        fix="correct the data, or set ⟬label_column⟭ to the right column",
        field="label_column",
    )


def _class(value: Any) -> str:
    """Returns the name of a class; 1.0 and true are 1, as programs exchange them."""
    if isinstance(value, Decimal):
        value = float(value)
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
        is_number = isinstance(value, str | int | float | Decimal)
        # Python reads 1_000 as 1000; other programs don't.
        is_number = is_number and not (isinstance(value, str) and "_" in value)
        number = float(value) if is_number else math.nan
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
        fix="correct or rescale the number, or set ⟬label_column⟭ to the right column",
        field="label_column",
    )
