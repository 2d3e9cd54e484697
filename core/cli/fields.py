"""The values that flags and config files give to a stage's fields."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic.fields import FieldInfo

from core.artifacts.finding import with_family
from core.cli.flags import nested_model
from core.cli.output import workspace_of
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import plain_type
from core.config.preflight import PreflightConfig
from core.config.source_flags import with_named_sources
from core.config.train import TrainConfig
from core.config.values import is_settings, load_config_file
from core.errors import ConfigError
from core.targets.saved import with_saved_machine

_NO_VALUE = ("none", "null", "")
# The config file's rival would take precedence.
_RIVALS = {
    "warmup_ratio": "warmup_steps",
    "num_train_epochs": "num_train_steps",
    "mixture": "shards",
    "shards": "mixture",
}


def stage_values(options: argparse.Namespace, model: type[StageConfig]) -> dict[str, Any]:
    values = config_values(options, model)
    if not issubclass(model, TrainConfig):
        return values
    # With --after, the folder may be missing; without shards, preflight opens none.
    opened = model is not PreflightConfig or bool(values.get("shards") or values.get("mixture"))
    fetch = opened and not getattr(options, "after", [])
    return with_family(values, workspace_of(options), fetch=fetch)


def config_values(options: argparse.Namespace, model: type[StageConfig]) -> dict[str, Any]:
    given = vars(options)
    values = _file_values(options.config, given.get("stage", "")) if options.config else {}
    for flag, rival in _RIVALS.items():
        if flag in given and rival not in given and values.get(rival) is not None:
            values[rival] = "" if isinstance(values[rival], str) else None
    for name, field in model.model_fields.items():
        if nested := nested_model(field):
            nested_values = {**_pop_fields(values, nested), **_as_dict(values.get(name, {}), name)}
            flags = {
                key: _value(given[key], nested.model_fields[key])
                for key in nested.model_fields
                if key in given
            }
            if nested is CorpusConfig:
                flags = with_named_sources(flags)
            nested_values |= nested.inferred(flags, nested_values)
            if nested_values:
                values[name] = nested_values
        elif name in given:
            values[name] = _value(given[name], field)
    if values.get("target"):
        values = with_saved_machine(values, model.model_fields, workspace_of(options))
    return values


def _file_values(path: str, stage: str) -> dict[str, Any]:
    values = load_config_file(path)
    if not is_settings(values):
        return values
    if values["stage"] != stage:
        raise ConfigError(
            f"The config file {path} belongs to another stage",
            expected=f"settings of {stage}",
            received=f"settings of {values['stage']}",
            fix=f"use it with: python -m core {values['stage']} --config {path}",
        )
    return dict(values["config"])


def _pop_fields(values: dict[str, Any], nested: type[StageConfig]) -> dict[str, Any]:
    return {key: values.pop(key) for key in list(values) if key in nested.model_fields}


def _as_dict(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ConfigError(
        f"{name} has an invalid value",
        expected="an object of fields",
        received=repr(value),
        field=name,
    )


def _value(value: Any, field: FieldInfo) -> Any:
    _, optional = plain_type(field)
    return None if optional and isinstance(value, str) and value.lower() in _NO_VALUE else value
