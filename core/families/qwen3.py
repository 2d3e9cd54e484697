"""Qwen3: a Llama with normalised queries and keys, and heads of any size.

Source: https://arxiv.org/abs/2505.09388, section 2. Computes as `Qwen3ForCausalLM`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from core.architecture.config_format import NO, ConfigFormat, Field, Values, pad_with_end, part
from core.architecture.family import Dimensions
from core.families.llama import FAMILY as LLAMA
from core.families.llama import (
    FIELDS,
    LlamaArchitecture,
    further_values,
    map_weights,
    model_options,
    read_further,
)


@dataclass(frozen=True)
class Qwen3Architecture(LlamaArchitecture):
    """Dimensions of a Qwen3."""

    has_own_head_size: ClassVar[bool] = True

    model_type: str = "qwen3"
    layer_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0


def _plain(values: Values, source: str) -> Values:
    plain_values = pad_with_end(values, 0)
    kinds = part(values, "layer_types", list, source)
    plain_values["attention_is_full"] = all(kind == "full_attention" for kind in kinds)
    return plain_values


def _size(layers: int, width: int, heads: int, head_dim: int = 0) -> Dimensions:
    further = {"num_key_value_heads": heads // 2, "head_dim": head_dim}
    return Dimensions(layers, width, 3 * width, heads, further)


FAMILY = replace(
    LLAMA,
    name="qwen3",
    title="Qwen3",
    menu_position=5,
    architecture=Qwen3Architecture,
    # The last one: https://huggingface.co/Qwen/Qwen3-0.6B-Base; others in proportion.
    sizes={
        "tiny": _size(2, 128, 2),
        "mini": _size(4, 256, 4),
        "small": _size(4, 512, 8),
        "base": _size(12, 768, 12),
        "0.6b": _size(28, 1024, 16, 128),
    },
    gguf_architecture="qwen3",
    tokenizer_presets={
        "classic": {"algorithm": "byte_level_bpe", "pre_tokenization": "qwen2"},
    },
    write_ups={"olmo-ladder": LLAMA.write_ups["olmo-ladder"]},
    options=partial(model_options, query_key_norm=True),
    weight_mapping=partial(map_weights, query_key_norm=True),
    config_format=ConfigFormat(
        class_name="Qwen3ForCausalLM",
        fields={
            **FIELDS,
            "vocab_size": Field(151_936),
            "intermediate_size": Field(22_016),
            "max_position_embeddings": Field(32_768),
        },
        required={
            "attention_bias": NO,
            "use_sliding_window": NO,
            "attention_is_full": ((True,), True),
        },
        activation=("hidden_act", ("silu",), "silu"),
        constants={"attention_bias": False, "use_sliding_window": False},
        extra=further_values,
        read=partial(read_further, head_dim=128),
        plain=_plain,
    ),
)
