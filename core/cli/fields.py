"""The flags of a stage's fields, and the values that they give."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic.fields import FieldInfo

from core.cli.output import workspace_of
from core.cli.parser import OnOffAuto, Parser
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import AUTOMATIC, choices_of, field_extra, flag_of, help_of, plain_type
from core.config.preflight import PreflightConfig
from core.config.source_flags import with_named_sources
from core.config.train import TrainConfig
from core.config.values import load_config_file
from core.errors import ConfigError

_ON = {"True": "on"}
_NO_VALUE = ("none", "null", "")
# The config file's rival would take precedence.
_RIVALS = {
    "warmup_ratio": "warmup_steps",
    "num_train_epochs": "num_train_steps",
    "mixture": "shards",
    "shards": "mixture",
}


def add_fields(parser: Parser, model: type[StageConfig]) -> None:
    groups: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if nested := _nested_model(field):
            add_fields(parser, nested)
            continue
        is_nested = model is CorpusConfig
        heading = "corpus" if is_nested else "fields"
        group = groups.setdefault(heading, parser.add_argument_group(heading))
        action = _add_field(group, model, name)
        # A stage of few options marks none as basic: help has all of them.
        if any(field_extra(one)["basic"] for one in model.model_fields.values()):
            parser.set_short_help(action, _short_help(model, name))


def _add_field(group: Any, model: type[StageConfig], name: str) -> argparse.Action:
    field = model.model_fields[name]
    flag = flag_of(name, field)
    spellings = list(dict.fromkeys([f"--{flag}", f"--{flag.replace('-', '_')}"]))
    settings: dict[str, Any] = {"metavar": _metavar(name, field)}
    kind, optional = plain_type(field)
    if kind is bool:
        settings = {"action": OnOffAuto if optional else argparse.BooleanOptionalAction}
    elif field_extra(field)["is_list"]:
        settings["action"] = _Joined
    elif field.default == ():
        settings = {"action": "append", "metavar": "NAME=ADDRESS"}
    elif name == "mixture":
        settings = {"nargs": "+", "metavar": "NAME=WEIGHT"}
    text = f"{help_of(field)} (default: {_shown_default(model, name)})".replace("%", "%%")
    action: argparse.Action = group.add_argument(
        *spellings, dest=name, default=argparse.SUPPRESS, help=text, **settings
    )
    return action


def _metavar(name: str, field: FieldInfo) -> str:
    if choices := choices_of(field):
        return "{" + ",".join(choices) + "}"
    extra = field_extra(field)
    if extra["path"]:
        return "PATH"
    if name == "name" or extra["artifact"]:
        return "NAME"
    return {int: "N", float: "X"}.get(plain_type(field)[0], "TEXT")


def _short_help(model: type[StageConfig], name: str) -> str:
    field = model.model_fields[name]
    extra = field_extra(field)
    # The form shows an upload in place of the path.
    is_basic = name == "path" or (extra["basic"] and not extra["needs"])
    if not is_basic:
        return argparse.SUPPRESS
    default = _shown_default(model, name).partition(", from ")[0]
    shown = "" if default in ("none", "False") else f" (default: {_ON.get(default, default)})"
    return f"{field.description}{shown}".replace("%", "%%")


class _Joined(argparse.Action):
    """Joins the values of a repeated flag with commas."""

    def __call__(self, _: Any, namespace: Any, values: Any, __: str | None = None) -> None:
        earlier = getattr(namespace, self.dest, "")
        setattr(namespace, self.dest, ", ".join(filter(None, (earlier, values))))


def _shown_default(model: type[StageConfig], name: str) -> str:
    own = model.model_fields[name].default
    filled = model.preset_values({}) if model.presets else {}
    value = filled.get(name, own)
    nothing = AUTOMATIC if field_extra(model.model_fields[name])["automatic"] else "none"
    shown = nothing if value in (None, "", ()) else str(value)
    if name not in filled:
        return shown
    shown += f", from --preset {model.model_fields['preset'].default}"
    variants = choices_of(model.model_fields[model.variant])
    values = [model.preset_values({model.variant: one}).get(name, own) for one in variants]
    varies = any(one != value for one in values)
    return f"{shown}; depends on --{model.variant}" if varies else shown


def stage_values(options: argparse.Namespace, model: type[StageConfig]) -> dict[str, Any]:
    values = config_values(options, model)
    if not issubclass(model, TrainConfig):
        return values
    from core.artifacts.finding import with_family

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
        if nested := _nested_model(field):
            parts = {**_taken(values, nested), **_as_dict(values.get(name, {}), name)}
            flags = {
                key: _value(given[key], nested.model_fields[key])
                for key in nested.model_fields
                if key in given
            }
            if nested is CorpusConfig:
                flags = with_named_sources(flags)
            parts |= nested.inferred(flags, parts)
            if parts:
                values[name] = parts
        elif name in given:
            values[name] = _value(given[name], field)
    if values.get("target"):
        from core.targets.saved import with_saved_machine

        values = with_saved_machine(values, model.model_fields, workspace_of(options))
    return values


def _file_values(path: str, stage: str) -> dict[str, Any]:
    from core.report.settings import is_settings

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


def _taken(values: dict[str, Any], nested: type[StageConfig]) -> dict[str, Any]:
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


def _nested_model(field: FieldInfo) -> type[StageConfig] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, StageConfig) else None
