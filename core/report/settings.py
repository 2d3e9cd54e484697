"""A run's settings: by title, and as a file to be given to another person or another workspace.

    {"stage": "train", "config": {"family": "roberta", ...}}

The page reads it into its form, the shell with `--config FILE`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.config import StageConfig, field_extra, title_of
from core.errors import ConfigError
from core.foreign_files import parse_json
from core.stages import parse_stage_config
from core.store import RunRow

# What makes sense on one machine only, or once.
_LEFT_OUT = ("name",)
# What another setting decides where that is given: the steps, the warm-up's steps.
_DERIVED = ("num_train_epochs", "warmup_ratio")
# A setting with one of these values leaves its value to the run.
_OPEN = (None, "auto")


def list_settings(
    config: StageConfig, resolved: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Returns a config's settings by title; groups of a corpus that don't apply are left out.

    Args:
        config: The settings.
        resolved: By field, the values that the run used for settings that were left open.
    """
    resolved = resolved or {}
    settings: list[tuple[str, str]] = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, StageConfig):
            settings += list_settings(value)
        elif _applies(config, field_extra(field)["group"]):
            used = resolved.get(name)
            if name in _DERIVED and used is not None:
                value, used = used, None
            settings.append((title_of(name, field), _used(value, used)))
    return settings


def settings_file(row: RunRow) -> str:
    """Returns a run's settings as the text of a JSON file.

    All of them are written, defaults too: another version's defaults may be others. The name is
    left out, for a name is used once.
    """
    config = {name: value for name, value in row.config.items() if name not in _LEFT_OUT}
    return json.dumps({"stage": row.stage, "config": config}, indent=2, ensure_ascii=False) + "\n"


def read_settings(text: str) -> tuple[str, StageConfig]:
    """Reads what `settings_file` has written.

    Returns:
        The stage and its config.

    Raises:
        ConfigError: It is no such file, or a setting in it is not right.
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise _not_settings(f"no JSON: {error}") from error
    if not is_settings(values):
        raise _not_settings(f"{type(values).__name__} without stage and config")
    return str(values["stage"]), parse_stage_config(str(values["stage"]), values["config"])


def is_settings(values: Any) -> bool:
    """Tells whether a JSON value is what `settings_file` writes."""
    return (
        isinstance(values, Mapping)
        and set(values) == {"stage", "config"}
        and isinstance(values["config"], Mapping)
    )


def _applies(config: StageConfig, group: str) -> bool:
    source = getattr(config, "source", None)
    return source is None or group.lower() not in ("files", "hub") or group.lower() == source


def _used(value: Any, used: Any) -> str:
    """Returns a value as it was used, and where that differs, whether it was set otherwise."""
    if used is None or used == value:
        return _plain(value)
    return f"{_plain(used)} (auto)" if value in _OPEN else f"{_plain(used)} (set: {_plain(value)})"


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(float(f"{value:.6g}") if isinstance(value, float) else value)


def _not_settings(received: str) -> ConfigError:
    return ConfigError(
        "This file holds no settings of a run",
        expected='JSON as a run exports it: {"stage": "train", "config": {...}}',
        received=received,
        fix="export the settings of a run: in the Runs tab, or with python -m core runs export",
    )
