"""Options from which layers build a family's model; imports no backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from core.architecture.architecture import Architecture

Dtype = Literal["auto", "float32", "mixed_bfloat16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True)
class InitializerScales:
    """Factors on the initial standard deviation, per kernel."""

    query: float = 1.0
    key: float = 1.0
    value: float = 1.0
    mixed: float = 1.0
    up: float = 1.0
    down: float = 1.0


@dataclass(frozen=True)
class BlockOptions:
    """How a family builds its blocks.

    Attributes:
        width: Hidden size H.
        norm: layer; plain: without bias; rms: without mean either.
        scaled: Whether attention logits are divided by √D.
    """

    width: int
    heads: int
    head_size: int
    units: int
    activation: str
    dropout: float
    attention_dropout: float
    epsilon: float
    inner_dropout: float | None = None
    norm: Literal["layer", "plain", "rms"] = "layer"
    norm_first: bool = False
    use_bias: bool = True
    gated: bool = False
    scaled: bool = True
    scales: InitializerScales = InitializerScales()


@dataclass(frozen=True)
class EmbeddingOptions:
    """How a family embeds token ids.

    Attributes:
        zero_row: Initialised with zeros.
        padding_position: Position id of padding, if it is its token id; others follow.
    """

    rows: int
    width: int
    dropout: float
    zero_row: int | None = None
    positions: int = 0
    first_position: int = 0
    padding_position: int | None = None
    segments: int = 0
    norm: Literal["layer", "plain", "rms"] | None = None
    epsilon: float = 0.0


@dataclass(frozen=True)
class LayerAttention:
    """Attention of an encoder layer, to `reach` tokens on either side; None: all."""

    reach: int | None = None
    rotary_theta: float | None = None


@dataclass(frozen=True)
class RelativePositions:
    """Position biases by distance, shared by a stack's layers; `buckets` is a multiple of 4."""

    buckets: int
    max_distance: int
    scale: float


@dataclass(frozen=True)
class ModelOptions:
    """How a family builds its model.

    Attributes:
        layers: Empty: all attend to all tokens.
        head_scale: Of an untied head; None: tied.
    """

    blocks: BlockOptions
    embeddings: EmbeddingOptions
    layers: tuple[LayerAttention, ...] = ()
    relative: RelativePositions | None = None
    head_scale: float | None = None
    final_dropout: float = 0.0
    initializer_cutoff: float | None = None


def block_options(architecture: Architecture, **changes: Any) -> BlockOptions:
    """Returns BERT's block options with a family's changes."""
    bert = BlockOptions(
        width=architecture.hidden_size,
        heads=architecture.num_attention_heads,
        head_size=architecture.head_size,
        units=architecture.intermediate_size,
        activation=architecture.hidden_act,
        dropout=architecture.hidden_dropout_prob,
        attention_dropout=architecture.attention_probs_dropout_prob,
        epsilon=architecture.layer_norm_eps,
    )
    return replace(bert, **changes)


def embedding_options(architecture: Architecture, **changes: Any) -> EmbeddingOptions:
    """Returns embedding options, with zeros for padding."""
    words = EmbeddingOptions(
        rows=architecture.vocab_size,
        width=architecture.hidden_size,
        dropout=architecture.hidden_dropout_prob,
        zero_row=architecture.pad_token_id,
        epsilon=architecture.layer_norm_eps,
    )
    return replace(words, **changes)
