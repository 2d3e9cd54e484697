"""Reads tagged sentences from CoNLL-U and from column files.

Source: https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.config import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.corpus.files import FilesSource
from core.errors import ConfigError, CorpusError
from core.finetuning.examples import Sentence

_FIELDS = 10
_WORD = 1
_LAYERS = {"upos": 3, "xpos": 4, "deprel": 7}
_PLAIN_ID = re.compile(r"\d+")
# Multiword tokens, such as 1-2, and empty nodes, such as 1.1.
_OTHER_ID = re.compile(r"\d+[-.]\d+")
# A comment is "# name = value" or "# newpar"; in other column files, # is a word with a tag.
_COMMENT = re.compile(r"#\s*\S+\s*(=|$)")
_DOCUMENT_START = "-DOCSTART-"


def read_sentences(config: FinetuneConfig, path: str, field: str) -> Iterator[Sentence]:
    """Yields the tagged sentences of a file.

    Raises:
        ConfigError: There is no such column.
        CorpusError: The file is missing or a line lacks the column.
    """
    corpus = CorpusConfig(
        source="files", path=path, file_format="text", text_unit="paragraph",
        encoding=config.encoding,
    )  # fmt: skip
    number = 0
    for name, blocks in FilesSource(corpus).documents_by_file("train"):
        for block in blocks:
            rows = [_cells(line) for line in block.split("\n") if _is_row(line)]
            number += 1
            place = f"Sentence {number} of {name}"
            if sentence := _sentence(rows, config.label_column, place):
                yield sentence


def _is_row(line: str) -> bool:
    """Leaves out blank lines and comments; a column file may have the word #."""
    return bool(line.strip()) and not _COMMENT.match(line)


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def _sentence(rows: list[list[str]], column: str, place: str) -> Sentence | None:
    plain = [row for row in rows if not row[0].startswith("#")]
    if plain and all(_is_conllu(row) for row in plain):
        layer = _LAYERS.get(column or "upos")
        if layer is None:
            raise _no_column(column, ", ".join(_LAYERS))
        rows = [row for row in plain if _PLAIN_ID.fullmatch(row[0])]
        pairs = [(row[_WORD], row[layer]) for row in rows]
    else:
        rows = [row for row in rows if row[0] != _DOCUMENT_START]
        pairs = [(row[0], _cell(row, column, place)) for row in rows]
    if not pairs:
        return None
    return Sentence(tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs), place)


def _is_conllu(row: list[str]) -> bool:
    is_id = _PLAIN_ID.fullmatch(row[0]) or _OTHER_ID.fullmatch(row[0])
    return len(row) == _FIELDS and bool(is_id)


def _cell(row: list[str], column: str, place: str) -> str:
    if column and not column.isdecimal():
        raise _no_column(column, "a number from 1")
    index = int(column) - 1 if column else len(row) - 1
    if not 0 < index < len(row) or not row[index]:
        raise CorpusError(
            f"{place} has a line without a tag",
            expected=f"a word and a tag in column {column}" if column else "a word and a tag",
            received=" ".join(row)[:80],
            fix="correct the line, or set label_column",
            field="label_column",
        )
    return row[index]


def _no_column(column: str, expected: str) -> ConfigError:
    return ConfigError(
        "The column with the tags doesn't exist",
        expected=expected,
        received=column,
        fix="set label_column to one of them",
        field="label_column",
    )
