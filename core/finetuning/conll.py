"""Reads tagged sentences from CoNLL-U and from column files.

A file is CoNLL-U as a whole or not at all, and all rows of a column file have as many columns as
the first. So a damaged line is an error, instead of a wrong word or tag. Columns have numbers from
1, and names if the first row is a header.

Source: https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath

from core.config.corpus import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.corpus.files import FilesSource
from core.corpus.unpack import SUFFIXES
from core.errors import ConfigError, CorpusError
from core.finetuning.advice import naming_options
from core.finetuning.columns import check_different
from core.finetuning.examples import NO_TAG, Sentence

_CONLLU_SUFFIXES = (".conllu", ".conll-u")
_CONLLU_COLUMNS = 10
_CONLLU_WORD = 1
_FORM = "form"
_LAYERS = {"upos": 3, "xpos": 4, "deprel": 7}
_UNSPECIFIED = "_"
_PLAIN_ID = re.compile(r"\d+")
# Also multiword tokens, such as 1-2, and empty nodes, such as 1.1.
_ID = re.compile(r"\d+([-.]\d+)?")
# Comments of CoNLL-U, which column files have, too.
_COMMENT = re.compile(r"# ?\S+ = |# new(doc|par)\b")
# GermEval 2014 has a tab after the number sign.
_COMMENT_STARTS = ("# ", "#\t")
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
    if config.quoting == "yes":
        raise _refused("quoting", "yes", "auto or no, as quotation marks of column files are text")
    corpus = CorpusConfig(
        source="files", path=path, file_format="text", text_unit="line", encoding=config.encoding
    )
    has_sentences = has_tags = False
    with naming_options(field):
        for name, lines in FilesSource(corpus).documents_by_file("train"):
            for sentence in _sentences_of(name, lines, config, field):
                has_sentences = True
                if any(sentence.tags):
                    has_tags = True
                    yield sentence
    if has_sentences and not has_tags:
        raise _no_tags(path, config.label_column)


def _sentences_of(
    name: str, lines: Iterator[str], config: FinetuneConfig, field: str
) -> Iterator[Sentence]:
    first, lines = _with_first_row(lines)
    if not first:
        return
    rows = _rows_like(first, name, config, field)
    if rows.has_header:
        lines = _without(first, lines)
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


def _without(header: str, lines: Iterator[str]) -> Iterator[str]:
    """Makes the header an empty line, so that later ones keep their numbers."""
    for line in lines:
        if line == header:
            yield ""
            break
        yield line
    yield from lines


def _rows_like(first: str, name: str, config: FinetuneConfig, field: str) -> _Rows:
    """Decides by a file's suffix and first row how its rows are read."""
    is_tabbed = "\t" in first
    cells = _cells(first, is_tabbed=is_tabbed)
    if _has_conllu_suffix(name) or (is_tabbed and _is_conllu(cells)):
        return _conllu_rows(name, config, field)
    given = (config.text_column, config.label_column)
    has_header = config.csv_header == "yes" or (
        config.csv_header == "auto" and any(cell and not cell.isdecimal() for cell in given)
    )
    if len(cells) < 2:
        raise _no_column(
            "label_column", f"one column: {first[:_SHOWN_CHARACTERS]}",
            "a column of words and one of tags, with tabs or spaces between them",
        )  # fmt: skip
    names = tuple(cells) if has_header else ()
    word = _index("text_column", config.text_column or "1", len(cells), names)
    tag = _index("label_column", config.label_column or str(len(cells)), len(cells), names)
    check_different([f"column {word + 1}"], f"column {tag + 1}")
    return _ColumnRows(name, field, word, tag, has_header, len(cells), is_tabbed)


def _conllu_rows(name: str, config: FinetuneConfig, field: str) -> _Rows:
    if config.label_column and config.label_column not in _LAYERS:
        raise _no_column("label_column", config.label_column, ", ".join(_LAYERS))
    if config.text_column not in ("", _FORM):
        raise _no_column("text_column", config.text_column, f"{_FORM}, or no value, in CoNLL-U")
    if config.csv_header == "yes":
        raise _refused("csv_header", "yes", "auto or no, as CoNLL-U has no header")
    layer = _LAYERS[config.label_column or "upos"]
    return _ConlluRows(name, field, _CONLLU_WORD, layer, has_header=False)


def _has_conllu_suffix(name: str) -> bool:
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    return (
        next((suffix for suffix in suffixes[::-1] if suffix not in SUFFIXES), "")
        in _CONLLU_SUFFIXES
    )


def _is_conllu(cells: list[str]) -> bool:
    return len(cells) == _CONLLU_COLUMNS and bool(_ID.fullmatch(cells[0]))


def _index(option: str, column: str, columns: int, names: tuple[str, ...]) -> int:
    """Returns the index of a column by its number, or its name in the header."""
    if column in names:
        return names.index(column)
    number = int(column) if column.isdecimal() else 0
    if not 1 <= number <= columns:
        named = f", or a name in the header: {', '.join(names)[:_SHOWN_CHARACTERS]}"
        raise _no_column(option, column, f"a number from 1 to {columns}" + named * bool(names))
    return number - 1


@dataclass(frozen=True)
class _Rows:
    """Rows of a file.

    Attributes:
        name: The file, for errors.
        field: Config field of the path, for errors.
        word, tag: Indices of the columns with the words and the tags.
    """

    name: str
    field: str
    word: int
    tag: int
    has_header: bool

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
        if not _is_conllu(cells) or not cells[self.word]:
            raise self._malformed(
                line,
                number,
                f"{_CONLLU_COLUMNS} columns separated by tabs: a number such as 1, 1-2 or 1.1, "
                "then a word and its annotation",
            )
        if not _PLAIN_ID.fullmatch(cells[0]):
            return []
        tag = cells[self.tag]
        return [(cells[self.word], NO_TAG if tag == _UNSPECIFIED else tag)]


@dataclass(frozen=True)
class _ColumnRows(_Rows):
    """Rows of other column files.

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
        if len(cells) != self.columns or not cells[self.word] or not cells[self.tag]:
            separator = "tabs" if self.is_tabbed else "spaces"
            raise self._malformed(
                line,
                number,
                f"{self.columns} columns separated by {separator}, as in the first row, with a "
                f"word in column {self.word + 1} and a tag in column {self.tag + 1}",
            )
        return [(cells[self.word], cells[self.tag])]

    def _is_comment(self, line: str, cells: list[str]) -> bool:
        """A row may begin with the word #, so a comment must differ from a row."""
        is_other = line.startswith(_COMMENT_STARTS) and len(cells) != self.columns
        return is_other or bool(_COMMENT.match(line))


# Other white space belongs to words, such as 10\u00a0000.
_SPACES = re.compile(r"[ \t]+")


def _cells(line: str, *, is_tabbed: bool) -> list[str]:
    return (
        [cell.strip(" ") for cell in line.split("\t")]
        if is_tabbed
        else _SPACES.split(line.strip(" \t"))
    )


def _no_column(option: str, column: str, expected: str) -> ConfigError:
    return ConfigError(
        f"The column with the {'words' if option == 'text_column' else 'tags'} doesn't exist",
        expected=expected,
        received=column,
        fix=f"set ⟬{option}⟭ to an existing column, or choose another file",
        field=option,
    )


def _refused(option: str, received: str, expected: str) -> ConfigError:
    return ConfigError(
        f"⟬{option}={received}⟭ has no effect on files of tagged words",
        expected=expected,
        received=received,
        fix=f"leave out ⟬{option}⟭",
        field=option,
    )


def _no_tags(path: str, column: str) -> CorpusError:
    return CorpusError(
        f"No word of {path} has a tag in the column {column or 'upos'}",
        expected="a tag for at least some words",
        received=f"{_UNSPECIFIED} for all words",
        fix=f"set ⟬label_column⟭ to another of {', '.join(_LAYERS)}, or choose another file",
        field="label_column",
    )
