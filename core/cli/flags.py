"""The flags of a stage's fields."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic.fields import FieldInfo

from core.cli.parser import OnOffAuto, Parser
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import AUTOMATIC, choices_of, field_extra, flag_of, help_of, plain_type

_ON = {"True": "on"}


def add_fields(parser: Parser, model: type[StageConfig]) -> None:
    groups: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if nested := nested_model(field):
            add_fields(parser, nested)
            continue
        is_nested = model is CorpusConfig
        heading = "corpus" if is_nested else "fields"
        group = groups.setdefault(heading, parser.add_argument_group(heading))
        action = _add_field(group, model, name)
        parser.flags[name] = action.option_strings[0]
        # A stage of few options marks none as basic: help has all of them.
        if any(field_extra(other)["basic"] for other in model.model_fields.values()):
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
    if field_extra(field)["positional"]:
        group.add_argument(
            name, nargs="?", default=argparse.SUPPRESS, metavar=name.upper(), help=help_of(field)
        )
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
    values = [model.preset_values({model.variant: variant}).get(name, own) for variant in variants]
    varies = any(other != value for other in values)
    return f"{shown}; depends on --{model.variant}" if varies else shown


def nested_model(field: FieldInfo) -> type[StageConfig] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, StageConfig) else None
