"""BERT: a post-norm encoder with position and segment embeddings.

Source: https://arxiv.org/abs/1810.04805. Computes as `BertForMaskedLM`, with the first segment
    only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.config_format import ConfigFormat, Field
from core.architecture.family import FLAX_EXAMPLES, ON_OSCAR, SIZES, Family, WriteUp, like_bert
from core.architecture.heads import Head
from core.architecture.options import ModelOptions, block_options, embedding_options
from core.architecture.weight_mapping import WeightMapping, dense, norm


@dataclass(frozen=True)
class BertArchitecture(Architecture):
    """Dimensions of a BERT."""

    model_type: str = "bert"
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


def model_options(architecture: Architecture, **embeddings: Any) -> ModelOptions:
    """Returns the options of BERT and its like."""
    options = embedding_options(
        architecture,
        positions=architecture.max_position_embeddings,
        first_position=architecture.first_position,
        segments=architecture.type_vocab_size,
        norm="layer",
        **embeddings,
    )
    return ModelOptions(block_options(architecture), options)


def map_body(architecture: Architecture, decoder: str) -> Iterator[WeightMapping]:
    """Maps embeddings and layers."""
    name, width = architecture.model_type, architecture.hidden_size
    theirs = f"{name}.embeddings"
    yield WeightMapping(
        f"{name}/embeddings/words/table",
        (architecture.vocab_size, width),
        (f"{theirs}.word_embeddings.weight",),
        alias=decoder,
    )
    yield WeightMapping(
        f"{name}/embeddings/positions/table",
        (architecture.max_position_embeddings, width),
        (f"{theirs}.position_embeddings.weight",),
    )
    yield WeightMapping(
        f"{name}/embeddings/segments/table",
        (architecture.type_vocab_size, width),
        (f"{theirs}.token_type_embeddings.weight",),
    )
    yield from norm(f"{name}/embeddings/norm", f"{theirs}.LayerNorm", width)
    for index in range(architecture.num_hidden_layers):
        yield from _map_layer(architecture, index)


def _map_layer(architecture: Architecture, index: int) -> Iterator[WeightMapping]:
    name, width = architecture.model_type, architecture.hidden_size
    ours, theirs = f"{name}/layer_{index}", f"{name}.encoder.layer.{index}"
    inner, attention = architecture.intermediate_size, f"{theirs}.attention"
    parts = tuple(f"{attention}.self.{part}" for part in ("query", "key", "value"))
    yield from dense(f"{ours}/attention/qkv", parts, width, 3 * width)
    yield from dense(f"{ours}/attention/output", (f"{attention}.output.dense",), width, width)
    yield from norm(f"{ours}/attention_norm", f"{attention}.output.LayerNorm", width)
    yield from dense(f"{ours}/feed_forward/up", (f"{theirs}.intermediate.dense",), width, inner)
    yield from dense(f"{ours}/feed_forward/down", (f"{theirs}.output.dense",), inner, width)
    yield from norm(f"{ours}/output_norm", f"{theirs}.output.LayerNorm", width)


def map_head(
    architecture: Architecture, dense_name: str, norm_name: str, bias: WeightMapping
) -> Any:
    """Maps the head."""
    ours, width = f"{architecture.model_type}/lm_head", architecture.hidden_size
    yield from dense(f"{ours}/dense", (dense_name,), width, width)
    yield from norm(f"{ours}/norm", norm_name, width)
    yield bias


def _map_weights(architecture: Architecture) -> Iterator[WeightMapping]:
    theirs = "cls.predictions"
    yield from map_body(architecture, f"{theirs}.decoder.weight")
    bias = WeightMapping(
        "bert/lm_head/bias",
        (architecture.vocab_size,),
        (f"{theirs}.bias",),
        alias=f"{theirs}.decoder.bias",
    )
    transform = f"{theirs}.transform"
    yield from map_head(architecture, f"{transform}.dense", f"{transform}.LayerNorm", bias)


FIELDS = {
    "vocab_size": Field(30_522),
    "hidden_size": Field(768),
    "num_hidden_layers": Field(12),
    "num_attention_heads": Field(12),
    "intermediate_size": Field(3072),
    "max_position_embeddings": Field(512),
    "type_vocab_size": Field(2),
    "pad_token_id": Field(0),
    "hidden_dropout_prob": Field(0.1),
    "attention_probs_dropout_prob": Field(0.1),
    "layer_norm_eps": Field(1e-12),
    "initializer_range": Field(0.02),
}
ENCODER_ONLY: dict[str, tuple[tuple[Any, ...], Any]] = {
    "position_embedding_type": (("absolute", None), "absolute"),
    "is_decoder": ((False, None), False),
    "add_cross_attention": ((False, None), False),
    "tie_word_embeddings": ((True, None), True),
}
BERT_SIZES = {size: like_bert(*dimensions) for size, dimensions in SIZES.items()}
MASKED_WRITE_UP = WriteUp(
    f"{FLAX_EXAMPLES}#masked-language-modeling",
    f"roberta-base, rows of 128, vocabulary 50,265, {ON_OSCAR}",
    "run_mlm_flax.py --max_seq_length=128 --per_device_train_batch_size=128 --learning_rate=3e-4 "
    "--warmup_steps=1000 --adam_beta1=0.9 --adam_beta2=0.98 --weight_decay=0.01 "
    "--num_train_epochs=18",
    "loss 1.78, accuracy 0.64 after 18 epochs, in less than 18 hours",
)

FAMILY = Family(
    name="bert",
    title="BERT",
    menu_position=2,
    architecture=BertArchitecture,
    sizes=BERT_SIZES,
    options=model_options,
    weight_mapping=_map_weights,
    config_format=ConfigFormat(
        class_name="BertForMaskedLM",
        fields=FIELDS,
        required=ENCODER_ONLY,
        constants={"position_embedding_type": "absolute"},
    ),
    objectives=("mlm",),
    required_tokens=("mask", "pad"),
    heads={"sequence": Head("classifier", "bert.pooler.dense"), "token": Head("classifier")},
    learning_rate_factor=1.5,
    body_prefix="bert.",
    tied_heads=("cls.predictions.decoder.weight",),
    # The tokenizer of run_bert_flax.py.
    tokenizer_presets={
        "flax": {"algorithm": "wordpiece", "vocab_size": 30_522, "lowercase": True},
    },
    train_presets={"fast": {"mlm_probability": 0.4}},
    write_ups={"flax": MASKED_WRITE_UP},
)
