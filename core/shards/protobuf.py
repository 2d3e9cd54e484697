"""Reads and writes `tf.train.Example`: lists of bytes (kind 1), floats (2) or int64 (3).

Source: https://protobuf.dev/programming-guides/encoding and
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

BYTES, INT64 = 1, 3

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_NOT_AN_EXAMPLE = "bytes that aren't a tf.train.Example"


def serialize_example(features: dict[str, bytes]) -> bytes:
    """Serialises serialised features."""
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, feature))
        for name, feature in features.items()
    )
    return _field(1, b"".join(entries))


def serialize_feature(kind: int, content: bytes) -> bytes:
    """Serialises one bytes value or packed numbers."""
    return _field(kind, _field(1, content))


def parse_example(example: bytes) -> dict[str, tuple[int, list[bytes]]]:
    """Parses features' kinds and raw lists; raises ValueError if invalid."""
    parsed: dict[str, tuple[int, list[bytes]]] = {}
    for features in _parts(example, 1):
        for entry in _parts(features, 1):
            name = b"".join(_parts(entry, 1)).decode("utf-8", "replace")
            for kind, content in _fields(b"".join(_parts(entry, 2))):
                parsed[name] = (kind, _parts(content, 1))
    return parsed


def encode_varints(values: NDArray) -> tuple[bytes, NDArray[np.int64]]:
    """Encodes non-negative numbers (n,) below 35 bits; also returns varint sizes."""
    values = values.astype(np.int64)
    sizes = np.ones(len(values), np.int64)
    for bits in (7, 14, 21, 28):
        sizes += values >> bits > 0
    starts = np.cumsum(sizes) - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    for index in range(int(sizes.max(initial=0))):
        here = np.flatnonzero(sizes > index)
        more = (sizes[here] > index + 1).astype(np.uint8) << 7
        data[starts[here] + index] = (values[here] >> (7 * index) & 0x7F).astype(np.uint8) | more
    return data.tobytes(), sizes


def decode_varint_lists(lists: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decodes complete varints; returns numbers and list lengths, int64."""
    data = np.frombuffer(b"".join(lists), np.uint8)
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    sizes = ends - starts + 1
    values = np.zeros(len(ends), np.int64)
    for index in range(min(int(sizes.max(initial=0)), _MAX_VARINT_BYTES)):
        here = np.flatnonzero(sizes > index)
        values[here] |= (data[starts[here] + index] & 0x7F).astype(np.int64) << (7 * index)
    list_ends = np.cumsum([len(list_bytes) for list_bytes in lists], dtype=np.int64)
    return values, np.diff(np.searchsorted(ends, list_ends), prepend=0)


def _parts(message: bytes, number: int) -> list[bytes]:
    return [content for field_number, content in _fields(message) if field_number == number]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        end = _end_of_field(message, position, tag & 7)
        if tag & 7 == _LENGTH_DELIMITED:
            _, position = _read_varint(message, position)
        if end > len(message):
            raise ValueError(_NOT_AN_EXAMPLE)
        yield tag >> 3, message[position:end]
        position = end


def _end_of_field(message: bytes, position: int, wire_type: int) -> int:
    if wire_type in (_FIXED64, _FIXED32):
        return position + (8 if wire_type == _FIXED64 else 4)
    if wire_type not in (_VARINT, _LENGTH_DELIMITED):
        raise ValueError(_NOT_AN_EXAMPLE)
    value, end = _read_varint(message, position)
    return end + value if wire_type == _LENGTH_DELIMITED else end


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns the varint and its end."""
    value = 0
    for index, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError(_NOT_AN_EXAMPLE)


def _field(number: int, content: bytes) -> bytes:
    return b"".join(
        (_write_varint(number << 3 | _LENGTH_DELIMITED), _write_varint(len(content)), content)
    )


def _write_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
