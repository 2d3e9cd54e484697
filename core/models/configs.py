"""Reads and writes `config.json` values, for transformers 4 and 5."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.config_format import ConfigFormat, Field, Values, first_id, unsupported
from core.architecture.heads import SUFFIXES, Kind
from core.families import find_family, list_families

_MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1 << 10,
    "num_decoder_layers": 1 << 10,
    "num_attention_heads": 1 << 10,
    "intermediate_size": 1 << 20,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 10,
    "d_kv": 1 << 16,
    "pad_token_id": (1 << 24) - 1,
    "decoder_start_token_id": (1 << 24) - 1,
    "hidden_dropout_prob": 1,
    "attention_probs_dropout_prob": 1,
    "layer_norm_eps": 1,
}
# Values that only the language-model head depends on.
_OF_HEAD = ("tie_word_embeddings", "decoder_bias")
_MOST_OF_A_KIND = {int: 1 << 24, float: 10**9}


def class_name(architecture: Architecture) -> str:
    """Returns the class in transformers."""
    family = find_family(architecture.model_type)
    if architecture.variant:
        return family.variants[architecture.variant].class_name
    return family.config_format.class_name


def config_values(architecture: Architecture) -> Values:
    """Returns the values of a `config.json`."""
    form = find_family(architecture.model_type).config_format
    numbers = {
        name: getattr(architecture, ours)
        for ours, field in form.fields.items()
        for name in (field.name or ours, *field.copies)
    }
    activation = {form.activation[0]: architecture.hidden_act} if form.activation else {}
    return {
        "architectures": [class_name(architecture)],
        "model_type": architecture.variant or architecture.model_type,
        **numbers,
        **activation,
        "bos_token_id": architecture.bos_token_id,
        "eos_token_id": architecture.eos_token_id,
        "tie_word_embeddings": True,
        **(form.constants or {}),
        **form.extra(architecture),
        "dtype": "float32",
        "torch_dtype": "float32",  # `dtype` before transformers 4.56.
    }


def parse_config(values: Any, source: str, *, has_head: bool | None = None) -> Architecture:
    """Makes an architecture from a `config.json`'s values.

    Args:
        has_head: Whether the language-model head matters; None: unless the file is a classifier's.

    Raises:
        ConfigError: The model isn't supported.
    """
    kind = _model_type(values, source)
    family = next(
        candidate
        for candidate in list_families()
        if kind == candidate.name or kind in candidate.variants
    )
    variant, form = family.variants.get(kind), family.config_format
    if variant:
        values = {**variant.defaults, **values}
    named = {name: values[alias] for alias, name in form.aliases.items() if alias in values}
    values = form.plain({**named, **values}, source)
    if "pad_token_id" in values and not form.needs_padding:
        pad = first_id(values["pad_token_id"])
        # A model without a padding token never attends to the padding.
        values["pad_token_id"] = 0 if pad is None else pad
    if has_head is None:
        has_head = "Classification" not in str(values.get("architectures"))
    _check_arithmetic(values, form, source, has_head=has_head)
    numbers = {
        ours: _read_number(values, ours, field, source) for ours, field in form.fields.items()
    }
    ids: Values = {
        "bos_token_id": _optional_id(values, "bos_token_id", form.bos, source),
        "eos_token_id": _optional_id(values, "eos_token_id", form.eos, source),
    }
    if form.activation:
        ids["hidden_act"] = values.get(form.activation[0], form.activation[2])
    architecture = family.architecture(**numbers, **ids, **form.read(values, source))
    _check_together(architecture, form, source)
    return replace(architecture, variant=kind) if variant else architecture


def head_kind(values: Any) -> Kind | None:
    """Returns the kind of a fine-tuned model by its class in `config.json`, or None."""
    classes = values.get("architectures") if isinstance(values, dict) else None
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    return next((kind for kind, suffix in SUFFIXES.items() if name.endswith(suffix)), None)


def _model_type(values: Any, source: str) -> str:
    """Old files have only the model's class."""
    families = list_families()
    formats = {family.name: family.config_format.class_name for family in families}
    for family in families:
        formats |= {name: variant.class_name for name, variant in family.variants.items()}
    known = list(formats)
    if not isinstance(values, dict):
        raise unsupported(source, "model_type", " or ".join(known), values)
    model_type = values.get("model_type")
    if model_type is None and isinstance(classes := values.get("architectures"), list):
        by_class = {class_name: name for name, class_name in formats.items()}
        model_type = next(
            (by_class[class_name] for class_name in map(str, classes) if class_name in by_class),
            None,
        )
    if not isinstance(model_type, str) or model_type not in known:
        raise unsupported(source, "model_type", " or ".join(known), model_type)
    return model_type


def _check_together(architecture: Architecture, form: ConfigFormat, source: str) -> None:
    def called(ours: str) -> str:
        return form.fields[ours].name or ours

    heads, width = architecture.num_attention_heads, architecture.hidden_size
    multiple = architecture.head_size_multiple
    if not architecture.has_own_head_size and width % (heads * multiple):
        even = ", with an even head size" if multiple == 2 else ""
        wanted = f"a number that divides {called('hidden_size')} {width}{even}"
        raise unsupported(source, called("num_attention_heads"), wanted, heads)
    for name in ("pad_token_id", "decoder_start_token_id"):
        token = getattr(architecture, name, 0)
        if token >= architecture.vocab_size:
            raise unsupported(source, name, f"below vocab_size {architecture.vocab_size}", token)
    if architecture.max_seq_length < 1:
        name, least = "max_position_embeddings", architecture.first_position + 1
        wanted = f"at least {least}, because position ids begin after the padding token's id"
        raise unsupported(source, name, wanted, architecture.max_position_embeddings)
    form.check(architecture, source)


def _check_arithmetic(values: Values, form: ConfigFormat, source: str, *, has_head: bool) -> None:
    required = {
        name: check for name, check in form.required.items() if has_head or name not in _OF_HEAD
    }
    if form.activation:
        name, wanted, default = form.activation
        required[name] = (wanted, default)
    for name, (wanted, default) in required.items():
        if values.get(name, default) not in wanted:
            raise unsupported(source, name, " or ".join(map(repr, wanted)), values.get(name))


def _read_number(values: Values, ours: str, field: Field, source: str) -> Any:
    name = field.name or ours
    kind = type(field.default)
    number = _checked(values.get(name, field.default), name, kind, source, ours)
    for copy in field.copies:
        if kind is int and values.get(copy, number) != number:
            raise unsupported(source, copy, f"{number}, the value of {name}", values[copy])
    return number


def _checked(value: Any, name: str, kind: type, source: str, ours: str) -> Any:
    number = isinstance(value, (int, float) if kind is float else int)
    least = 0 if (kind is float and "theta" not in ours) or name.endswith("_id") else 1
    most = _MOST.get(ours, _MOST_OF_A_KIND[kind])
    # NaN fails the comparison.
    if number and not isinstance(value, bool) and least <= value <= most and math.isfinite(value):
        return kind(value)
    wanted = f"a {'number' if kind is float else 'whole number'} of at least {least}"
    raise unsupported(source, name, f"{wanted} and at most {most:,}", value)


def _optional_id(values: Values, name: str, default: int | None, source: str) -> int | None:
    token_id = first_id(values.get(name, default))
    if token_id is not None and token_id > _MOST["pad_token_id"]:
        raise unsupported(source, name, f"at most {_MOST['pad_token_id']:,}", token_id)
    return token_id
