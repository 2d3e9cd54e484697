"""Reads files that name the sources of a corpus, in TOML."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from core.config.named_source import NamedSource
from core.config.toml_file import read_toml
from core.errors import ConfigError

_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a string in quotation marks"),
}
_PATHS = ("path", "validation_path", "corpus_name")
_EXAMPLE = '[web], then path = "data/web/*.txt"'


def is_source_file(name: str) -> bool:
    """True if a corpus is named by a file of sources."""
    return name.lower().endswith(".toml")


def load_sources(path: str | Path) -> tuple[NamedSource, ...]:
    """Reads named sources, one per table; relative paths begin at the file's folder.

    Raises:
        ConfigError: With the file, the source and the key.
    """
    file = Path(path)
    tables = read_toml(
        file, "The file of sources", field="corpus_name", expected=f"a table per source: {_EXAMPLE}"
    )
    if not tables:
        raise _file_error(file, "names no source", _EXAMPLE, "an empty file", "add a table")
    return tuple(_source(file, name, table) for name, table in tables.items())


def _source(file: Path, name: str, table: Any) -> NamedSource:
    if not isinstance(table, Mapping):
        raise _file_error(
            file, f"has the key {name} outside of a source", f"a table per source: {_EXAMPLE}",
            f"{name} = {table!r}", "move the key below the name of a source",
        )  # fmt: skip
    known = sorted(NamedSource.model_fields.keys() - {"name"})
    if unknown := next((key for key in table if key not in known), ""):
        raise _file_error(
            file, f"has an unknown key in the source {name}: {unknown}",
            "one of " + ", ".join(known), unknown, "check the spelling",
        )  # fmt: skip
    for key, value in table.items():
        _check_type(file, name, key, value)
    if not table:
        raise _file_error(
            file, f"has an empty source {name}", _EXAMPLE, "no key", "add ⟬path⟭ or ⟬dataset_name⟭",
        )  # fmt: skip
    try:
        return NamedSource(name=name, **{key: _placed(file, key, table[key]) for key in table})
    except ConfigError as error:
        problem = f"The source {name} of {file} is wrong: {error.texts['problem']}"
        raise ConfigError.like(error, problem=problem) from error


def _check_type(file: Path, name: str, key: str, value: Any) -> None:
    expected = _expected_of(NamedSource.model_fields[key].annotation)
    kinds, words = _KINDS[expected]
    # Python counts True as a number.
    if isinstance(value, kinds) and isinstance(value, bool) == (expected is bool):
        return
    raise _file_error(
        file, f"has a wrong value in the source {name}: {key}", words,
        f"{key} = {value!r}", "correct the value",
    )  # fmt: skip


def _expected_of(annotation: Any) -> type:
    """Returns the type of a field's values in TOML; choices are strings."""
    accepted = {annotation, *get_args(annotation)}
    return next((scalar_type for scalar_type in (bool, int, float) if scalar_type in accepted), str)


def _placed(file: Path, key: str, value: Any) -> Any:
    """Puts relative paths below the file's folder."""
    if key not in _PATHS or not isinstance(value, str) or not value:
        return value
    is_relative = not value.startswith(("/", "~")) and "://" not in value
    if key == "corpus_name":
        # A name of the workspace has no slash.
        return str(file.parent / value) if is_relative and "/" in value else value
    if not is_relative or file.parent == Path():
        return value
    folder = str(file.parent)
    return f"{glob.escape(folder) if glob.has_magic(value) else folder}/{value}"


def _file_error(file: Path, problem: str, expected: str, received: str, fix: str) -> ConfigError:
    return ConfigError(
        f"The file of sources {file} {problem}", expected=expected, received=received, fix=fix,
        field="corpus_name",
    )  # fmt: skip
