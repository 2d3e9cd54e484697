"""Reads and writes the values of each family's `config.json`, for transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from core.errors import ConfigError
from core.foreign_files import shown
from core.models.architecture import (
    ARCHITECTURES,
    Architecture,
    BartArchitecture,
    ModernBertArchitecture,
    T5Architecture,
)

Values = dict[str, Any]

# Limits by our names; the largest values that a training config takes too.
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
_MOST_OF_A_KIND = {int: 1 << 24, float: 10**9}
# A graph holds rotary cosines and sines of 64 MiB each; 262,144 positions at head size 64.
_MOST_ROTARY_VALUES = 1 << 24


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
    """A `model_type` with another family's architecture.

    Attributes:
        family: The `model_type` of that architecture.
        defaults: Defaults of its config class that differ from the family's.
    """

    family: str
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
    """

    class_name: str
    fields: Mapping[str, Field]
    required: Mapping[str, tuple[tuple[Any, ...], Any]]
    activation: tuple[str, tuple[str, ...], str] | None = ("hidden_act", ("gelu",), "gelu")
    bos: int | None = None
    eos: int | None = None
    constants: Mapping[str, Any] | None = None
    extra: Callable[[Architecture], Values] = lambda architecture: {}
    aliases: Mapping[str, str] = field(default_factory=dict)
    plain: Callable[[Values, str], Values] = lambda values, source: values


def class_name(architecture: Architecture) -> str:
    """Returns the model's class in transformers."""
    if architecture.variant:
        return _VARIANTS[architecture.variant].class_name
    return family_class_name(architecture)


def family_class_name(architecture: Architecture) -> str:
    """Returns the family's class, here and in transformers."""
    return _FORMATS[architecture.model_type].class_name


def config_values(architecture: Architecture) -> Values:
    form = _FORMATS[architecture.model_type]
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


def parse_config(values: Any, source: str) -> Architecture:
    """Makes an architecture from the values of a `config.json`; defaults are transformers'.

    `source` names the file in errors.

    Raises:
        ConfigError: The model isn't supported.
    """
    kind = _model_type(values, source)
    variant = _VARIANTS.get(kind)
    family = variant.family if variant else kind
    form = _FORMATS[family]
    if variant:
        values = {**variant.defaults, **values}
    named = {name: values[alias] for alias, name in form.aliases.items() if alias in values}
    values = form.plain({**named, **values}, source)
    _check_arithmetic(values, form, source)
    numbers = {
        ours: _read_number(values, ours, field, source) for ours, field in form.fields.items()
    }
    ids: Values = {
        "bos_token_id": _optional_id(values, "bos_token_id", form.bos, source),
        "eos_token_id": _optional_id(values, "eos_token_id", form.eos, source),
    }
    if form.activation:
        ids["hidden_act"] = values.get(form.activation[0], form.activation[2])
    found = ARCHITECTURES[family](**numbers, **ids)
    _check_together(found, form, source)
    return replace(found, variant=kind) if variant else found


def _model_type(values: Any, source: str) -> str:
    """Finds the `model_type`; old files have only the model's class."""
    known = [*_FORMATS, *_VARIANTS]
    if not isinstance(values, dict):
        raise _unsupported(source, "model_type", " or ".join(known), values)
    found = values.get("model_type")
    if found is None and isinstance(classes := values.get("architectures"), list):
        by_class = {one.class_name: name for name, one in (_FORMATS | _VARIANTS).items()}
        found = next((by_class[one] for one in map(str, classes) if one in by_class), None)
    if not isinstance(found, str) or found not in known:
        raise _unsupported(source, "model_type", " or ".join(known), found)
    return found


def _check_together(found: Architecture, form: ConfigFormat, source: str) -> None:
    """Refuses contradictory numbers, as transformers does."""

    def called(ours: str) -> str:
        return form.fields[ours].name or ours

    heads, width = found.num_attention_heads, found.hidden_size
    multiple = 2 if found.model_type == "modernbert" else 1
    if not isinstance(found, T5Architecture) and width % (heads * multiple):
        even = ", into heads of an even width" if multiple == 2 else ""
        wanted = f"a number that divides {called('hidden_size')} {width}{even}"
        raise _unsupported(source, called("num_attention_heads"), wanted, heads)
    for name in ("pad_token_id", "decoder_start_token_id"):
        token = getattr(found, name, 0)
        if token >= found.vocab_size:
            raise _unsupported(source, name, f"below vocab_size {found.vocab_size}", token)
    if found.max_seq_length < 1:
        name, least = "max_position_embeddings", found.first_position + 1
        wanted = f"at least {least}, as positions are counted from the padding token's id"
        raise _unsupported(source, name, wanted, found.max_position_embeddings)
    if found.model_type == "modernbert":
        most = _MOST_ROTARY_VALUES // found.head_size
        if found.max_position_embeddings > most:
            wanted = f"at most {most} with heads of width {found.head_size}"
            name = "max_position_embeddings"
            raise _unsupported(source, name, wanted, found.max_position_embeddings)


def _check_arithmetic(values: Values, form: ConfigFormat, source: str) -> None:
    required = dict(form.required)
    if form.activation:
        name, wanted, default = form.activation
        required[name] = (wanted, default)
    for name, (wanted, default) in required.items():
        if values.get(name, default) not in wanted:
            raise _unsupported(source, name, " or ".join(map(repr, wanted)), values.get(name))


def _read_number(values: Values, ours: str, field: Field, source: str) -> Any:
    name = field.name or ours
    kind = type(field.default)
    number = _checked(values.get(name, field.default), name, kind, source, ours)
    for copy in field.copies:
        if kind is int and values.get(copy, number) != number:
            raise _unsupported(source, copy, f"{number}, as {name}", values[copy])
    return number


def _checked(value: Any, name: str, kind: type, source: str, ours: str) -> Any:
    """Validates a number: sizes are at least 1, ids and probabilities at least 0."""
    number = isinstance(value, (int, float) if kind is float else int)
    least = 0 if (kind is float and "theta" not in ours) or name.endswith("_id") else 1
    most = _MOST.get(ours, _MOST_OF_A_KIND[kind])
    # NaN fails the comparison.
    if number and not isinstance(value, bool) and least <= value <= most and math.isfinite(value):
        return kind(value)
    wanted = f"a {'number' if kind is float else 'whole number'} of at least {least}"
    raise _unsupported(source, name, f"{wanted} and at most {most:,}", value)


def _optional_id(values: Values, name: str, default: int | None, source: str) -> int | None:
    found = _first_id(values.get(name, default))
    if found is not None and found > _MOST["pad_token_id"]:
        raise _unsupported(source, name, f"at most {_MOST['pad_token_id']:,}", found)
    return found


def _first_id(value: Any) -> int | None:
    """Returns a token id, or the first of several; negative means none."""
    first = value[0] if isinstance(value, list) and value else value
    is_id = isinstance(first, int) and not isinstance(first, bool) and first >= 0
    return first if is_id else None


def _unsupported(source: str, name: str, wanted: str, found: Any) -> ConfigError:
    return ConfigError(
        f"{source} describes a model that can't be built here",
        expected=f"{name}: {wanted}",
        received=shown(found),
        fix="use another model or config, or correct the value in the file",
        field="model_config_path",
    )


def _modernbert_extra(architecture: Architecture) -> Values:
    """Adds transformers 5's spelling of values that transformers 4 spells differently."""
    modern = cast(ModernBertArchitecture, architecture)
    kinds = ("sliding_attention", "full_attention")
    thetas = (modern.local_rope_theta, modern.global_rope_theta)
    return {
        "cls_token_id": modern.bos_token_id,
        "sep_token_id": modern.eos_token_id,
        "layer_types": [
            kinds[modern.is_global(index)] for index in range(modern.num_hidden_layers)
        ],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in zip(kinds, thetas, strict=True)
        },
    }


def _plain_modernbert(values: Values, source: str) -> Values:
    """Converts values of transformers 5 to transformers 4's spelling."""
    found = dict(values)
    rope = _part(values, "rope_parameters", dict, source)
    # The older name, for layers of both kinds.
    scaling = _part(values, "rope_scaling", dict, source)
    for kind, name in (("full_attention", "global"), ("sliding_attention", "local")):
        own = {**_part(rope, kind, dict, source), **scaling}
        if own.get("rope_theta") is not None:
            found[f"{name}_rope_theta"] = own["rope_theta"]
        found[f"{name}_rope_type"] = _rope_type(own)
    if types := _part(values, "layer_types", list, source):
        places = [index for index, kind in enumerate(types) if kind == "full_attention"]
        every = places[1] if len(places) > 1 else len(types)
        found["global_attn_every_n_layers"] = every
        found["layers_are_regular"] = places == list(range(0, len(types), every))
    return found


def _part(values: Values, name: str, kind: type, source: str) -> Any:
    found = values.get(name) or kind()
    if not isinstance(found, kind):
        raise _unsupported(source, name, "an object" if kind is dict else "a list", found)
    return found


def _rope_type(rope: Values) -> Any:
    """Returns the type of rotary positions, which has an older name too."""
    said = [rope[name] for name in ("rope_type", "type") if name in rope]
    return next((one for one in said if one != "default"), "default")


def _plain_t5(values: Values, source: str) -> Values:
    """Reads v1.1 as transformers 5 writes it: tied, with a false `scale_decoder_outputs`."""
    found = dict(values)
    if "scale_decoder_outputs" in values:
        found["tie_word_embeddings"] = values["scale_decoder_outputs"]
    layers = values.get("num_layers", 6)
    found["num_decoder_layers"] = values.get("num_decoder_layers") or layers
    found.setdefault("decoder_start_token_id", values.get("pad_token_id", 0))
    return found


def _plain_bart(values: Values, source: str) -> Values:
    found = dict(values)
    if found.get("decoder_start_token_id") is None:
        found["decoder_start_token_id"] = _first_id(values.get("eos_token_id", 2))
    return found


def _plain_gpt2(values: Values, source: str) -> Values:
    """Uses the end-of-sequence token as GPT-2's padding token, which is never attended to.

    Small configs often keep GPT-2's own special ids, beyond their vocabulary: then 0 is used.
    """
    found = dict(values)
    if found.get("n_inner") is None:
        width = values.get("n_embd", 768)  # Checked later.
        found["n_inner"] = 4 * width if isinstance(width, int) else None
    if found.get("pad_token_id") is None:
        found["pad_token_id"] = _first_id(values.get("eos_token_id", 50_256)) or 0
    count, pad = values.get("vocab_size"), found["pad_token_id"]
    if isinstance(count, int) and isinstance(pad, int) and pad >= count:
        found["pad_token_id"] = 0
    return found


def _bart_extra(architecture: Architecture) -> Values:
    # `generate` ends a sequence that is too long with it.
    return {"forced_eos_token_id": cast(BartArchitecture, architecture).eos_token_id}


# Fields and defaults of transformers' RobertaConfig.
_ROBERTA_FIELDS = {
    "vocab_size": Field(50_265),
    "hidden_size": Field(768),
    "num_hidden_layers": Field(12),
    "num_attention_heads": Field(12),
    "intermediate_size": Field(3072),
    "max_position_embeddings": Field(512),
    "type_vocab_size": Field(2),
    "pad_token_id": Field(1),
    "hidden_dropout_prob": Field(0.1),
    "attention_probs_dropout_prob": Field(0.1),
    "layer_norm_eps": Field(1e-12),
    "initializer_range": Field(0.02),
}
_ENCODER_ONLY: dict[str, tuple[tuple[Any, ...], Any]] = {
    "position_embedding_type": (("absolute", None), "absolute"),
    "is_decoder": ((False, None), False),
    "add_cross_attention": ((False, None), False),
    "tie_word_embeddings": ((True, None), True),
}
_NO = ((False, None), False)

_FORMATS = {
    "roberta": ConfigFormat(
        class_name="RobertaForMaskedLM",
        fields=_ROBERTA_FIELDS,
        required=_ENCODER_ONLY,
        bos=0,
        eos=2,
        constants={"position_embedding_type": "absolute"},
    ),
    "bert": ConfigFormat(
        class_name="BertForMaskedLM",
        fields={**_ROBERTA_FIELDS, "vocab_size": Field(30_522), "pad_token_id": Field(0)},
        required=_ENCODER_ONLY,
        constants={"position_embedding_type": "absolute"},
    ),
    "modernbert": ConfigFormat(
        class_name="ModernBertForMaskedLM",
        fields={
            "vocab_size": Field(50_368),
            "hidden_size": Field(768),
            "num_hidden_layers": Field(22),
            "num_attention_heads": Field(12),
            "intermediate_size": Field(1152),
            "max_position_embeddings": Field(8192),
            "pad_token_id": Field(50_283),
            "hidden_dropout_prob": Field(0.0, "mlp_dropout", ("embedding_dropout",)),
            "attention_probs_dropout_prob": Field(0.0, "attention_dropout"),
            "layer_norm_eps": Field(1e-5, "norm_eps"),
            "initializer_range": Field(0.02),
            "initializer_cutoff_factor": Field(2.0),
            "global_attn_every_n_layers": Field(3),
            "local_attention": Field(128),
            "global_rope_theta": Field(160_000.0),
            "local_rope_theta": Field(10_000.0),
        },
        required={
            "norm_bias": _NO,
            "attention_bias": _NO,
            "mlp_bias": _NO,
            "classifier_bias": _NO,
            "decoder_bias": ((True,), True),
            "classifier_activation": (("gelu",), "gelu"),
            "tie_word_embeddings": ((True, None), True),
            "layers_are_regular": ((True,), True),
            "global_rope_type": (("default",), "default"),
            "local_rope_type": (("default",), "default"),
        },
        activation=("hidden_activation", ("gelu",), "gelu"),
        bos=50_281,
        eos=50_282,
        constants={"norm_bias": False, "attention_bias": False, "mlp_bias": False,
                   "classifier_bias": False, "decoder_bias": True, "classifier_activation": "gelu"},
        extra=_modernbert_extra,
        plain=_plain_modernbert,
    ),
    "gpt2": ConfigFormat(
        class_name="GPT2LMHeadModel",
        fields={
            "vocab_size": Field(50_257),
            "hidden_size": Field(768, "n_embd"),
            "num_hidden_layers": Field(12, "n_layer"),
            "num_attention_heads": Field(12, "n_head"),
            "intermediate_size": Field(3072, "n_inner"),
            "max_position_embeddings": Field(1024, "n_positions"),
            "pad_token_id": Field(0),
            "hidden_dropout_prob": Field(0.1, "resid_pdrop", ("embd_pdrop",)),
            "attention_probs_dropout_prob": Field(0.1, "attn_pdrop"),
            "layer_norm_eps": Field(1e-5, "layer_norm_epsilon"),
            "initializer_range": Field(0.02),
        },
        required={
            "scale_attn_weights": ((True,), True),
            "scale_attn_by_inverse_layer_idx": _NO,
            "add_cross_attention": _NO,
            "tie_word_embeddings": ((True, None), True),
        },
        activation=("activation_function", ("gelu_new", "gelu"), "gelu_new"),
        bos=50_256,
        eos=50_256,
        aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        },
        plain=_plain_gpt2,
    ),
    "t5": ConfigFormat(
        class_name="T5ForConditionalGeneration",
        fields={
            "vocab_size": Field(32_128),
            "hidden_size": Field(512, "d_model"),
            "num_hidden_layers": Field(6, "num_layers"),
            "num_decoder_layers": Field(6),
            "num_attention_heads": Field(8, "num_heads"),
            "intermediate_size": Field(2048, "d_ff"),
            "d_kv": Field(64),
            "max_position_embeddings": Field(512, "n_positions"),
            "relative_attention_num_buckets": Field(32),
            "relative_attention_max_distance": Field(128),
            "pad_token_id": Field(0),
            "decoder_start_token_id": Field(0),
            # One field there; the last of these is written.
            "attention_probs_dropout_prob": Field(0.1, "dropout_rate"),
            "hidden_dropout_prob": Field(0.1, "dropout_rate"),
            "layer_norm_eps": Field(1e-6, "layer_norm_epsilon"),
            "initializer_range": Field(1.0, "initializer_factor"),
        },
        required={
            "feed_forward_proj": (("gated-gelu",), "relu"),
            "tie_word_embeddings": ((False,), True),
            "is_decoder": _NO,
        },
        activation=None,
        eos=1,
        constants={"feed_forward_proj": "gated-gelu", "is_encoder_decoder": True,
                   "tie_word_embeddings": False},
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "head_dim": "d_kv",
        },
        plain=_plain_t5,
    ),
    "bart": ConfigFormat(
        class_name="BartForConditionalGeneration",
        fields={
            "vocab_size": Field(50_265),
            "hidden_size": Field(1024, "d_model"),
            "num_hidden_layers": Field(12, "encoder_layers"),
            "num_decoder_layers": Field(12, "decoder_layers"),
            "num_attention_heads": Field(16, "encoder_attention_heads",
                                         ("decoder_attention_heads",)),
            "intermediate_size": Field(4096, "encoder_ffn_dim", ("decoder_ffn_dim",)),
            "max_position_embeddings": Field(1024),
            "pad_token_id": Field(1),
            "decoder_start_token_id": Field(2),
            "hidden_dropout_prob": Field(0.1, "dropout"),
            "attention_probs_dropout_prob": Field(0.0, "attention_dropout"),
            "initializer_range": Field(0.02, "init_std"),
        },
        required={
            "scale_embedding": _NO,
            "tie_word_embeddings": ((True, None), True),
            "normalize_before": _NO,
            "add_final_layer_norm": _NO,
        },
        activation=("activation_function", ("gelu",), "gelu"),
        bos=0,
        eos=2,
        constants={"activation_dropout": 0.0, "scale_embedding": False, "is_encoder_decoder": True},
        extra=_bart_extra,
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "encoder_layers",
            "num_attention_heads": "encoder_attention_heads",
        },
        plain=_plain_bart,
    ),
}  # fmt: skip

# Source: transformers, models/xlm_roberta and models/camembert: "RobertaForMaskedLM" but for names.
_VARIANTS = {
    "xlm-roberta": Variant("roberta", "XLMRobertaForMaskedLM", {"vocab_size": 30_522}),
    "camembert": Variant("roberta", "CamembertForMaskedLM", {"vocab_size": 30_522}),
}
