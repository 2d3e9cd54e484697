"""Reads TOML files of users."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from core.errors import ConfigError

_MOST_BYTES = 1 << 20


def read_toml(file: Path, purpose: str, **shown: str) -> dict[str, Any]:
    """Reads a TOML file of at most 1 MiB; raises as `parse_toml`.

    Args:
        purpose: Begins errors, such as "The file of the sweep".
        **shown: `expected` of a file that isn't TOML, and the `field` of errors.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{purpose} {file} can't be read",
            expected="a TOML file",
            received=str(error.strerror or error),
            fix="check the path",
            field=shown["field"],
        ) from error
    return parse_toml(data, f"{purpose} {file}", **shown)


def parse_toml(
    data: bytes, name: str, *, field: str, expected: str = "tables of keys and values"
) -> dict[str, Any]:
    """Parses TOML of at most 1 MiB; raises ConfigError, which begins with the name."""
    if len(data) > _MOST_BYTES:
        raise ConfigError(
            f"{name} is too large",
            expected=f"at most {_MOST_BYTES:,} bytes",
            fix="check that it is the right file",
            field=field,
        )
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} isn't TOML",
            expected=expected,
            received=str(error),
            fix="correct the file at that position",
            field=field,
        ) from error
