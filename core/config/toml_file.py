"""Reads TOML files of users."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 20


class TomlFileError(Exception):
    """A file can't be read as TOML; a caller adds the file's purpose.

    Args:
        problem: Continues "The file F ...".
    """

    def __init__(self, problem: str, *, expected: str, received: str, fix: str) -> None:
        self.problem, self.expected, self.received, self.fix = problem, expected, received, fix
        super().__init__(problem)


def read_toml(file: Path) -> dict[str, Any]:
    """Reads a TOML file of at most 1 MiB; raises TomlFileError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TomlFileError(
            "can't be read", expected="a TOML file", received=str(error.strerror or error),
            fix="check the path",
        ) from error  # fmt: skip
    return parse_toml(data)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parses TOML of at most 1 MiB; raises TomlFileError."""
    if len(data) > _MOST_BYTES:
        raise TomlFileError(
            "is too large", expected=f"at most {_MOST_BYTES:,} bytes", received="more",
            fix="check that it is the right file",
        )  # fmt: skip
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TomlFileError(
            "isn't TOML", expected="tables of keys and values", received=str(error),
            fix="correct the file at that position",
        ) from error  # fmt: skip
