"""ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward layers and no biases.

Source: https://arxiv.org/abs/2412.13663; "full_megatron" in
    https://github.com/AnswerDotAI/ModernBERT. Computes as `ModernBertForMaskedLM`, but attention
    dropout applies to weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from core.architecture.architecture import Architecture
from core.architecture.config_format import NO, ConfigFormat, Field, Values, part, unsupported
from core.architecture.family import NO_DROPOUT, Dimensions, Family, WriteUp, like_bert
from core.architecture.heads import Head
from core.architecture.options import (
    InitializerScales,
    LayerAttention,
    ModelOptions,
    RotaryPositions,
    block_options,
    embedding_options,
)
from core.architecture.weight_mapping import WeightMapping, kernel, scale

# A graph holds rotary cosines and sines of 64 MiB each.
_MOST_ROTARY_VALUES = 1 << 24


@dataclass(frozen=True)
class ModernBertArchitecture(Architecture):
    """Dimensions of a ModernBERT.

    Attributes:
        global_attn_every_n_layers: Layer 0 and every n-th attend to all tokens.
        local_attention: Window, half on either side.
    """

    head_size_multiple: ClassVar[int] = 2

    model_type: str = "modernbert"
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
    global_attn_every_n_layers: int = 3
    local_attention: int = 128
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    initializer_cutoff_factor: float = 2.0

    def is_global(self, index: int) -> bool:
        return index % self.global_attn_every_n_layers == 0


def _model_options(architecture: ModernBertArchitecture) -> ModelOptions:
    added = (2 * architecture.num_hidden_layers) ** -0.5
    blocks = block_options(
        architecture,
        dropout=0.0,
        inner_dropout=architecture.hidden_dropout_prob,
        norm="plain",
        norm_first=True,
        use_bias=False,
        gated=True,
        scales=InitializerScales(mixed=added, down=added),
    )
    everywhere = LayerAttention(None, RotaryPositions(architecture.global_rope_theta))
    nearby = LayerAttention(
        architecture.local_attention // 2, RotaryPositions(architecture.local_rope_theta)
    )
    layers = range(architecture.num_hidden_layers)
    return ModelOptions(
        blocks,
        embedding_options(architecture, norm="plain"),
        layers=tuple(everywhere if architecture.is_global(index) else nearby for index in layers),
        initializer_cutoff=architecture.initializer_cutoff_factor,
    )


def _map_weights(architecture: ModernBertArchitecture) -> Iterator[WeightMapping]:
    width, inner, vocabulary = (
        architecture.hidden_size,
        architecture.intermediate_size,
        architecture.vocab_size,
    )
    yield WeightMapping(
        "modernbert/embeddings/words/table",
        (vocabulary, width),
        ("model.embeddings.tok_embeddings.weight",),
        alias="decoder.weight",
    )
    yield scale("modernbert/embeddings/norm", "model.embeddings.norm", width)
    for index in range(architecture.num_hidden_layers):
        ours, theirs = f"modernbert/layer_{index}", f"model.layers.{index}"
        if index:  # The first layer uses the embeddings' norm.
            yield scale(f"{ours}/attention_norm", f"{theirs}.attn_norm", width)
        yield kernel(f"{ours}/attention/qkv", (f"{theirs}.attn.Wqkv",), width, 3 * width)
        yield kernel(f"{ours}/attention/output", (f"{theirs}.attn.Wo",), width, width)
        yield kernel(f"{ours}/feed_forward/gated_up", (f"{theirs}.mlp.Wi",), width, 2 * inner)
        yield kernel(f"{ours}/feed_forward/down", (f"{theirs}.mlp.Wo",), inner, width)
        yield scale(f"{ours}/output_norm", f"{theirs}.mlp_norm", width)
    yield scale("modernbert/final_norm", "model.final_norm", width)
    yield kernel("modernbert/lm_head/dense", ("head.dense",), width, width)
    yield scale("modernbert/lm_head/norm", "head.norm", width)
    yield WeightMapping("modernbert/lm_head/bias", (vocabulary,), ("decoder.bias",))


def _extra(architecture: ModernBertArchitecture) -> Values:
    kinds = ("sliding_attention", "full_attention")
    thetas = (architecture.local_rope_theta, architecture.global_rope_theta)
    return {
        "cls_token_id": architecture.bos_token_id,
        "sep_token_id": architecture.eos_token_id,
        "layer_types": [
            kinds[architecture.is_global(index)] for index in range(architecture.num_hidden_layers)
        ],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in zip(kinds, thetas, strict=True)
        },
    }


def _plain(values: Values, source: str) -> Values:
    """Converts transformers 5's spelling to 4's."""
    plain_values = dict(values)
    rope = part(values, "rope_parameters", dict, source)
    scaling = part(values, "rope_scaling", dict, source)
    for kind, name in (("full_attention", "global"), ("sliding_attention", "local")):
        own = {**part(rope, kind, dict, source), **scaling}
        if own.get("rope_theta") is not None:
            plain_values[f"{name}_rope_theta"] = own["rope_theta"]
        plain_values[f"{name}_rope_type"] = _rope_type(own)
    if types := part(values, "layer_types", list, source):
        position_ids = [index for index, kind in enumerate(types) if kind == "full_attention"]
        every = position_ids[1] if len(position_ids) > 1 else len(types)
        plain_values["global_attn_every_n_layers"] = every
        plain_values["layers_are_regular"] = position_ids == list(range(0, len(types), every))
    return plain_values


def _rope_type(rope: Values) -> Any:
    rope_types = [rope[name] for name in ("rope_type", "type") if name in rope]
    return next((rope_type for rope_type in rope_types if rope_type != "default"), "default")


def _check(architecture: ModernBertArchitecture, source: str) -> None:
    most = _MOST_ROTARY_VALUES // architecture.head_size
    if architecture.max_position_embeddings > most:
        wanted = f"at most {most} with a head size of {architecture.head_size}"
        name = "max_position_embeddings"
        raise unsupported(source, name, wanted, architecture.max_position_embeddings)


_CONFIG = ConfigFormat(
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
        "norm_bias": NO,
        "attention_bias": NO,
        "mlp_bias": NO,
        "classifier_bias": NO,
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
    constants={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
    },
    extra=_extra,
    plain=_plain,
    check=_check,
)

_HEAD = Head("classifier", dropout=0.0, keeps_head=True, pooling_field="classifier_pooling")

FAMILY = Family(
    name="modernbert",
    title="ModernBERT",
    menu_position=3,
    architecture=ModernBertArchitecture,
    # Base and large are published; others scale BERT's miniatures.
    sizes={
        "tiny": like_bert(2, 128, 1.5),
        "mini": like_bert(4, 256, 1.5),
        "small": like_bert(4, 512, 1.5),
        "medium": like_bert(8, 512, 1.5),
        "base": like_bert(22, 768, 1.5),
        "large": Dimensions(28, 1024, 2624, 16),
    },
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=_CONFIG,
    objectives=("mlm",),
    required_tokens=("mask", "pad"),
    heads={"sequence": _HEAD, "token": _HEAD},
    body_prefix="model.",
    tied_heads=("decoder.weight",),
    # https://arxiv.org/abs/2412.13663, section 2.1.3.
    tokenizer_presets={"flax": {"vocab_size": 50_368}},
    train_presets={
        "fast": {"mlm_probability": 0.4},
        "classic": NO_DROPOUT,
        # Scaled down: batches of 768 on eight devices, 1,000 warm-up steps instead of 3 billion
        # tokens; AdamW for StableAdamW, no dropout after attention.
        "flax": {
            "per_replica_batch_size": 96,
            "num_train_epochs": 1.0,
            "learning_rate": 8e-4,
            "lr_scheduler_type": "constant",
            "weight_decay": 1e-5,
            "adam_epsilon": 1e-6,
            "mlm_probability": 0.3,
            **NO_DROPOUT,
        },
    },
    write_ups={
        "flax": WriteUp(
            # With https://arxiv.org/abs/2412.13663.
            "https://github.com/AnswerDotAI/ModernBERT/blob/main/yamls/modernbert/"
            "modernbert-base-pretrain.yaml",
            "ModernBERT-base, rows of 1,024, vocabulary 50,368, on 1.7 trillion tokens",
            "batches from 768 to 4,608 rows, StableAdamW, learning rate 8e-4 without decay, betas "
            "0.9 and 0.98, epsilon 1e-6, weight decay 1e-5, 30 % masked, no dropout",
            "GLUE 88.4",
        ),
    },
)
