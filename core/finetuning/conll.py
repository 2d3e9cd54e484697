"""Reads tagged sentences from CoNLL-U and from column files.

A file is CoNLL-U as a whole or not at all, and all rows of a column file have as many columns as
the first. So a damaged line is an error, instead of a wrong word or tag.

Source: https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath

from core.config import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.corpus.files import FilesSource
from core.corpus.unpack import SUFFIXES
from core.errors import ConfigError, CorpusError
from core.finetuning.examples import NO_TAG, Sentence

_CONLLU_SUFFIXES = (".conllu", ".conll-u")
_CONLLU_COLUMNS = 10
_CONLLU_WORD = 1
_LAYERS = {"upos": 3, "xpos": 4, "deprel": 7}
_UNSPECIFIED = "_"
_PLAIN_ID = re.compile(r"\d+")
# Also multiword tokens, such as 1-2, and empty nodes, such as 1.1.
_ID = re.compile(r"\d+([-.]\d+)?")
# Comments of CoNLL-U, which column files have, too.
_COMMENT = re.compile(r"# ?\S+ = |# new(doc|par)\b")
_DOCUMENT_START = "-DOCSTART-"
_SHOWN_CHARACTERS = 80

TaggedWord = tuple[str, str]


def read_sentences(config: FinetuneConfig, path: str, field: str) -> Iterator[Sentence]:
    """Yields the tagged sentences of files, without those in which no word has a tag.

    Args:
        field: Config field of the path, for errors.

    Raises:
        ConfigError: There is no such column.
        CorpusError: A file is missing, a line is malformed, or no word has a tag.
    """
    corpus = CorpusConfig(
        source="files", path=path, file_format="text", text_unit="line", encoding=config.encoding
    )
    has_sentences = has_tags = False
    for name, lines in FilesSource(corpus).documents_by_file("train"):
        for sentence in _sentences_of(name, lines, config.label_column, field):
            has_sentences = True
            if any(sentence.tags):
                has_tags = True
                yield sentence
    if has_sentences and not has_tags:
        raise _no_tags(path, config.label_column)


def _sentences_of(name: str, lines: Iterator[str], column: str, field: str) -> Iterator[Sentence]:
    first, lines = _with_first_row(lines)
    if not first:
        return
    rows = _rows_like(first, name, column, field)
    for number, pairs in enumerate(_blocks(rows, lines), 1):
        words, tags = zip(*pairs, strict=True)
        yield Sentence(words, tags, f"Sentence {number} of {name}")


def _with_first_row(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Returns the first line that is certainly a row, or else may be one, and all lines."""
    head = []
    for line in lines:
        head.append(line)
        if line.strip() and not line.startswith(("#", _DOCUMENT_START)):
            return line, chain(head, lines)
    possible = (line for line in head if line.startswith("#") and not _COMMENT.match(line))
    return next(possible, ""), iter(head)


def _blocks(rows: _Rows, lines: Iterable[str]) -> Iterator[list[TaggedWord]]:
    """Yields the words and tags between blank lines."""
    pairs: list[TaggedWord] = []
    for number, line in enumerate(chain(lines, [""]), 1):
        if line.strip():
            pairs += rows.words_of(line, number)
        elif pairs:
            yield pairs
            pairs = []


def _rows_like(first: str, name: str, column: str, field: str) -> _Rows:
    """Decides by a file's suffix and first row how its rows are read."""
    is_tabbed = "\t" in first
    cells = _cells(first, is_tabbed=is_tabbed)
    if _has_conllu_suffix(name) or (is_tabbed and _is_conllu(cells)):
        if column and column not in _LAYERS:
            raise _no_column(column, ", ".join(_LAYERS))
        return _ConlluRows(name, field, _LAYERS[column or "upos"])
    tag = _tag_index(column, len(cells))
    return _ColumnRows(name, field, tag, len(cells), is_tabbed)


def _has_conllu_suffix(name: str) -> bool:
    suffixes = [one.lower() for one in PurePath(name).suffixes]
    return next((one for one in suffixes[::-1] if one not in SUFFIXES), "") in _CONLLU_SUFFIXES


def _is_conllu(cells: list[str]) -> bool:
    return len(cells) == _CONLLU_COLUMNS and bool(_ID.fullmatch(cells[0]))


def _tag_index(column: str, columns: int) -> int:
    if columns < 2:
        raise _no_column("a file with one column", "a column of words and one of tags")
    number = int(column) if column.isdecimal() else 0 if column else columns
    if not 1 < number <= columns:
        raise _no_column(column, f"a number from 2 to {columns}")
    return number - 1


@dataclass(frozen=True)
class _Rows:
    """Rows of a file.

    Attributes:
        name: The file, for errors.
        field: Config field of the path, for errors.
        tag: Index of the column with the tags.
    """

    name: str
    field: str
    tag: int

    def words_of(self, line: str, number: int) -> list[TaggedWord]:
        """Returns the word of a line and its tag; nothing for other lines."""
        raise NotImplementedError

    def _malformed(self, line: str, number: int, expected: str) -> CorpusError:
        return CorpusError(
            f"Line {number} of {self.name} is malformed",
            expected=expected,
            received=line[:_SHOWN_CHARACTERS],
            fix="correct the line",
            field=self.field,
        )


class _ConlluRows(_Rows):
    """Rows of CoNLL-U."""

    def words_of(self, line: str, number: int) -> list[TaggedWord]:
        if line.startswith("#"):
            return []
        cells = _cells(line, is_tabbed=True)
        if not _is_conllu(cells) or not cells[_CONLLU_WORD]:
            raise self._malformed(
                line,
                number,
                f"{_CONLLU_COLUMNS} columns separated by tabs: a number such as 1, 1-2 or 1.1, "
                "then a word and its annotation",
            )
        if not _PLAIN_ID.fullmatch(cells[0]):
            return []
        tag = cells[self.tag]
        return [(cells[_CONLLU_WORD], NO_TAG if tag == _UNSPECIFIED else tag)]


@dataclass(frozen=True)
class _ColumnRows(_Rows):
    """Rows with a word in the first column.

    Attributes:
        columns: Their number.
        is_tabbed: Whether tabs separate them, or any white space.
    """

    columns: int
    is_tabbed: bool

    def words_of(self, line: str, number: int) -> list[TaggedWord]:
        cells = _cells(line, is_tabbed=self.is_tabbed or "\t" in line)
        if line.startswith(_DOCUMENT_START) or self._is_comment(line, cells):
            return []
        if len(cells) != self.columns or not cells[0] or not cells[self.tag]:
            separator = "tabs" if self.is_tabbed else "spaces"
            raise self._malformed(
                line,
                number,
                f"{self.columns} columns separated by {separator}, as in the first row, with a "
                f"word in column 1 and a tag in column {self.tag + 1}",
            )
        return [(cells[0], cells[self.tag])]

    def _is_comment(self, line: str, cells: list[str]) -> bool:
        """A row may begin with the word #, so a comment must differ from a row."""
        is_other = line.startswith("# ") and len(cells) != self.columns
        return is_other or bool(_COMMENT.match(line))


def _cells(line: str, *, is_tabbed: bool) -> list[str]:
    return [one.strip(" ") for one in line.split("\t")] if is_tabbed else line.split()


def _no_column(column: str, expected: str) -> ConfigError:
    return ConfigError(
        "The column with the tags doesn't exist",
        expected=expected,
        received=column,
        fix="set label_column to an existing column, or choose another file",
        field="label_column",
    )


def _no_tags(path: str, column: str) -> CorpusError:
    return CorpusError(
        f"No word of {path} has a tag in the column {column or 'upos'}",
        expected="a tag for at least some words",
        received=f"{_UNSPECIFIED} for all words",
        fix=f"set label_column to another of {', '.join(_LAYERS)}, or choose another file",
        field="label_column",
    )
