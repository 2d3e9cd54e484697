"""Weight mapping between our variables and Hugging Face's tensors, for each family.

It includes shapes, so parameters are counted without building a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from core.models.architecture import (
    Architecture,
    BartArchitecture,
    ModernBertArchitecture,
    T5Architecture,
)


@dataclass(frozen=True)
class WeightMapping:
    """Mapping of one variable to the tensors of a Hugging Face file.

    Attributes:
        path: Our variable's path.
        shape: Our variable's shape.
        names: Tensors concatenated along our last axis (query, key, value).
        transposed: Whether theirs are transposed, as kernels of `torch.nn.Linear` are.
        alias: Name of a copy that a file may hold instead.
    """

    path: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    transposed: bool = False
    alias: str = ""

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """Shape of each tensor."""
        part = (*self.shape[:-1], self.shape[-1] // len(self.names))
        return part[::-1] if self.transposed else part


def weight_mappings(architecture: Architecture) -> Iterator[WeightMapping]:
    """Yields the weight mapping of a model."""
    return _FAMILIES[architecture.model_type](architecture)


def _roberta(architecture: Architecture) -> Iterator[WeightMapping]:
    yield from _bert_body(architecture)
    width = architecture.hidden_size
    yield from _masked_head(architecture, "lm_head.dense", "lm_head.layer_norm", width)
    yield WeightMapping(
        "roberta/lm_head/bias",
        (architecture.vocab_size,),
        ("lm_head.bias",),
        alias="lm_head.decoder.bias",
    )


def _bert(architecture: Architecture) -> Iterator[WeightMapping]:
    yield from _bert_body(architecture)
    theirs, width = "cls.predictions", architecture.hidden_size
    transform = f"{theirs}.transform"
    yield from _masked_head(architecture, f"{transform}.dense", f"{transform}.LayerNorm", width)
    yield WeightMapping(
        "bert/lm_head/bias",
        (architecture.vocab_size,),
        (f"{theirs}.bias",),
        alias=f"{theirs}.decoder.bias",
    )


def _bert_body(architecture: Architecture) -> Iterator[WeightMapping]:
    name, width = architecture.model_type, architecture.hidden_size
    theirs = f"{name}.embeddings"
    decoder = {"roberta": "lm_head.decoder.weight", "bert": "cls.predictions.decoder.weight"}[name]
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
    yield from _norm(f"{name}/embeddings/norm", f"{theirs}.LayerNorm", width)
    for index in range(architecture.num_hidden_layers):
        yield from _bert_layer(architecture, index)


def _bert_layer(architecture: Architecture, index: int) -> Iterator[WeightMapping]:
    name, width = architecture.model_type, architecture.hidden_size
    ours, theirs = f"{name}/layer_{index}", f"{name}.encoder.layer.{index}"
    inner, attention = architecture.intermediate_size, f"{theirs}.attention"
    parts = tuple(f"{attention}.self.{part}" for part in ("query", "key", "value"))
    yield from _dense(f"{ours}/attention/qkv", parts, width, 3 * width)
    yield from _dense(f"{ours}/attention/output", (f"{attention}.output.dense",), width, width)
    yield from _norm(f"{ours}/attention_norm", f"{attention}.output.LayerNorm", width)
    yield from _dense(f"{ours}/feed_forward/up", (f"{theirs}.intermediate.dense",), width, inner)
    yield from _dense(f"{ours}/feed_forward/down", (f"{theirs}.output.dense",), inner, width)
    yield from _norm(f"{ours}/output_norm", f"{theirs}.output.LayerNorm", width)


def _masked_head(
    architecture: Architecture, dense: str, norm: str, width: int
) -> Iterator[WeightMapping]:
    ours = f"{architecture.model_type}/lm_head"
    yield from _dense(f"{ours}/dense", (dense,), width, width)
    yield from _norm(f"{ours}/norm", norm, width)


def _modernbert(architecture: Architecture) -> Iterator[WeightMapping]:
    modern = cast(ModernBertArchitecture, architecture)
    width, inner, vocabulary = modern.hidden_size, modern.intermediate_size, modern.vocab_size
    yield WeightMapping(
        "modernbert/embeddings/words/table",
        (vocabulary, width),
        ("model.embeddings.tok_embeddings.weight",),
        alias="decoder.weight",
    )
    yield _scale("modernbert/embeddings/norm", "model.embeddings.norm", width)
    for index in range(modern.num_hidden_layers):
        ours, theirs = f"modernbert/layer_{index}", f"model.layers.{index}"
        if index:  # The first layer uses the embeddings' norm.
            yield _scale(f"{ours}/attention_norm", f"{theirs}.attn_norm", width)
        yield _kernel(f"{ours}/attention/qkv", (f"{theirs}.attn.Wqkv",), width, 3 * width)
        yield _kernel(f"{ours}/attention/output", (f"{theirs}.attn.Wo",), width, width)
        yield _kernel(f"{ours}/feed_forward/gated_up", (f"{theirs}.mlp.Wi",), width, 2 * inner)
        yield _kernel(f"{ours}/feed_forward/down", (f"{theirs}.mlp.Wo",), inner, width)
        yield _scale(f"{ours}/output_norm", f"{theirs}.mlp_norm", width)
    yield _scale("modernbert/final_norm", "model.final_norm", width)
    yield _kernel("modernbert/lm_head/dense", ("head.dense",), width, width)
    yield _scale("modernbert/lm_head/norm", "head.norm", width)
    yield WeightMapping("modernbert/lm_head/bias", (vocabulary,), ("decoder.bias",))


def _gpt2(architecture: Architecture) -> Iterator[WeightMapping]:
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
        yield from _norm(f"{ours}/attention_norm", f"{theirs}.ln_1", width)
        # Conv1D kernels have our layout: fused QKV, not transposed.
        yield from _conv(f"{ours}/attention/qkv", f"{theirs}.attn.c_attn", width, 3 * width)
        yield from _conv(f"{ours}/attention/output", f"{theirs}.attn.c_proj", width, width)
        yield from _norm(f"{ours}/output_norm", f"{theirs}.ln_2", width)
        yield from _conv(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", width, inner)
        yield from _conv(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", inner, width)
    yield from _norm("gpt2/decoder/final_norm", "transformer.ln_f", width)


def _t5(architecture: Architecture) -> Iterator[WeightMapping]:
    t5 = cast(T5Architecture, architecture)
    table = (t5.vocab_size, t5.hidden_size)
    yield WeightMapping(
        "t5/words/table", table, ("shared.weight",), alias="encoder.embed_tokens.weight"
    )
    for half, layers in (("encoder", t5.num_hidden_layers), ("decoder", t5.num_decoder_layers)):
        first = f"{half}.block.0.layer.0.SelfAttention"
        yield WeightMapping(
            f"t5/{half}_distances/table",
            (t5.relative_attention_num_buckets, t5.num_attention_heads),
            (f"{first}.relative_attention_bias.weight",),
        )
        for index in range(layers):
            yield from _t5_layer(t5, half, index)
        yield _scale(f"t5/{half}/final_norm", f"{half}.final_layer_norm", t5.hidden_size)
    yield WeightMapping("t5/lm_head/table", table, ("lm_head.weight",), alias="shared.weight")


def _t5_layer(t5: T5Architecture, half: str, index: int) -> Iterator[WeightMapping]:
    width, inner, units = t5.hidden_size, t5.num_attention_heads * t5.d_kv, t5.intermediate_size
    ours, theirs = f"t5/{half}/layer_{index}", f"{half}.block.{index}.layer"
    own = f"{theirs}.0.SelfAttention"
    yield _kernel(f"{ours}/attention/qkv", (f"{own}.q", f"{own}.k", f"{own}.v"), width, 3 * inner)
    yield _kernel(f"{ours}/attention/output", (f"{own}.o",), inner, width)
    yield _scale(f"{ours}/attention_norm", f"{theirs}.0.layer_norm", width)
    if half == "decoder":
        cross = f"{theirs}.1.EncDecAttention"
        yield _kernel(f"{ours}/cross_attention/query", (f"{cross}.q",), width, inner)
        yield _kernel(f"{ours}/cross_attention/kv", (f"{cross}.k", f"{cross}.v"), width, 2 * inner)
        yield _kernel(f"{ours}/cross_attention/output", (f"{cross}.o",), inner, width)
        yield _scale(f"{ours}/cross_attention_norm", f"{theirs}.1.layer_norm", width)
    last = f"{theirs}.{2 if half == 'decoder' else 1}"
    ups = (f"{last}.DenseReluDense.wi_0", f"{last}.DenseReluDense.wi_1")
    yield _kernel(f"{ours}/feed_forward/gated_up", ups, width, 2 * units)
    yield _kernel(f"{ours}/feed_forward/down", (f"{last}.DenseReluDense.wo",), units, width)
    yield _scale(f"{ours}/output_norm", f"{last}.layer_norm", width)


def _bart(architecture: Architecture) -> Iterator[WeightMapping]:
    bart = cast(BartArchitecture, architecture)
    width = bart.hidden_size
    yield WeightMapping(
        "bart/words/table",
        (bart.vocab_size, width),
        ("model.shared.weight",),
        alias="model.encoder.embed_tokens.weight",
    )
    for half, layers in (("encoder", bart.num_hidden_layers), ("decoder", bart.num_decoder_layers)):
        yield WeightMapping(
            f"bart/{half}/embeddings/positions/table",
            (bart.max_position_embeddings + bart.POSITION_OFFSET, width),
            (f"model.{half}.embed_positions.weight",),
        )
        yield from _norm(f"bart/{half}/embeddings/norm", f"model.{half}.layernorm_embedding", width)
        for index in range(layers):
            yield from _bart_layer(bart, half, index)


def _bart_layer(bart: BartArchitecture, half: str, index: int) -> Iterator[WeightMapping]:
    width, inner = bart.hidden_size, bart.intermediate_size
    ours, theirs = f"bart/{half}/layer_{index}", f"model.{half}.layers.{index}"
    own, cross = f"{theirs}.self_attn", f"{theirs}.encoder_attn"
    parts = (f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
    yield from _dense(f"{ours}/attention/qkv", parts, width, 3 * width)
    yield from _dense(f"{ours}/attention/output", (f"{own}.out_proj",), width, width)
    yield from _norm(f"{ours}/attention_norm", f"{own}_layer_norm", width)
    if half == "decoder":
        pair = (f"{cross}.k_proj", f"{cross}.v_proj")
        yield from _dense(f"{ours}/cross_attention/query", (f"{cross}.q_proj",), width, width)
        yield from _dense(f"{ours}/cross_attention/kv", pair, width, 2 * width)
        yield from _dense(f"{ours}/cross_attention/output", (f"{cross}.out_proj",), width, width)
        yield from _norm(f"{ours}/cross_attention_norm", f"{cross}_layer_norm", width)
    yield from _dense(f"{ours}/feed_forward/up", (f"{theirs}.fc1",), width, inner)
    yield from _dense(f"{ours}/feed_forward/down", (f"{theirs}.fc2",), inner, width)
    yield from _norm(f"{ours}/output_norm", f"{theirs}.final_layer_norm", width)


_FAMILIES: dict[str, Callable[[Architecture], Iterator[WeightMapping]]] = {
    "roberta": _roberta,
    "bert": _bert,
    "modernbert": _modernbert,
    "gpt2": _gpt2,
    "t5": _t5,
    "bart": _bart,
}


def _dense(
    ours: str, theirs: tuple[str, ...], inputs: int, outputs: int
) -> Iterator[WeightMapping]:
    yield _kernel(ours, theirs, inputs, outputs)
    yield WeightMapping(f"{ours}/bias", (outputs,), tuple(f"{name}.bias" for name in theirs))


def _conv(ours: str, theirs: str, inputs: int, outputs: int) -> Iterator[WeightMapping]:
    yield WeightMapping(f"{ours}/kernel", (inputs, outputs), (f"{theirs}.weight",))
    yield WeightMapping(f"{ours}/bias", (outputs,), (f"{theirs}.bias",))


def _kernel(ours: str, theirs: tuple[str, ...], inputs: int, outputs: int) -> WeightMapping:
    names = tuple(f"{name}.weight" for name in theirs)
    return WeightMapping(f"{ours}/kernel", (inputs, outputs), names, transposed=True)


def _norm(ours: str, theirs: str, width: int) -> Iterator[WeightMapping]:
    yield _scale(ours, theirs, width)
    yield WeightMapping(f"{ours}/bias", (width,), (f"{theirs}.bias",))


def _scale(ours: str, theirs: str, width: int) -> WeightMapping:
    return WeightMapping(f"{ours}/scale", (width,), (f"{theirs}.weight",))
