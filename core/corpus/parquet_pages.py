"""Reads unpacked sizes from Parquet page headers.

pyarrow allocates as headers say, so small files can request gigabytes; footers may be wrong.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

_FIRST_READ_BYTES = 256
_MOST_HEADER_BYTES = 1 << 20
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
# Header field of each page type.
_DESCRIPTIONS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
_MOST_NESTED = 8
_LONGEST_NUMBER_BITS = 63


@dataclass(frozen=True)
class PageSizes:
    """Unpacked sizes of a column chunk's pages.

    Attributes:
        bytes_per_value: Highest ratio over data pages.
    """

    largest_bytes: int
    dictionary_bytes: int
    bytes_per_value: float


def page_sizes(file: IO[bytes], start: int, stop: int) -> PageSizes:
    """Reads page headers between offsets; raises ValueError if malformed."""
    largest = dictionary = 0
    density = 0.0
    place = start
    while place < stop:
        header, length = _read_header(file, place)
        kind, size, packed = (_number(header, field) for field in (1, 2, 3))
        if size < 0 or packed < 0:
            raise ValueError(f"the page header at {place} has no sizes")
        description = header.get(_DESCRIPTIONS.get(kind, -1))
        values = _number(description, 1) if isinstance(description, dict) else 0
        if kind == _DICTIONARY_PAGE:
            dictionary = max(dictionary, size)
        else:
            density = max(density, size / max(1, values))
        largest = max(largest, size)
        place += length + packed
    return PageSizes(largest, dictionary, density)


def _number(fields: dict[int, Any], field: int) -> int:
    value = fields.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _read_header(file: IO[bytes], place: int) -> tuple[dict[int, Any], int]:
    length = _FIRST_READ_BYTES
    while True:
        file.seek(place)
        data = file.read(length)
        try:
            reader = _Compact(data)
            return reader.struct(), reader.place
        except IndexError:
            if len(data) < length or length >= _MOST_HEADER_BYTES:
                raise ValueError(f"the page header at {place} is cut off") from None
            length *= 16


class _Compact:
    """Reads Thrift's compact protocol; raises IndexError at truncated data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_NESTED:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while byte := self._byte():
            step, kind = byte >> 4, byte & 15
            number = number + step if step else self._signed()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._unsigned())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"a page header has a field of the unknown type {kind}")

    def _list(self, depth: int) -> None:
        byte = self._byte()
        count, kind = byte >> 4, byte & 15
        if count == 15:
            count = self._unsigned()
        for _ in range(count):
            self._byte() if kind in (1, 2) else self._value(kind, depth + 1)

    def _byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _LONGEST_NUMBER_BITS:
                raise ValueError("a page header has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        if self.place + count > len(self._data):
            raise IndexError(count)
        self.place += count
