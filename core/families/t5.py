"""T5 v1.1: an encoder-decoder with relative position biases and gated feed-forward layers.

Source: https://arxiv.org/abs/1910.10683; T5's released_checkpoints.md; initialisation: Mesh
    TensorFlow. Query kernels start smaller by √D, as logits aren't scaled. With transformers' scale
    of 1 for the head, the initial loss is far above a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from core.architecture.architecture import EncoderDecoderArchitecture
from core.architecture.config_format import ConfigFormat, Field, Values, first_id
from core.architecture.family import (
    FLAX_EXAMPLES,
    HEAD_SIZE,
    NO_DROPOUT,
    ON_OSCAR,
    Dimensions,
    Family,
    WriteUp,
    like_bert,
)
from core.architecture.heads import Head
from core.architecture.options import (
    InitializerScales,
    ModelOptions,
    RelativePositions,
    block_options,
    embedding_options,
)
from core.architecture.weight_mapping import WeightMapping, kernel, scale


@dataclass(frozen=True)
class T5Architecture(EncoderDecoderArchitecture):
    """Dimensions of a T5 v1.1, with relative positions only.

    `max_position_embeddings` limits nothing; `initializer_range` is a factor.
    """

    has_own_head_size: ClassVar[bool] = True
    limits_length: ClassVar[bool] = False

    model_type: str = "t5"
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-6
    initializer_range: float = 1.0
    d_kv: int = 64
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128

    @property
    def max_seq_length(self) -> int:
        return 1 << 30

    @property
    def head_size(self) -> int:
        return self.d_kv

    def adapted(self) -> Self:
        if self.hidden_size >= HEAD_SIZE:
            return self
        return replace(self, d_kv=max(1, self.hidden_size // self.num_attention_heads))


def _model_options(architecture: T5Architecture) -> ModelOptions:
    wide = architecture.hidden_size**-0.5
    scales = InitializerScales(
        query=(architecture.hidden_size * architecture.d_kv) ** -0.5,
        key=wide,
        value=wide,
        mixed=(architecture.num_attention_heads * architecture.d_kv) ** -0.5,
        up=wide,
        down=architecture.intermediate_size**-0.5,
    )
    blocks = block_options(
        architecture,
        inner_dropout=architecture.hidden_dropout_prob,
        norm="rms",
        norm_first=True,
        use_bias=False,
        gated=True,
        scaled=False,
        scales=scales,
    )
    buckets = architecture.relative_attention_num_buckets
    return ModelOptions(
        blocks,
        embedding_options(architecture, zero_row=None),
        relative=RelativePositions(buckets, architecture.relative_attention_max_distance, wide),
        head_scale=wide,
        final_dropout=float(architecture.hidden_dropout_prob),
    )


def _map_weights(architecture: T5Architecture) -> Iterator[WeightMapping]:
    table = (architecture.vocab_size, architecture.hidden_size)
    yield WeightMapping(
        "t5/words/table", table, ("shared.weight",), alias="encoder.embed_tokens.weight"
    )
    for half, layers in (
        ("encoder", architecture.num_hidden_layers),
        ("decoder", architecture.num_decoder_layers),
    ):
        first = f"{half}.block.0.layer.0.SelfAttention"
        yield WeightMapping(
            f"t5/{half}_distances/table",
            (architecture.relative_attention_num_buckets, architecture.num_attention_heads),
            (f"{first}.relative_attention_bias.weight",),
        )
        for index in range(layers):
            yield from _map_layer(architecture, half, index)
        yield scale(f"t5/{half}/final_norm", f"{half}.final_layer_norm", architecture.hidden_size)
    yield WeightMapping("t5/lm_head/table", table, ("lm_head.weight",), alias="shared.weight")


def _map_layer(architecture: T5Architecture, half: str, index: int) -> Iterator[WeightMapping]:
    width, units = architecture.hidden_size, architecture.intermediate_size
    inner = architecture.num_attention_heads * architecture.d_kv
    ours, theirs = f"t5/{half}/layer_{index}", f"{half}.block.{index}.layer"
    own = f"{theirs}.0.SelfAttention"
    yield kernel(f"{ours}/attention/qkv", (f"{own}.q", f"{own}.k", f"{own}.v"), width, 3 * inner)
    yield kernel(f"{ours}/attention/output", (f"{own}.o",), inner, width)
    yield scale(f"{ours}/attention_norm", f"{theirs}.0.layer_norm", width)
    if half == "decoder":
        cross = f"{theirs}.1.EncDecAttention"
        yield kernel(f"{ours}/cross_attention/query", (f"{cross}.q",), width, inner)
        yield kernel(f"{ours}/cross_attention/kv", (f"{cross}.k", f"{cross}.v"), width, 2 * inner)
        yield kernel(f"{ours}/cross_attention/output", (f"{cross}.o",), inner, width)
        yield scale(f"{ours}/cross_attention_norm", f"{theirs}.1.layer_norm", width)
    last = f"{theirs}.{2 if half == 'decoder' else 1}"
    ups = (f"{last}.DenseReluDense.wi_0", f"{last}.DenseReluDense.wi_1")
    yield kernel(f"{ours}/feed_forward/gated_up", ups, width, 2 * units)
    yield kernel(f"{ours}/feed_forward/down", (f"{last}.DenseReluDense.wo",), units, width)
    yield scale(f"{ours}/output_norm", f"{last}.layer_norm", width)


def _plain(values: Values, source: str) -> Values:
    """Accepts v1.1 from transformers 5: tied, with a false `scale_decoder_outputs`."""
    plain_values = dict(values)
    if "scale_decoder_outputs" in values:
        plain_values["tie_word_embeddings"] = values["scale_decoder_outputs"]
    layers = values.get("num_layers", 6)
    plain_values["num_decoder_layers"] = values.get("num_decoder_layers") or layers
    if plain_values.get("decoder_start_token_id") is None:
        plain_values["decoder_start_token_id"] = first_id(values.get("pad_token_id")) or 0
    return plain_values


_CONFIG = ConfigFormat(
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
        # Same field; the last one is written.
        "attention_probs_dropout_prob": Field(0.1, "dropout_rate"),
        "hidden_dropout_prob": Field(0.1, "dropout_rate"),
        "layer_norm_eps": Field(1e-6, "layer_norm_epsilon"),
        "initializer_range": Field(1.0, "initializer_factor"),
    },
    required={
        "feed_forward_proj": (("gated-gelu",), "relu"),
        "tie_word_embeddings": ((False,), True),
    },
    activation=None,
    eos=1,
    constants={
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
    },
    aliases={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_kv",
    },
    plain=_plain,
)

# Off in pre-training: https://huggingface.co/google/t5-v1_1-base; 0.1 is for fine-tuning.
_DROPOUT = NO_DROPOUT

FAMILY = Family(
    name="t5",
    title="T5",
    menu_position=7,
    architecture=T5Architecture,
    # Small, base and large are published; others scale BERT's miniatures.
    sizes={
        "tiny": like_bert(2, 128, 2),
        "mini": like_bert(4, 256, 2),
        "small": Dimensions(8, 512, 1024, 6),
        "base": Dimensions(12, 768, 2048, 12),
        "large": Dimensions(24, 1024, 2816, 16),
    },
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=_CONFIG,
    objectives=("span_corruption",),
    required_tokens=("sentinels", "pad", "eos"),
    heads={
        "sequence": Head(
            "classification_head.out_proj",
            "classification_head.dense",
            "eos",
            drops_input=True,
            dropout=0.0,
            prefix="transformer.",
            divides_range=True,
        ),
        "token": Head(
            "classifier",
            dropout=0.0,
            prefix="transformer.",
            encoder_only=True,
            divides_range=True,
        ),
    },
    padding_use="because T5's decoder starts with it",
    decoder_start="pad",
    prompt_help="Put <mask> or <extra_id_0>, <extra_id_1>, … where words are missing.",
    learning_rate_factor=0.5,
    tokenizer_presets={
        "classic": {"algorithm": "sentencepiece_unigram"},
        # Includes sentinels. t5_tokenizer_model.py always lower-cases.
        "flax": {"algorithm": "sentencepiece_unigram", "vocab_size": 32_100, "lowercase": True},
    },
    train_presets={
        "classic": _DROPOUT,
        "flax": {
            "per_replica_batch_size": 32,
            "num_train_epochs": 3.0,
            "optimizer": "adafactor",
            "learning_rate": 5e-3,
            # The script applies --weight_decay=0.001 only to AdamW.
            "weight_decay": 0.0,
            "adam_beta2": 0.999,
            "warmup_steps": 2000,
            **_DROPOUT,
        },
    },
    write_ups={
        "flax": WriteUp(
            f"{FLAX_EXAMPLES}#t5-like-span-masked-language-modeling",
            f"google/t5-v1_1-base, 512 tokens for the encoder, vocabulary 32,000, {ON_OSCAR}",
            "run_t5_mlm_flax.py --max_seq_length=512 --per_device_train_batch_size=32 --adafactor "
            "--learning_rate=0.005 --weight_decay=0.001 --warmup_steps=2000",
            "loss 2.36, accuracy 57.0 after 3 epochs, in 4.5 hours",
        ),
    },
)
