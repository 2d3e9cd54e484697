"""GPT-2: a pre-norm decoder with a tied head.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3.
    Computes as `GPT2LMHeadModel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from core.architecture.architecture import Architecture
from core.architecture.config_format import NO, ConfigFormat, Field, Values, pad_with_end
from core.architecture.family import (
    FLAX_EXAMPLES,
    NO_DROPOUT,
    ON_OSCAR,
    Family,
    WriteUp,
    like_bert,
)
from core.architecture.heads import Head
from core.architecture.options import (
    InitializerScales,
    ModelOptions,
    block_options,
    embedding_options,
)
from core.architecture.weight_mapping import WeightMapping, conv, norm

_END = 50_256


@dataclass(frozen=True)
class Gpt2Architecture(Architecture):
    """Dimensions of a GPT-2."""

    kind: ClassVar[str] = "decoder"

    model_type: str = "gpt2"
    type_vocab_size: int = 0
    hidden_act: str = "gelu_new"


def _model_options(architecture: Gpt2Architecture) -> ModelOptions:
    added = (2 * architecture.num_hidden_layers) ** -0.5
    scales = InitializerScales(mixed=added, down=added)
    return ModelOptions(
        block_options(architecture, norm_first=True, causal=True, scales=scales),
        embedding_options(
            architecture, zero_row=None, positions=architecture.max_position_embeddings
        ),
    )


def _map_weights(architecture: Gpt2Architecture) -> Iterator[WeightMapping]:
    width, inner = architecture.hidden_size, architecture.intermediate_size
    yield WeightMapping(
        "gpt2/decoder/embeddings/words/table",
        (architecture.vocab_size, width),
        ("transformer.wte.weight",),
        alias="lm_head.weight",
    )
    yield WeightMapping(
        "gpt2/decoder/embeddings/positions/table",
        (architecture.max_position_embeddings, width),
        ("transformer.wpe.weight",),
    )
    for index in range(architecture.num_hidden_layers):
        ours, theirs = f"gpt2/decoder/layer_{index}", f"transformer.h.{index}"
        yield from norm(f"{ours}/attention_norm", f"{theirs}.ln_1", width)
        yield from conv(f"{ours}/attention/qkv", f"{theirs}.attn.c_attn", width, 3 * width)
        yield from conv(f"{ours}/attention/output", f"{theirs}.attn.c_proj", width, width)
        yield from norm(f"{ours}/output_norm", f"{theirs}.ln_2", width)
        yield from conv(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", width, inner)
        yield from conv(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", inner, width)
    yield from norm("gpt2/decoder/final_norm", "transformer.ln_f", width)


def _plain(values: Values, source: str) -> Values:
    plain_values = pad_with_end(values, _END)
    if plain_values.get("n_inner") is None:
        width = values.get("n_embd", 768)
        plain_values["n_inner"] = 4 * width if isinstance(width, int) else None
    return plain_values


_CONFIG = ConfigFormat(
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
        "scale_attn_by_inverse_layer_idx": NO,
        "tie_word_embeddings": ((True, None), True),
    },
    activation=("activation_function", ("gelu_new", "gelu"), "gelu_new"),
    bos=_END,
    eos=_END,
    aliases={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    plain=_plain,
)

FAMILY = Family(
    name="gpt2",
    title="GPT-2",
    menu_position=6,
    architecture=Gpt2Architecture,
    # Base, medium (larger than base) and large are published; others scale BERT's miniatures.
    sizes={
        "tiny": like_bert(2, 128),
        "mini": like_bert(4, 256),
        "small": like_bert(4, 512),
        "base": like_bert(12, 768),
        "medium": like_bert(24, 1024),
        "large": like_bert(36, 1280),
    },
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=_CONFIG,
    objectives=("clm",),
    required_tokens=("eos",),
    heads={
        "sequence": Head(
            "score", pooled="last", has_bias=False, dropout=0.0, offset="transformer.ln_f.bias"
        ),
        "token": Head("classifier", dropout=0.1),
    },
    padding_use="",  # Padding is never attended to.
    prompt_help="The model continues the text.",
    learning_rate_factor=2.0,
    body_prefix="transformer.",
    tied_heads=("lm_head.weight",),
    gguf_architecture="gpt2",
    tokenizer_presets={
        "classic": {"algorithm": "byte_level_bpe"},
        "flax": {"vocab_size": 50_257},
    },
    train_presets={
        "flax": {
            "per_replica_batch_size": 64,
            "num_train_epochs": 20.0,
            "learning_rate": 5e-3,
            **NO_DROPOUT,
        },
    },
    write_ups={
        "flax": WriteUp(
            f"{FLAX_EXAMPLES}#causal-language-modeling",
            f"gpt2 without dropout, blocks of 512, vocabulary 50,257, {ON_OSCAR}",
            "run_clm_flax.py --block_size=512 --per_device_train_batch_size=64 "
            "--learning_rate=5e-3 --warmup_steps=1000 --adam_beta1=0.9 --adam_beta2=0.98 "
            "--weight_decay=0.01 --num_train_epochs=20",
            "loss 3.24, perplexity 25.72 after 20 epochs, in less than 21 hours",
        ),
    },
)
