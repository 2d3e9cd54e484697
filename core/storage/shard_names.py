"""Names of shard files, which carry the shard's number and its count of records."""

from __future__ import annotations

import re

_FILE_NAME = re.compile(r".*-(\d+)-(\d+)\.tfrecord")


def file_name(shard: int, records: int) -> str:
    return f"dataset-{shard}-{records}.tfrecord"


def parse_file_name(name: str) -> tuple[int, int] | None:
    """Parses shard number and record count, if possible."""
    match = _FILE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
