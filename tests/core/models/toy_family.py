"""A family declared in one file: a small encoder with local attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.architecture.architecture import Architecture
from core.architecture.config_format import ConfigFormat, Field
from core.architecture.family import Family, WriteUp, like_bert
from core.architecture.options import LayerAttention, ModelOptions, block_options, embedding_options
from core.architecture.weight_mapping import WeightMapping, dense, norm


@dataclass(frozen=True)
class ToyArchitecture(Architecture):
    """Dimensions of a toy.

    Attributes:
        reach: Tokens that layers attend to on either side.
    """

    model_type: str = "toy"
    type_vocab_size: int = 0
    reach: int = 4


def _model_options(found: ToyArchitecture) -> ModelOptions:
    return ModelOptions(
        block_options(found),
        embedding_options(found, positions=found.max_position_embeddings, norm="layer"),
        layers=(LayerAttention(reach=found.reach),) * found.num_hidden_layers,
    )


def _map_weights(found: ToyArchitecture) -> Iterator[WeightMapping]:
    width, inner = found.hidden_size, found.intermediate_size
    for name, rows in (("words", found.vocab_size), ("positions", found.max_position_embeddings)):
        yield WeightMapping(f"toy/embeddings/{name}/table", (rows, width), (f"toy.{name}.weight",))
    yield from norm("toy/embeddings/norm", "toy.norm", width)
    for index in range(found.num_hidden_layers):
        ours, theirs = f"toy/layer_{index}", f"toy.layers.{index}"
        parts = (f"{theirs}.query", f"{theirs}.key", f"{theirs}.value")
        yield from dense(f"{ours}/attention/qkv", parts, width, 3 * width)
        yield from dense(f"{ours}/attention/output", (f"{theirs}.output",), width, width)
        yield from norm(f"{ours}/attention_norm", f"{theirs}.attention_norm", width)
        yield from dense(f"{ours}/feed_forward/up", (f"{theirs}.up",), width, inner)
        yield from dense(f"{ours}/feed_forward/down", (f"{theirs}.down",), inner, width)
        yield from norm(f"{ours}/output_norm", f"{theirs}.output_norm", width)
    yield from dense("toy/lm_head/dense", ("lm_head.dense",), width, width)
    yield from norm("toy/lm_head/norm", "lm_head.norm", width)
    yield WeightMapping("toy/lm_head/bias", (found.vocab_size,), ("lm_head.bias",))


FAMILY = Family(
    name="toy",
    title="Toy",
    architecture=ToyArchitecture,
    sizes={"tiny": like_bert(1, 64), "mini": like_bert(2, 64)},
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=ConfigFormat(
        class_name="ToyForMaskedLM",
        fields={
            "vocab_size": Field(100),
            "hidden_size": Field(64),
            "num_hidden_layers": Field(2),
            "num_attention_heads": Field(1),
            "intermediate_size": Field(256),
            "max_position_embeddings": Field(64),
            "pad_token_id": Field(0),
            "hidden_dropout_prob": Field(0.1),
            "attention_probs_dropout_prob": Field(0.1),
            "layer_norm_eps": Field(1e-5),
            "reach": Field(4, "attention_reach"),
        },
        required={"tie_word_embeddings": ((True, None), True)},
    ),
    objectives=("mlm",),
    required_tokens=("mask", "pad"),
    learning_rate_factor=0.5,
    tokenizer_presets={"classic": {"vocab_size": 500}},
    train_presets={"fast": {"mlm_probability": 0.25}},
    write_ups={"classic": WriteUp("toy.txt", "a toy", "toy.py", "none")},
)
