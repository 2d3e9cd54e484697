"""Streams rows of JSON lines, an array of objects, or concatenated objects."""

from __future__ import annotations

import itertools
import json
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import orjson

from core.corpus.columns import JOINED, no_such_column, texts_within, value_at
from core.corpus.lines import Decoder, too_large
from core.errors import CorpusError

# Reading fails if so many first rows lack the column.
MOST_ROWS_WITHOUT = 100_000
# Published datasets stay below 20; recursive parsers fail at some hundred.
_DEEPEST = 200
_SUGGESTED = 5
_MOST_COLUMNS = 100
_SHOWN_CHARACTERS = 90
_MOST_DIGITS = sys.int_info.default_max_str_digits
_MANY_DIGITS = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS + 1))
_ESCAPE = re.compile(rb"\\.", re.DOTALL)

Row = tuple[int, dict[str, Any]]


class Absent(Enum):
    """Stands for the value of a row without the column."""

    COLUMN = 0


def read_json(
    shown: str, blocks: Iterator[str], decoder: Decoder, *, skips_bad_lines: bool = False
) -> tuple[str, Iterator[Row]]:
    """Returns the unit ("line" or "item") and the rows, numbered from 1.

    Args:
        skips_bad_lines: Leaves out lines that aren't objects.

    Raises:
        CorpusError: During iteration, if a row isn't an object.
    """
    head, blocks = _up_to_content(blocks)
    start = head.lstrip()
    if _is_array(start):
        return "item", _items(shown, blocks, decoder, is_array=True)
    if _is_spread(start):
        return "item", _items(shown, blocks, decoder, is_array=False)
    lines = decoder.lines(blocks, ends_at_returns=None)
    return "line", _lines(shown, lines, skips_bad_lines=skips_bad_lines)


def are_cuttable_lines(blocks: Iterator[str]) -> bool:
    r"""Returns whether a file has a row per line, with lines that end in `\n`."""
    head, _ = _up_to_content(blocks)
    start = head.lstrip()
    return "\n" in head and not _is_array(start) and not _is_spread(start)


def read_later_lines(shown: str, blocks: Iterator[str], decoder: Decoder) -> Iterator[Row]:
    """Yields the rows of a later stretch of such a file; raises as `read_json`."""
    return _lines(shown, decoder.lines(blocks, ends_at_returns=False))


def _is_array(start: str) -> bool:
    return start.startswith("[") and not _is_line_of_array(start)


def _is_spread(start: str) -> bool:
    """Returns whether an object spans several lines."""
    first_line = start.split("\n", 1)[0]
    is_open = "\n" in start and first_line.rstrip().endswith((",", "{", "[", ":"))
    return start.startswith("{") and is_open and not _is_json(first_line)


def texts_of(
    shown: str,
    rows: Iterable[Row],
    unit: str,
    column: str,
    columns: list[str],
    *,
    is_met: bool = False,
) -> Iterator[str | Absent | None]:
    """Yields a column's values.

    Args:
        columns: Known columns; those of rows without `column` are added.
        is_met: Whether the rows before had the column.

    Raises:
        ConfigError: No row has the column.
        CorpusError: A value isn't text.
    """
    for number, row in rows:
        if column in row:
            is_there, value = True, row[column]
        else:
            is_there, value = value_at(row, column)
        is_met = is_met or is_there
        if not is_met and number > MOST_ROWS_WITHOUT:
            break
        if value is not None and not isinstance(value, str):
            received = f"{type(value).__name__} {reprlib.repr(value)}"
            within = texts_within(column, value)
            raise wrong_value(shown, f"{unit} {number}", column, received, within)
        if not is_there:
            if len(columns) < _MOST_COLUMNS:
                columns += [name for name in row if name not in columns]
            yield Absent.COLUMN
            continue
        yield value
    if not is_met:
        raise no_such_column(column, columns, shown)


def wrong_value(
    shown: str, where: str, column: str, received: str, within: Sequence[str]
) -> CorpusError:
    """Returns the error for a value that isn't text.

    Args:
        within: Nested text columns to suggest.
    """
    fix = "set ⟬text_column⟭ to the column that contains the text, or correct the value"
    if within:
        fix = f"set ⟬text_column⟭ to {' or '.join(within[:_SUGGESTED])}"
        if any(name.endswith(JOINED) for name in within):
            fix += f" ({JOINED} joins the strings of a list, one per line)"
    return CorpusError(
        f"The column {column!r} of {shown} doesn't contain text ({where})",
        expected="a string or null", received=received[:_SHOWN_CHARACTERS],
        fix=fix, field="text_column",
    )  # fmt: skip


def _up_to_content(blocks: Iterator[str]) -> tuple[str, Iterator[str]]:
    for block in blocks:
        if not block.isspace():
            return block, itertools.chain([block], blocks)
    return "", iter(())


def _is_line_of_array(start: str) -> bool:
    first, _, rest = start.partition("\n")
    return bool(rest.strip()) and _is_json(first)


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(shown: str, lines: Iterator[str], *, skips_bad_lines: bool = False) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, _object_in(line, shown, number)
        except CorpusError:
            if not skips_bad_lines:
                raise


def _object_in(line: str, shown: str, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise _not_json(shown, f"Line {number}", str(error)) from error
    if not isinstance(row, dict):
        raise _not_json(shown, f"Line {number}", f"a {type(row).__name__}")
    return row


def parse_json(line: str) -> Any:
    """Parses with orjson, or with Python, which also accepts NaN and lone surrogates."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def _items(shown: str, blocks: Iterator[str], decoder: Decoder, is_array: bool) -> Iterator[Row]:
    stream = _Bytes(shown, blocks, decoder)
    number = 0
    try:
        for item in _values(stream, is_array):
            number += 1
            stream.since_item = 0
            row = {"text": item} if isinstance(item, str) else item
            if not isinstance(row, dict):
                raise _not_json(shown, f"Item {number}", f"a {type(row).__name__}")
            yield number, row
    except (_ijson_error(), ValueError, ArithmeticError) as error:
        raise _not_json(shown, f"The data after item {number}", str(error)[:200]) from error


def _ijson_error() -> type[Exception]:
    import ijson

    return ijson.JSONError


def _values(stream: _Bytes, is_array: bool) -> Iterator[Any]:
    """Yields elements, or concatenated values.

    `ijson.items` would keep each level's path: gigabytes for deep levels with long names.
    """
    import ijson

    outer = 1 if is_array else 0
    containers: list[Any] = []
    names: list[str] = []
    name = ""
    for event, value in ijson.basic_parse(stream, multiple_values=not is_array):
        if event == "map_key":
            name = value
            continue
        if event in ("start_map", "start_array"):
            if len(containers) >= _DEEPEST:
                raise ValueError(f"more than {_DEEPEST} nested levels")
            containers.append({} if event == "start_map" else [])
            names.append(name)
            continue
        if event in ("end_map", "end_array"):
            value, name = containers.pop(), names.pop()
            if len(containers) < outer:
                continue
        if len(containers) == outer:
            yield value
        elif isinstance(containers[-1], dict):
            containers[-1][name] = value
        else:
            containers[-1].append(value)


class _Bytes:
    def __init__(self, shown: str, blocks: Iterator[str], decoder: Decoder) -> None:
        self._shown = shown
        self._blocks = blocks
        self._decoder = decoder
        self._numbers = _NumberCheck()
        self.since_item = 0

    def read(self, size: int = -1) -> bytes:
        """Returns longer parts within longer items: the parser rescans a value with each part."""
        if not size:
            return b""
        parts: list[bytes] = []
        count = 0
        while count < max(1, self.since_item // 4):
            block = next(self._blocks, "")
            if not block:
                break
            parts.append(block.encode("utf-8", "surrogatepass"))
            count += len(parts[-1])
        data = b"".join(parts)
        self.since_item += len(data)
        if self.since_item > self._decoder.max_bytes:
            raise too_large(self._shown, self._decoder.max_bytes)
        self._numbers.check(data)
        return data


class _NumberCheck:
    """Refuses integers too long for Python, on which ijson 3.6 crashes."""

    def __init__(self) -> None:
        self._in_string = False
        self._in_escape = False
        self._digits = 0  # at the last part's end

    def check(self, data: bytes) -> None:
        if self._in_escape:
            data = data[1:]
        if b"\\" in data:
            data = _ESCAPE.sub(b"", data)
        self._in_escape = data.endswith(b"\\")
        if not self._in_string:
            data = b"0" * self._digits + data
        if _MANY_DIGITS.search(data):
            between = data.split(b'"')[int(self._in_string) :: 2]
            if any(map(_MANY_DIGITS.search, between)):
                raise ValueError(f"a number of more than {_MOST_DIGITS:,} digits")
        self._in_string ^= data.count(b'"') % 2 == 1
        last = data.rpartition(b'"')[2]
        self._digits = 0 if self._in_string else len(last) - len(last.rstrip(b"0123456789"))


def _not_json(shown: str, where: str, received: str) -> CorpusError:
    return CorpusError(
        f"{where} of {shown} is not a JSON object",
        expected='one object per line, such as {"text": "..."}, or an array of objects',
        received=received,
        fix="correct the file there, or export it again as JSON Lines", field="path",
    )  # fmt: skip
