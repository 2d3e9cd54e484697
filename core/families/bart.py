"""BART: a post-norm encoder-decoder with a tied head.

Source: https://arxiv.org/abs/1910.13461. Computes as `BartForConditionalGeneration` without
    `final_logits_bias`, which is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from core.architecture.architecture import EncoderDecoderArchitecture
from core.architecture.config_format import NO, ConfigFormat, Field, Values, first_id
from core.architecture.family import FLAX_EXAMPLES, ON_OSCAR, Family, WriteUp, like_bert
from core.architecture.heads import Head
from core.architecture.options import ModelOptions, block_options, embedding_options
from core.architecture.weight_mapping import WeightMapping, dense, norm


@dataclass(frozen=True)
class BartArchitecture(EncoderDecoderArchitecture):
    """Dimensions of a BART, with two more position embeddings than positions."""

    POSITION_OFFSET: ClassVar[int] = 2

    model_type: str = "bart"


def _model_options(architecture: BartArchitecture) -> ModelOptions:
    embeddings = embedding_options(
        architecture,
        positions=architecture.max_position_embeddings + architecture.POSITION_OFFSET,
        first_position=architecture.POSITION_OFFSET,
        norm="layer",
    )
    return ModelOptions(block_options(architecture), embeddings)


def _map_weights(architecture: BartArchitecture) -> Iterator[WeightMapping]:
    width = architecture.hidden_size
    yield WeightMapping(
        "bart/words/table",
        (architecture.vocab_size, width),
        ("model.shared.weight",),
        alias="model.encoder.embed_tokens.weight",
    )
    for half, layers in (
        ("encoder", architecture.num_hidden_layers),
        ("decoder", architecture.num_decoder_layers),
    ):
        yield WeightMapping(
            f"bart/{half}/embeddings/positions/table",
            (architecture.max_position_embeddings + architecture.POSITION_OFFSET, width),
            (f"model.{half}.embed_positions.weight",),
        )
        yield from norm(f"bart/{half}/embeddings/norm", f"model.{half}.layernorm_embedding", width)
        for index in range(layers):
            yield from _map_layer(architecture, half, index)


def _map_layer(architecture: BartArchitecture, half: str, index: int) -> Iterator[WeightMapping]:
    width, inner = architecture.hidden_size, architecture.intermediate_size
    ours, theirs = f"bart/{half}/layer_{index}", f"model.{half}.layers.{index}"
    own, cross = f"{theirs}.self_attn", f"{theirs}.encoder_attn"
    parts = (f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
    yield from dense(f"{ours}/attention/qkv", parts, width, 3 * width)
    yield from dense(f"{ours}/attention/output", (f"{own}.out_proj",), width, width)
    yield from norm(f"{ours}/attention_norm", f"{own}_layer_norm", width)
    if half == "decoder":
        pair = (f"{cross}.k_proj", f"{cross}.v_proj")
        yield from dense(f"{ours}/cross_attention/query", (f"{cross}.q_proj",), width, width)
        yield from dense(f"{ours}/cross_attention/kv", pair, width, 2 * width)
        yield from dense(f"{ours}/cross_attention/output", (f"{cross}.out_proj",), width, width)
        yield from norm(f"{ours}/cross_attention_norm", f"{cross}_layer_norm", width)
    yield from dense(f"{ours}/feed_forward/up", (f"{theirs}.fc1",), width, inner)
    yield from dense(f"{ours}/feed_forward/down", (f"{theirs}.fc2",), inner, width)
    yield from norm(f"{ours}/output_norm", f"{theirs}.final_layer_norm", width)


def _extra(architecture: BartArchitecture) -> Values:
    # `generate` ends a too long sequence with it.
    return {"forced_eos_token_id": architecture.eos_token_id}


def _plain(values: Values, source: str) -> Values:
    plain_values = dict(values)
    if plain_values.get("decoder_start_token_id") is None:
        plain_values["decoder_start_token_id"] = first_id(values.get("eos_token_id", 2))
    return plain_values


_CONFIG = ConfigFormat(
    class_name="BartForConditionalGeneration",
    fields={
        "vocab_size": Field(50_265),
        "hidden_size": Field(1024, "d_model"),
        "num_hidden_layers": Field(12, "encoder_layers"),
        "num_decoder_layers": Field(12, "decoder_layers"),
        "num_attention_heads": Field(16, "encoder_attention_heads", ("decoder_attention_heads",)),
        "intermediate_size": Field(4096, "encoder_ffn_dim", ("decoder_ffn_dim",)),
        "max_position_embeddings": Field(1024),
        "pad_token_id": Field(1),
        "decoder_start_token_id": Field(2),
        "hidden_dropout_prob": Field(0.1, "dropout"),
        "attention_probs_dropout_prob": Field(0.0, "attention_dropout"),
        "initializer_range": Field(0.02, "init_std"),
    },
    required={
        "scale_embedding": NO,
        "tie_word_embeddings": ((True, None), True),
    },
    activation=("activation_function", ("gelu",), "gelu"),
    bos=0,
    eos=2,
    constants={"activation_dropout": 0.0, "scale_embedding": False, "is_encoder_decoder": True},
    extra=_extra,
    aliases={
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    },
    plain=_plain,
)

FAMILY = Family(
    name="bart",
    title="BART",
    menu_position=8,
    architecture=BartArchitecture,
    # Base and large are published; others scale BERT's miniatures.
    sizes={
        "tiny": like_bert(1, 128),
        "mini": like_bert(2, 256),
        "small": like_bert(2, 512),
        "medium": like_bert(4, 512),
        "base": like_bert(6, 768),
        "large": like_bert(12, 1024),
    },
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=_CONFIG,
    objectives=("denoising",),
    required_tokens=("mask", "pad", "eos"),
    heads={
        "sequence": Head(
            "classification_head.out_proj",
            "classification_head.dense",
            "eos",
            drops_input=True,
            dropout=0.0,
        )
    },
    decoder_start="eos",
    decoder_reads_masks=True,  # Shifted by one token.
    prompt_help="Put <mask> where words are missing; the model rewrites the whole text.",
    learning_rate_factor=2.0,
    body_prefix="model.",
    tied_heads=("lm_head.weight",),
    zero_tensors=("final_logits_bias",),
    tokenizer_presets={"classic": {"algorithm": "byte_level_bpe"}},
    train_presets={
        "flax": {
            "per_replica_batch_size": 32,
            "num_train_epochs": 3.0,
            "learning_rate": 1e-4,
            "weight_decay": 0.0,
            "adam_beta2": 0.999,
            "warmup_steps": 2000,
        },
    },
    write_ups={
        "flax": WriteUp(
            f"{FLAX_EXAMPLES}#bart-denoising-language-modeling",
            f"facebook/bart-base, rows of 1,024, vocabulary 50,265, {ON_OSCAR}",
            "run_bart_dlm_flax.py --max_seq_length=1024 --per_device_train_batch_size=32 "
            "--learning_rate=1e-4 --warmup_steps=2000",
            "loss 1.36, accuracy 0.77 after 3 epochs, in less than 6 hours",
        ),
    },
)
