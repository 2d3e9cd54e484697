"""Format of a family's `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import ConfigError
from core.messages.values import shown

Values = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A number in a `config.json`, with transformers' default and name."""

    default: int | float
    name: str = ""
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A `model_type` that shares a family's architecture."""

    class_name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFormat:
    """Format of a family's `config.json`.

    Attributes:
        required: Supported values and default of fields that choose the computation.
        needs_padding: Whether position ids depend on the padding token's id.
        activation: Field, supported values, default.
        extra: Values of further fields that are written.
        read: Dimensions from fields that aren't plain numbers.
        plain: Normalises spellings.
    """

    class_name: str
    fields: Mapping[str, Field]
    required: Mapping[str, tuple[tuple[Any, ...], Any]]
    activation: tuple[str, tuple[str, ...], str] | None = ("hidden_act", ("gelu",), "gelu")
    needs_padding: bool = False
    bos: int | None = None
    eos: int | None = None
    constants: Mapping[str, Any] | None = None
    extra: Callable[[Any], Values] = lambda architecture: {}
    read: Callable[[Values, str], Values] = lambda values, source: {}
    aliases: Mapping[str, str] = field(default_factory=dict)
    plain: Callable[[Values, str], Values] = lambda values, source: values
    check: Callable[[Any, str], None] = lambda architecture, source: None


def first_id(value: Any) -> int | None:
    """Returns a token id, or the first of several; None if negative."""
    first = value[0] if isinstance(value, list) and value else value
    is_id = isinstance(first, int) and not isinstance(first, bool) and first >= 0
    return first if is_id else None


def pad_with_end(values: Values, eos: int) -> Values:
    """Uses the end-of-sequence token as padding, or 0 if it is beyond the vocabulary."""
    padded = dict(values)
    if padded.get("pad_token_id") is None:
        padded["pad_token_id"] = first_id(values.get("eos_token_id", eos)) or 0
    count, pad = values.get("vocab_size"), padded["pad_token_id"]
    if isinstance(count, int) and isinstance(pad, int) and pad >= count:
        padded["pad_token_id"] = 0
    return padded


def part(values: Values, name: str, kind: type, source: str) -> Any:
    """Returns an object or list, empty if missing."""
    value = values.get(name) or kind()
    if not isinstance(value, kind):
        raise unsupported(source, name, "an object" if kind is dict else "a list", value)
    return value


def unsupported(source: str, name: str, wanted: str, value: Any) -> ConfigError:
    """Makes the error for an unsupported model."""
    return ConfigError(
        f"{source} describes an unsupported model",
        expected=f"{name}: {wanted}",
        received=shown(value),
        fix="use another model or config, or correct the value in the file",
        field="model_config_path",
    )


NO = ((False, None), False)
