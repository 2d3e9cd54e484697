"""Format of a family's `config.json`: its fields, and the values that a model here supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import ConfigError
from core.foreign_files import shown

Values = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A number in a `config.json`.

    Attributes:
        default: transformers' default.
        name: transformers' name; empty: ours.
        copies: Fields with the same value; integer copies must agree.
    """

    default: int | float
    name: str = ""
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A `model_type` that a family's architecture has under another name.

    Attributes:
        class_name: The model's class in transformers.
        defaults: Defaults of its config class that differ from the family's.
    """

    class_name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFormat:
    """Format of a family's `config.json`.

    Attributes:
        class_name: The model's class in transformers.
        fields: Numbers by our names.
        required: Fields that choose the computation: supported values, and transformers' default.
        activation: The activation's field, supported values, and default.
        constants: Further values to write.
        extra: The same, from the architecture.
        aliases: Accepted names, and the family's own: `attribute_map` in transformers.
        plain: Normalises other spellings; also takes the source, for errors.
        check: Refuses contradictory numbers of this family; takes the architecture and the source.
    """

    class_name: str
    fields: Mapping[str, Field]
    required: Mapping[str, tuple[tuple[Any, ...], Any]]
    activation: tuple[str, tuple[str, ...], str] | None = ("hidden_act", ("gelu",), "gelu")
    bos: int | None = None
    eos: int | None = None
    constants: Mapping[str, Any] | None = None
    extra: Callable[[Any], Values] = lambda architecture: {}
    aliases: Mapping[str, str] = field(default_factory=dict)
    plain: Callable[[Values, str], Values] = lambda values, source: values
    check: Callable[[Any, str], None] = lambda architecture, source: None


def first_id(value: Any) -> int | None:
    """Returns a token id, or the first of several; negative means none."""
    first = value[0] if isinstance(value, list) and value else value
    is_id = isinstance(first, int) and not isinstance(first, bool) and first >= 0
    return first if is_id else None


def part(values: Values, name: str, kind: type, source: str) -> Any:
    """Returns an object or list within a `config.json`, empty if it is missing."""
    found = values.get(name) or kind()
    if not isinstance(found, kind):
        raise unsupported(source, name, "an object" if kind is dict else "a list", found)
    return found


def unsupported(source: str, name: str, wanted: str, found: Any) -> ConfigError:
    """Makes the error for a `config.json` that no model here has."""
    return ConfigError(
        f"{source} describes an unsupported model",
        expected=f"{name}: {wanted}",
        received=shown(found),
        fix="use another model or config, or correct the value in the file",
        field="model_config_path",
    )


# Required value of a flag that must be off.
NO = ((False, None), False)
