"""Lists a run's settings; writes and reads them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.config.base import StageConfig
from core.config.options import field_extra, title_of
from core.config.values import is_settings
from core.errors import ConfigError
from core.foreign_files import parse_json
from core.stages.registry import parse_stage_config

if TYPE_CHECKING:
    from core.store import RunRow

_LEFT_OUT = ("name",)
# Overridden by num_train_steps and warmup_steps.
_DERIVED = ("num_train_epochs", "warmup_ratio")
_OPEN = (None, "", "auto")


def list_settings(
    config: StageConfig, resolved: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Lists a config's applicable settings by title."""
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
    """Returns settings as JSON, with defaults, as these may change."""
    config = {name: value for name, value in row.config.items() if name not in _LEFT_OUT}
    return json.dumps({"stage": row.stage, "config": config}, indent=2, ensure_ascii=False) + "\n"


def read_settings(text: str) -> tuple[str, StageConfig]:
    """Parses the text of `settings_file`; raises ConfigError."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise _not_settings(f"invalid JSON: {error}") from error
    if not is_settings(values):
        raise _not_settings(f"{type(values).__name__} without stage and config")
    return str(values["stage"]), parse_stage_config(str(values["stage"]), values["config"])


def _applies(config: StageConfig, group: str) -> bool:
    source = getattr(config, "source", None)
    kind = group.lower().partition(" ")[0]
    return source is None or kind not in ("files", "hub", "corpus", "several") or kind == source


def _used(value: Any, used: Any) -> str:
    if used is None or used == value:
        return _plain(value)
    return f"{_plain(used)} (auto)" if value in _OPEN else f"{_plain(used)} (set: {_plain(value)})"


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(source.address or source.name for source in value) or "–"
    return str(float(f"{value:.6g}") if isinstance(value, float) else value)


def _not_settings(received: str) -> ConfigError:
    return ConfigError(
        "This file doesn't contain the settings of a run",
        expected='JSON exported from a run: {"stage": "train", "config": {...}}',
        received=received,
        fix="export the settings of a run: in the Runs tab, or with python -m core runs export",
    )
