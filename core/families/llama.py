"""Llama: a pre-norm decoder with rotary positions, gated feed-forward layers and shared key heads.

Source: https://arxiv.org/abs/2302.13971; https://arxiv.org/abs/2307.09288, section 2.2. Computes as
    `LlamaForCausalLM`. Dropout on hidden states is this project's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from core.architecture.architecture import Architecture
from core.architecture.config_format import (
    NO,
    ConfigFormat,
    Field,
    Values,
    pad_with_end,
    unsupported,
)
from core.architecture.family import Dimensions, Family, Size, WriteUp
from core.architecture.heads import Head, Kind
from core.architecture.options import (
    InitializerScales,
    ModelOptions,
    RotaryPositions,
    RotaryScaling,
    block_options,
    embedding_options,
)
from core.architecture.rotary_scaling import read_rotary, rotary_values
from core.architecture.weight_mapping import WeightMapping, kernel, scale


@dataclass(frozen=True)
class LlamaArchitecture(Architecture):
    """Dimensions of a Llama.

    Attributes:
        num_key_value_heads: 0: as many as heads of queries.
        head_dim: 0: the hidden size divided by the heads.
    """

    kind: ClassVar[str] = "decoder"
    head_size_multiple: ClassVar[int] = 2

    model_type: str = "llama"
    type_vocab_size: int = 0
    hidden_act: str = "silu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling | None = None
    tie_word_embeddings: bool = True

    @property
    def head_size(self) -> int:
        return self.head_dim or super().head_size

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    def adapted(self) -> Self:
        heads = self.num_attention_heads
        shared = next(count for count in range(self.kv_heads, 0, -1) if heads % count == 0)
        return replace(self, num_key_value_heads=0 if shared == heads else shared)


def model_options(architecture: LlamaArchitecture, *, query_key_norm: bool = False) -> ModelOptions:
    added = (2 * architecture.num_hidden_layers) ** -0.5
    blocks = block_options(
        architecture,
        kv_heads=architecture.kv_heads,
        norm="rms",
        norm_first=True,
        query_key_norm=query_key_norm,
        causal=True,
        use_bias=False,
        gated=True,
        scales=InitializerScales(mixed=added, down=added),
    )
    return ModelOptions(
        blocks,
        embedding_options(architecture, zero_row=None),
        rotary=RotaryPositions(architecture.rope_theta, architecture.rope_scaling),
        head_scale=None if architecture.tie_word_embeddings else 1.0,
    )


def map_weights(
    architecture: LlamaArchitecture, *, query_key_norm: bool = False
) -> Iterator[WeightMapping]:
    name, width = architecture.model_type, architecture.hidden_size
    size, units = architecture.head_size, architecture.intermediate_size
    inner, shared = architecture.num_attention_heads * size, 2 * architecture.kv_heads * size
    table, head = (architecture.vocab_size, width), "lm_head.weight"
    yield WeightMapping(
        f"{name}/decoder/embeddings/words/table",
        table,
        ("model.embed_tokens.weight",),
        alias=head if architecture.tie_word_embeddings else "",
    )
    for index in range(architecture.num_hidden_layers):
        ours, theirs = f"{name}/decoder/layer_{index}", f"model.layers.{index}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        yield scale(f"{ours}/attention_norm", f"{theirs}.input_layernorm", width)
        yield kernel(f"{ours}/attention/query", (f"{attention}.q_proj",), width, inner)
        pair = (f"{attention}.k_proj", f"{attention}.v_proj")
        yield kernel(f"{ours}/attention/kv", pair, width, shared)
        if query_key_norm:
            yield scale(f"{ours}/attention/query_norm", f"{attention}.q_norm", size)
            yield scale(f"{ours}/attention/key_norm", f"{attention}.k_norm", size)
        yield kernel(f"{ours}/attention/output", (f"{attention}.o_proj",), inner, width)
        yield scale(f"{ours}/output_norm", f"{theirs}.post_attention_layernorm", width)
        pair = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
        yield kernel(f"{ours}/feed_forward/gated_up", pair, width, 2 * units)
        yield kernel(f"{ours}/feed_forward/down", (f"{mlp}.down_proj",), units, width)
    yield scale(f"{name}/decoder/final_norm", "model.norm", width)
    if not architecture.tie_word_embeddings:
        yield WeightMapping(f"{name}/lm_head/table", table, (head,))


def further_values(architecture: LlamaArchitecture) -> Values:
    return {
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_size,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        **rotary_values(architecture.rope_theta, architecture.rope_scaling),
    }


def read_further(
    values: Values, source: str, *, head_dim: int | None = None, theta: float = 10_000.0
) -> Values:
    """Reads shared heads, head size, rotary positions and whether the head is tied.

    Args:
        head_dim: Default; None: the hidden size divided by the heads.
        theta: Default.
    """
    heads, width = values.get("num_attention_heads", 32), values.get("hidden_size", 4096)
    shared = values.get("num_key_value_heads")
    if shared is not None and (type(shared) is not int or shared < 1 or heads % shared):
        wanted = f"a number that divides ⟬num_attention_heads⟭ {heads}"
        raise unsupported(source, "num_key_value_heads", wanted, shared)
    size = values.get("head_dim", head_dim)
    if size is not None and (type(size) is not int or not 2 <= size <= 1 << 16 or size % 2):
        raise unsupported(source, "head_dim", "an even number of at least 2", size)
    tied = values.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise unsupported(source, "tie_word_embeddings", "true or false", tied)
    theta, scaling = read_rotary(values, theta, source)
    return {
        "num_key_value_heads": 0 if shared in (None, heads) else shared,
        "head_dim": 0 if size is None or size * heads == width else size,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": tied,
    }


FIELDS = {
    "vocab_size": Field(32_000),
    "hidden_size": Field(4096),
    "num_hidden_layers": Field(32),
    "num_attention_heads": Field(32),
    "intermediate_size": Field(11_008),
    "max_position_embeddings": Field(2048),
    "pad_token_id": Field(0),
    "hidden_dropout_prob": Field(0.0),
    "attention_probs_dropout_prob": Field(0.0, "attention_dropout"),
    "layer_norm_eps": Field(1e-6, "rms_norm_eps"),
    "initializer_range": Field(0.02),
}
HEADS: dict[Kind, Head] = {
    "sequence": Head("score", pooled="last", has_bias=False, dropout=0.0),
    "token": Head("score", dropout=0.1),
}
# Heads of 64, and feed-forward sizes as multiples of 64 near those of SmolLM2.
SIZES: dict[Size, Dimensions] = {
    "tiny": Dimensions(2, 128, 384, 2, {"num_key_value_heads": 1}),
    "mini": Dimensions(4, 256, 704, 4, {"num_key_value_heads": 2}),
    "small": Dimensions(4, 512, 1408, 8, {"num_key_value_heads": 4}),
    "base": Dimensions(12, 768, 2048, 12, {"num_key_value_heads": 4}),
}


def _smollm(layers: int, width: int, units: int, heads: int, shared: int) -> Dimensions:
    """Returns a size of SmolLM2, whose weights start at a deviation of 1/√H."""
    further: dict[str, Any] = {"num_key_value_heads": shared, "initializer_range": width**-0.5}
    return Dimensions(layers, width, units, heads, further)


FAMILY = Family(
    name="llama",
    title="Llama",
    menu_position=4,
    architecture=LlamaArchitecture,
    # SmolLM2: https://huggingface.co/HuggingFaceTB/SmolLM2-135M; 1.1b:
    # https://github.com/jzhang38/TinyLlama
    sizes={
        **SIZES,
        "135m": _smollm(30, 576, 1536, 9, 3),
        "360m": _smollm(32, 960, 2560, 15, 5),
        "1.1b": Dimensions(
            22, 2048, 5632, 32, {"num_key_value_heads": 4, "tie_word_embeddings": False}
        ),
        "1.7b": _smollm(24, 2048, 8192, 32, 0),
    },
    options=model_options,
    weight_mapping=map_weights,
    config_format=ConfigFormat(
        class_name="LlamaForCausalLM",
        fields=FIELDS,
        required={"attention_bias": NO, "mlp_bias": NO},
        activation=("hidden_act", ("silu",), "silu"),
        bos=1,
        eos=2,
        constants={"attention_bias": False, "mlp_bias": False},
        extra=further_values,
        read=read_further,
        plain=lambda values, source: pad_with_end(values, 2),
    ),
    objectives=("clm",),
    required_tokens=("eos",),
    heads=HEADS,
    padding_use="",  # Padding is never attended to.
    prompt_help="The model continues the text.",
    learning_rate_factor=2.0,
    body_prefix="model.",
    tied_heads=("lm_head.weight",),
    gguf_architecture="llama",
    tokenizer_presets={
        "classic": {"algorithm": "byte_level_bpe", "pre_tokenization": "smollm"},
    },
    write_ups={
        "smollm2": WriteUp(
            "https://github.com/huggingface/smollm/tree/main/text/pretraining/smollm2",
            "size 135m, sequences of 2,048, vocabulary 49,152, on 2 trillion tokens",
            "config_smollm2_135M.yaml: 512 sequences a step in 2 million steps, AdamW, learning "
            "rate 3e-3 after 2,000 steps of warm-up, falling to 0 in the last 20 %, betas 0.9 and "
            "0.95, weight decay 0.01",
            "HellaSwag 42.1, PIQA 68.4",
        ),
        "tinyllama": WriteUp(
            "https://github.com/jzhang38/TinyLlama",
            "size 1.1b, sequences of 2,048, vocabulary 32,000, on 3 trillion tokens",
            "pretrain/tinyllama.py: 2 million tokens a step, AdamW, learning rate 4e-4 after 2,000 "
            "steps of warm-up, along a cosine, betas 0.9 and 0.95, weight decay 0.1",
            "HellaSwag 43.5 after 103 billion tokens",
        ),
        "olmo-ladder": WriteUp(
            "https://github.com/allenai/OLMo-core/tree/main/src/olmo_core/model_ladder",
            "sizes of 190 million to 1.3 billion parameters, on 20 tokens for each or more",
            "model_ladder/wsds_chinchilla_run_configurator.py: 327,680 tokens a step and a "
            "learning rate of 2.35e-3 at 108 million parameters, by powers of 2/3 and -1/3, a "
            "token of warm-up for each parameter, falling in the last 10 %, weight decay 0.1",
            "Runs with 1 % of the compute told the accuracy of OLMo 2 7B and 13B in four tasks "
            "to 2 points (https://arxiv.org/abs/2412.04403)",
        ),
    },
)
