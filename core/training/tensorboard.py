"""Writes TensorBoard scalars without TensorFlow."""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from core.shards.records import frame
from core.workspace.places import make_folder

FOLDER = "tensorboard"
_FILE_VERSION = "brain.Event:2"

# Largest float32 before rounding to infinity.
_LARGEST = 3.4028234663852886e38

# Source: https://protobuf.dev/programming-guides/encoding/
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ScalarWriter:
    """Appends scalars to a new event file."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb", buffering=0)
        self._write(_event(time.time(), version=_FILE_VERSION))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        summary = b"".join(_bytes(1, _scalar(tag, value)) for tag, value in values.items())
        self._write(_event(time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        self._file.write(frame(event))


def _event(wall_time: float, *, step: int = 0, version: str = "", summary: bytes = b"") -> bytes:
    """Source: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto"""
    event = _key(1, _FIXED64) + struct.pack("<d", wall_time) + _key(2, _VARINT) + _varint(step)
    if version:
        return event + _bytes(3, version.encode())
    return event + _bytes(5, summary)


def _scalar(tag: str, value: float) -> bytes:
    if math.isfinite(value) and abs(value) > _LARGEST:
        value = math.copysign(math.inf, value)
    return _bytes(1, tag.encode()) + _key(2, _FIXED32) + struct.pack("<f", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(value)) + value


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
