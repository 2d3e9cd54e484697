"""Streams rows of JSON files: JSON lines, an array of objects, or concatenated objects.

The kind is detected from the content. Memory holds one row.
"""

from __future__ import annotations

import itertools
import json
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from core.corpus.columns import JOINED, no_such_column, texts_within, value_at
from core.corpus.lines import Decoder, too_large
from core.errors import CorpusError

# A column may be missing from many rows, but not from this many at the beginning.
MOST_ROWS_WITHOUT = 100_000
# Published data sets stay below 20. A parser that recurses ends at some hundred.
_DEEPEST = 200
_SUGGESTED = 5
_SHOWN_CHARACTERS = 90
_MOST_DIGITS = sys.int_info.default_max_str_digits
_MANY_DIGITS = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS + 1))
_ESCAPE = re.compile(rb"\\.", re.DOTALL)

# A row with its line or item number.
Row = tuple[int, dict[str, Any]]


def read_json(shown: str, blocks: Iterator[str], decoder: Decoder) -> tuple[str, Iterator[Row]]:
    """Reads the rows of a file of any supported kind of JSON.

    Returns:
        The unit of a row ("line" or "item"), and the rows with their numbers from 1.

    Raises:
        CorpusError: A row isn't a JSON object; raised during iteration.
    """
    head, blocks = _up_to_content(blocks)
    start = head.lstrip()
    if start.startswith("[") and not _is_line_of_array(start):
        return "item", _items(shown, blocks, decoder, is_array=True)
    first_line = start.split("\n", 1)[0]
    is_spread = "\n" in start and first_line.rstrip().endswith((",", "{", "[", ":"))
    if start.startswith("{") and is_spread and not _is_json(first_line):
        return "item", _items(shown, blocks, decoder, is_array=False)
    lines = decoder.lines(blocks, ends_at_returns=None)
    return "line", _lines(shown, lines)


def texts_of(
    shown: str, rows: Iterable[Row], unit: str, column: str, columns: list[str]
) -> Iterator[str]:
    """Yields a column's values; null and missing values are empty strings.

    Args:
        unit: "line" or "item".
        columns: Columns of the first rows, for errors.

    Raises:
        ConfigError: No row has the column.
        CorpusError: A value isn't text.
    """
    is_met = False
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
        yield value or ""
    if not is_met:
        raise no_such_column(column, columns, shown)


def wrong_value(
    shown: str, where: str, column: str, received: str, within: Sequence[str]
) -> CorpusError:
    """Returns the error for a value that isn't text.

    Args:
        received: The value or its type.
        within: Nested text columns to suggest.
    """
    fix = "set text_column to the column that contains the text"
    if within:
        fix = f"set text_column to {' or '.join(within[:_SUGGESTED])}"
        if any(name.endswith(JOINED) for name in within):
            fix += f" ({JOINED} joins the strings of a list, one per line)"
    return CorpusError(
        f"The column {column!r} of {shown} doesn't contain text ({where})",
        expected="a string or null", received=received[:_SHOWN_CHARACTERS],
        fix=fix, field="text_column",
    )  # fmt: skip


def _up_to_content(blocks: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Returns the first non-blank block, and all blocks from it on."""
    for block in blocks:
        if not block.isspace():
            return block, itertools.chain([block], blocks)
    return "", iter(())


def _is_line_of_array(start: str) -> bool:
    """Checks whether the first line is a complete array, followed by more lines."""
    first, _, rest = start.partition("\n")
    return bool(rest.strip()) and _is_json(first)


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(shown: str, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise _not_json(shown, f"Line {number}", str(error)) from error
        if not isinstance(row, dict):
            raise _not_json(shown, f"Line {number}", f"a {type(row).__name__}")
        yield number, row


def parse_json(line: str) -> Any:
    """Parses a line of JSON.

    orjson takes a third of the time. It refuses what Python's parser accepts beyond the standard,
    such as NaN and lone surrogates, and its error messages differ.
    """
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
    """Returns the error class of ijson, which is imported only if a file needs it."""
    import ijson

    return ijson.JSONError


def _values(stream: _Bytes, is_array: bool) -> Iterator[Any]:
    """Yields the elements of an array, or the values that stand one after the other.

    `ijson.items` would keep the path of each level: gigabytes for deep levels with long names.

    Raises:
        ValueError: They are nested too deeply.
    """
    import ijson

    outer = 1 if is_array else 0
    # The containers that are open, and the name under which each goes into the one around it.
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
    """A UTF-8 byte stream over text blocks that limits the size of an item."""

    def __init__(self, shown: str, blocks: Iterator[str], decoder: Decoder) -> None:
        self._shown = shown
        self._blocks = blocks
        self._decoder = decoder
        self._numbers = _NumberCheck()
        self.since_item = 0

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, none at the end: more than asked for where an item is long.

        The parser begins a value anew with each part that it gets, so parts grow with it. It asks
        for no bytes first, to see that there will be bytes.
        """
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
    """Refuses integers of more digits than Python converts, on which ijson 3.6 crashes."""

    def __init__(self) -> None:
        self._in_string = False
        self._in_escape = False
        self._digits = 0  # At the end of the last part, outside of strings.

    def check(self, data: bytes) -> None:
        """Checks the next part of a JSON text; raises ValueError for a number that is too long."""
        if self._in_escape:
            data = data[1:]
        if b"\\" in data:
            data = _ESCAPE.sub(b"", data)
        self._in_escape = data.endswith(b"\\")
        if not self._in_string:
            data = b"0" * self._digits + data
        if _MANY_DIGITS.search(data):
            # Strings and what lies between them take turns.
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
