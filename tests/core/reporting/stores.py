"""Reads the stores of trackio, W&B (offline) and MLflow without the code that writes them."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Points = list[tuple[str, int, float]]

_BLOCK_BYTES, _HEADER_BYTES, _FILE_HEADER_BYTES = 32_768, 7, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def read_trackio(folder: Path) -> Points:
    """Reads the metrics of the only project."""
    (path,) = folder.glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    return sorted(
        (name, int(step), float(value))
        for step, text in rows
        for name, value in json.loads(text).items()
    )


def read_mlflow(folder: Path) -> Points:
    """Reads the metrics of the only run in a file store, and of its nested runs."""
    found = []
    for metrics in folder.glob("*/*/metrics"):
        for path in metrics.rglob("*"):
            for line in path.read_text().splitlines() if path.is_file() else ():
                _, value, step = line.split(" ")[:3]
                found.append((path.relative_to(metrics).as_posix(), int(step), float(value)))
    return sorted(found)


def read_wandb(folder: Path) -> Points:
    """Reads the history of the only offline run."""
    found = []
    for record in _wandb_records(folder):
        items = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if "step" in items:
            step = int(items.pop("step"))
            found += [(name, step, float(value)) for name, value in items.items() if name[0] != "_"]
    return sorted(found)


def read_wandb_summary(folder: Path) -> dict[str, Any]:
    """Reads the summary of the only offline run."""
    found: dict[str, Any] = {}
    for record in _wandb_records(folder):
        for item in record.summary.update:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def _wandb_records(folder: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("**/*.wandb")
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def _records(data: bytes) -> Iterator[bytes]:
    """Yields records of LevelDB's log format, in which W&B writes.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    place, parts = _FILE_HEADER_BYTES, b""
    while place + _HEADER_BYTES <= len(data):
        if _BLOCK_BYTES - place % _BLOCK_BYTES < _HEADER_BYTES:
            place += _BLOCK_BYTES - place % _BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + _HEADER_BYTES : place + _HEADER_BYTES + length]
        place += _HEADER_BYTES + length
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts
