"""Tells tables with lists of words from column files."""

from __future__ import annotations

from pathlib import Path

from core.corpus.finding import TextFile, find_files
from core.corpus.unpack import SUFFIXES
from core.errors import ConfigError
from core.finetuning.advice import naming_options

_TABLES = (".jsonl", ".ndjson", ".parquet")
# In folders, such a file often has settings.
_TABLE_IF_ALONE = ".json"
_COLUMNS = (
    *(".conllu", ".conll-u", ".conll", ".txt", ".text", ".tsv", ".csv"),
    *(".bio", ".iob", ".iob2", ".bioes", ".tags"),
)


def holds_tables(path: str, field: str) -> bool:
    """Returns whether a path's files are JSON or Parquet rather than column files, by suffix.

    Files with other suffixes beside JSON lines or Parquet, such as a README, don't count.

    Raises:
        ConfigError: There are both.
        CorpusError: There is no file.
    """
    with naming_options(field):
        files = find_files(path, field=field, file_format="text").files
    by_suffix = {suffix_of(file): file for file in files}
    tables = [file for suffix, file in by_suffix.items() if suffix in _TABLES]
    columns = [file for suffix, file in by_suffix.items() if suffix in _COLUMNS]
    if tables and columns:
        raise ConfigError(
            f"{path} mixes tables with column files",
            expected="either JSON lines or Parquet, or CoNLL-U and other column files",
            received=f"{tables[0].shown} and {columns[0].shown}",
            fix=f"select one kind with a pattern such as data/*{suffix_of(tables[0])}",
            field=field,
        )
    return bool(tables) or set(by_suffix) == {_TABLE_IF_ALONE}


def suffix_of(file: TextFile) -> str:
    """Returns the lowercase suffix of a file or of an archive's member, before a compression's."""
    name = Path(file.member or file.path.name)
    suffix = name.suffix.lower()
    return name.with_suffix("").suffix.lower() if suffix in SUFFIXES else suffix
