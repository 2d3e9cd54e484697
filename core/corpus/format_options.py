"""Formats of files in which an option of files has an effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from core.corpus.finding import Format

_TABLES = frozenset[Format]({"jsonl", "json", "csv", "tsv", "parquet"})
_CSV = frozenset[Format]({"csv", "tsv"})
_NOT_PARQUET = frozenset[Format]({"text", "jsonl", "json", "csv", "tsv"})
FORMATS_OF_OPTIONS = {
    "csv_header": _CSV,
    "delimiter": _CSV,
    "quoting": _CSV,
    "encoding": _NOT_PARQUET,
    "encoding_errors": _NOT_PARQUET,
    "text_unit": frozenset[Format]({"text"}),
    "text_column": _TABLES,
}


def reasons_of_formats(names: Iterable[str], formats: Collection[Format]) -> dict[str, str]:
    """Returns the options without effect on files of these formats, with reasons."""
    reason = f"on files in the format {' or '.join(sorted(formats))}"
    return {name: reason for name in names if FORMATS_OF_OPTIONS[name].isdisjoint(formats)}
