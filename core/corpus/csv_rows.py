"""Reads CSV and TSV files; refuses ambiguous ones, so rows are never merged silently."""

from __future__ import annotations

import csv
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from core.config.corpus import CorpusConfig
from core.corpus.lines import too_large
from core.errors import ConfigError, CorpusError

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_NAMES = {mark: name for name, mark in DELIMITERS.items()}

# The last line: unless it becomes its own row, a quotation mark is open.
_END = "\x1e\x04 end of the file \x04\x1e"
SAMPLED_LINES = 200
_NUMBER_OR_DATE = re.compile(r"\s*(\d{4}-\d\d-\d\d.*|true|false)?\s*", re.IGNORECASE)
_NAMED_DELIMITER = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
# Any of these makes the first row a header.
_USUAL_NAMES = frozenset(
    """
    text texts content contents body sentence sentences document documents doc docs title id ids
    label labels review reviews comment comments message messages description summary abstract
    question answer prompt completion source target date time author name url lang language
    category class score rating tweet post article headline paragraph line word words token tokens
    translation index key value type split input output context response passage quote lyrics
    utterance user subject topic number no nr count year month day country city speaker gender age
    """.split()
)
_LONGEST_NAME = 40
_MOST_NAME_WORDS = 3
_LEAST_TEXT_WORDS = 4
_LEAST_TEXT_CHARACTERS = 20
_TIMES_AS_LONG = 4
_SENTENCE_END = re.compile(r"[.!?…。！？]\W*$")
_WORD_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SHARE_OF_COLUMN = 0.8
_LINE = re.compile(r"[^\n]+")


@dataclass(frozen=True)
class CsvTable:
    """An open CSV file, of which the sample was read.

    Attributes:
        columns: Names; numbers from 1 without a header.
    """

    columns: list[str]
    sample: list[list[str]]
    rows: Iterator[list[str]]
    delimiter: str
    has_header: bool
    has_quotes: bool

    @property
    def strings(self) -> list[str]:
        """Columns that hold more than numbers, dates and booleans."""
        return [name for place, name in enumerate(self.columns) if _holds_words(self.sample, place)]

    def values(self, column: str) -> Iterator[str]:
        place = self.columns.index(column)
        for row in itertools.chain(self.sample, self.rows):
            yield row[place] if place < len(row) else ""


def read_csv(
    shown: str,
    lines: Iterator[str],
    config: CorpusConfig,
    *,
    is_tsv: bool,
    count: Callable[[str, str], None],
) -> CsvTable:
    """Opens a CSV file; raises CorpusError if it is ambiguous.

    Args:
        count: Called with (kind, place) for each irregular row.
    """
    csv.field_size_limit(min(config.max_document_mb * 1_000_000, 2**31 - 1))
    sample = list(itertools.islice(lines, SAMPLED_LINES))
    delimiter = find_delimiter(shown, sample, config, is_tsv=is_tsv)
    reader = _Reader(shown, itertools.chain(sample, lines), sample, config, delimiter, count)
    if _named_delimiter(sample):
        reader.skip_row()
    first = reader.first()
    has_header = config.csv_header != "no"
    names = [name.strip() for name in first]
    columns = names if has_header else [str(place) for place in range(1, len(first) + 1)]
    rows = reader.rows(len(columns), not has_header, first)
    seen = list(itertools.islice(rows, SAMPLED_LINES))
    return CsvTable(
        columns, seen, rows, _NAMES[delimiter], has_header, config.quoting != "no"
    )  # fmt: skip


def find_delimiter(shown: str, lines: Sequence[str], config: CorpusConfig, *, is_tsv: bool) -> str:
    """Returns the delimiter that splits lines evenly, or a guess; CorpusError if several do."""
    if config.delimiter != "auto":
        return DELIMITERS[config.delimiter]
    if named := _named_delimiter(lines):
        return named
    first = next((line for line in lines if line), "")
    marks = [mark for mark in DELIMITERS.values() if len(_split(first, mark)) > 1]
    if is_tsv and ("\t" in marks or not marks):
        return "\t"
    fitting = [mark for mark in marks if _is_even(lines, mark)]
    if len(fitting) > 1 or (is_tsv and fitting):
        names = [_NAMES[mark] for mark in fitting]
        raise CorpusError(
            f"The delimiter of {shown} is ambiguous",
            expected="tabs, because the file ends in .tsv"
            if is_tsv
            else "one delimiter that separates the cells",
            received=f"rows that split evenly by {' or by '.join(names)}",
            fix=f"set ⟬delimiter⟭ to {' or '.join(dict.fromkeys([*names, *['tab'] * is_tsv]))}",
            field="delimiter",
        )
    return next(iter([*fitting, *marks]), "\t" if is_tsv else ",")


def _named_delimiter(lines: Sequence[str]) -> str:
    """Returns the delimiter of a first line like sep=; which spreadsheets write; "" if none."""
    match = _NAMED_DELIMITER.fullmatch(lines[0]) if lines else None
    return match[1] if match and match[1] in DELIMITERS.values() else ""


def _split(line: str, mark: str) -> list[str]:
    return next(csv.reader([line], delimiter=mark), [])


def _is_even(lines: Sequence[str], mark: str) -> bool:
    rows = [row for row in csv.reader((f"{line}\n" for line in lines), delimiter=mark) if row]
    if len(lines) >= SAMPLED_LINES:
        rows.pop()  # it may continue after the sample
    return len({len(row) for row in rows}) == 1


class _Reader:
    def __init__(
        self,
        shown: str,
        lines: Iterable[str],
        sample: Sequence[str],
        config: CorpusConfig,
        delimiter: str,
        count: Callable[[str, str], None],
    ) -> None:
        self._shown = shown
        self._sample = sample
        self._delimiter = delimiter
        self._quoting = config.quoting
        self._max_bytes = config.max_document_mb * 1_000_000
        self._count = count
        self._facts: tuple[bool, list[int]] | None = None
        self._reader = csv.reader(
            itertools.chain(map(operator.add, lines, itertools.repeat("\n")), [_END]),
            delimiter=delimiter,
            quoting=csv.QUOTE_NONE if config.quoting == "no" else csv.QUOTE_MINIMAL,
            strict=config.quoting == "auto",
        )

    def skip_row(self) -> None:
        next(self._reader, None)

    def first(self) -> list[str]:
        began = self._reader.line_num + 1
        try:
            row = next(self._reader, [])
        except csv.Error as error:
            raise self._explained(error, began) from error
        if row == [_END]:
            return []
        if row and row[-1].endswith(_END):
            raise self._never_closed(began)
        if self._reader.line_num > began:
            self._check_merged(row, began, self._reader.line_num, len(row))
        return row

    def rows(self, cells: int, has_first: bool, first: list[str]) -> Iterator[list[str]]:
        """Raises CorpusError if text would be lost or rows merged."""
        if has_first and first:
            yield first
        line = self._reader.line_num
        try:
            for row in self._reader:
                began, line = line + 1, self._reader.line_num
                if not row:
                    continue
                if row[-1].endswith(_END):
                    if row == [_END]:
                        return
                    raise self._never_closed(began)
                if line > began:
                    self._check_merged(row, began, line, cells)
                if not has_first and row == first:
                    self._count("rows repeat the header", f"line {began} of {self._shown}")
                    continue
                if len(row) != cells:
                    self._check_cells(row, cells, began)
                yield row
        except csv.Error as error:
            raise self._explained(error, line + 1) from error

    def _explained(self, error: csv.Error, began: int) -> Exception:
        text = str(error)
        if "field larger than field limit" in text:
            return too_large(self._shown, self._max_bytes)
        if "unexpected end of data" in text:
            return self._never_closed(began)
        if "expected after" not in text:
            return error
        return CorpusError(
            f"The quotation marks in line {began} of {self._shown} don't enclose a whole cell",
            expected="quoted cells that begin and end with a quotation mark and double the marks "
            "inside",
            received=f"text after a closing quotation mark in line {self._reader.line_num}",
            fix="set ⟬quoting⟭ to no if quotation marks are part of the text; set it to yes to "
            "remove the marks and continue, which may merge rows; or correct that line",
            field="quoting",
        )  # fmt: skip

    def _never_closed(self, line: int) -> CorpusError:
        return CorpusError(
            f"The quotation mark in line {line} of {self._shown} is never closed",
            expected="a closing quotation mark for each cell that begins with one",
            received="the end of the file before a closing mark",
            fix="set ⟬quoting⟭ to no if quotation marks are part of the text; or double each mark "
            'that is text ("")', field="quoting",
        )  # fmt: skip

    def _check_merged(self, row: list[str], began: int, line: int, cells: int) -> None:
        if self._quoting == "auto" and self._may_be_rows(row, cells):
            raise CorpusError(
                f"Lines {began} to {line} of {self._shown} can be read as one row or as "
                f"{line - began + 1} rows",
                expected="quotation marks with only one possible reading",
                received=f"a quotation mark that opens a cell in line {began} and closes one in "
                f"line {line}, while each line has {cells} {'cell' if cells == 1 else 'cells'}",
                fix="set ⟬quoting⟭ to no if quotation marks are part of the text and each line is "
                "a row; set it to yes if cells can span several lines", field="quoting",
            )  # fmt: skip
        where = f"line {began} of {self._shown}"
        self._count("rows have cells that span several lines", where)

    def _may_be_rows(self, row: list[str], cells: int) -> bool:
        """True if each line has the expected cells, with numbers in columns of numbers."""
        plain, figures = self._sample_facts(cells)
        # A list of millions of short lines takes a gigabyte.
        matches = _LINE.finditer(self._delimiter.join(row))
        lines = (line[0].split(self._delimiter) for line in matches)
        return (plain or bool(figures)) and all(
            len(line) == cells and all(_is_figure(line[place]) for place in figures)
            for line in lines
        )

    def _sample_facts(self, cells: int) -> tuple[bool, list[int]]:
        if self._facts is None:
            lines = [line for line in self._sample[1:] if line]
            is_plain = all(line.count(self._delimiter) + 1 == cells for line in lines)
            rows = csv.reader((f"{line}\n" for line in lines), delimiter=self._delimiter)
            even = [row for row in rows if len(row) == cells]
            figures = [
                place
                for place in range(cells)
                if even and _share([row[place] for row in even], _is_figure) > _SHARE_OF_COLUMN
            ]
            self._facts = (is_plain, figures)
        return self._facts

    def _check_cells(self, row: list[str], cells: int, began: int) -> None:
        if any(row[cells:]):
            raise CorpusError(
                f"Line {began} of {self._shown} has more cells than the header",
                expected=f"{cells} cells, as in the header", received=f"{len(row)}",
                fix="quote cells that contain the delimiter, or set ⟬delimiter⟭ to the right one; "
                "if each line is a document, set ⟬file_format⟭ to text", field="path",
            )  # fmt: skip
        if len(row) < cells:
            self._count("rows have fewer cells than the header", f"line {began} of {self._shown}")


def check_distinct(shown: str, columns: Sequence[str]) -> None:
    """Raises CorpusError for two columns of one name."""
    repeated = [name for name, count in Counter(columns).items() if name and count > 1]
    if repeated:
        raise CorpusError(
            f"{shown} has several columns named {repeated[0][:_LONGEST_NAME]}",
            expected="a different name for each column",
            received=", ".join(name[:_LONGEST_NAME] for name in columns)[:200],
            fix="rename or remove one of them",
            field="path",
        )


def check_header(shown: str, table: CsvTable, config: CorpusConfig) -> None:
    """Raises ConfigError if the first row may be no header and the config doesn't decide."""
    if config.csv_header != "auto" or config.text_column in table.columns:
        return
    if doubt := _doubt(table.columns, table.sample, table.strings):
        raise ConfigError(
            f"It is unclear whether the first row of {shown} is a header",
            expected="a first row of column names, such as id, text",
            received=f"{', '.join(name[:_LONGEST_NAME] for name in table.columns)[:200]} ({doubt})",
            fix="set ⟬csv_header⟭ to yes if the first row names the columns; set it to no if it is "
            "data like the other rows; ⟬text_column⟭ then takes the numbers 1, 2, 3",
            field="csv_header",
        )  # fmt: skip


def _doubt(names: list[str], rows: list[list[str]], strings: list[str]) -> str:
    if any(name.casefold() in _USUAL_NAMES for name in names):
        return ""
    columns = {
        name: [row[place] for row in rows if place < len(row) and row[place].strip()]
        for place, name in enumerate(names)
    }
    for name, values in columns.items():
        if name and _is_figure(name) and values and _share(values, _is_figure) > _SHARE_OF_COLUMN:
            return f"{name} looks like the value {values[0][:_LONGEST_NAME]} in the other rows"
    if any(_is_name(name) and _has_usual_part(name) for name in names):
        return ""
    for name, values in columns.items():
        if _is_name(name) and values and all(map(_is_figure, values)):
            return ""
    only = strings[0] if len(strings) == 1 else ""
    if _is_name(only) and " " not in only:
        longer = [_is_text_below(only, value) for value in columns[only]]
        if sum(longer) >= _SHARE_OF_COLUMN * len(longer):
            return ""
    return "the other rows look alike"


def _is_figure(value: str) -> bool:
    return _is_number(value) or bool(_NUMBER_OR_DATE.fullmatch(value))


def _is_name(text: str) -> bool:
    is_short = len(text) <= _LONGEST_NAME and len(text.split()) <= _MOST_NAME_WORDS
    return bool(text) and is_short and not _is_figure(text) and not _SENTENCE_END.search(text)


def _has_usual_part(name: str) -> bool:
    is_joined = "_" in name or (name[:1].islower() and name != name.lower())
    parts = [part.lower() for part in _WORD_PART.findall(name)]
    return is_joined or any(part in _USUAL_NAMES for part in parts)


def _is_text_below(name: str, value: str) -> bool:
    is_long = len(value) >= max(_LEAST_TEXT_CHARACTERS, _TIMES_AS_LONG * len(name))
    return len(value.split()) >= _LEAST_TEXT_WORDS or is_long


def _share(values: Sequence[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, values)) / max(1, len(values))


def _holds_words(rows: list[list[str]], place: int) -> bool:
    values = (row[place] for row in rows if place < len(row))
    return any(not _is_figure(value) for value in values)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
