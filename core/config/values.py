"""Reads config files and finds changed values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.config.base import StageConfig
from core.config.options import field_extra
from core.errors import ConfigError
from core.foreign_files import parse_json

_MOST_CONFIG_BYTES = 16 << 20


def changed_values(config: StageConfig) -> dict[str, Any]:
    """Returns values that differ from the preset's defaults."""
    model = type(config)
    values: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("preset", model.variant)
        if name in model.model_fields
    }
    plain = model(**values)
    for name in model.model_fields:
        value = getattr(config, name)
        if isinstance(value, StageConfig):
            if nested := changed_values(value):
                values[name] = nested
        elif value != getattr(plain, name) and not field_extra(model.model_fields[name])["secret"]:
            values[name] = value
    values = config.pin_inferred(values)
    return {
        name: value
        for name, value in values.items()
        if name not in ("preset", model.variant) or value != model.model_fields[name].default
    }


def unused_error(name: str, value: Any, reason: str, expected: str = "no value") -> ConfigError:
    """Returns the error for an option with a value that has no effect."""
    return ConfigError(
        f"⟬{name}⟭ has no effect {reason}",
        expected=expected,
        received=repr(value),
        fix=f"leave out ⟬{name}⟭",
        field=name,
    )


def load_config_file(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object of config values; raises ConfigError."""
    try:
        # Also from pipes: --config <(command).
        with Path(path).open("rb") as file:
            data = file.read(_MOST_CONFIG_BYTES + 1)
        if len(data) > _MOST_CONFIG_BYTES:
            raise ValueError(f"more than {_MOST_CONFIG_BYTES:,} bytes")
        values = parse_json(data)
    except OSError as error:
        raise ConfigError(
            f"The config file {path} can't be read",
            expected="a JSON file",
            received=str(error.strerror or error),
            fix="check the path given with --config",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"The config file {path} isn't JSON",
            expected="an object of field names and values",
            received=str(error),
            fix="correct the file at that position",
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"The config file {path} doesn't contain an object",
            expected='{"field": value, ...}',
            received=type(values).__name__,
        )
    return values


def is_settings(values: Any) -> bool:
    """Checks for an exported run's settings, which name their stage."""
    return (
        isinstance(values, Mapping)
        and set(values) == {"stage", "config"}
        and isinstance(values["config"], Mapping)
    )
