"""Options from which the shared layers build a family's model; imports no backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from core.models.architecture import Architecture


@dataclass(frozen=True)
class InitializerScales:
    """Factors on the standard deviation of the initialisation, per kernel.

    `mixed` is the output projection's; `up` and `down` are the feed-forward layer's.
    """

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
        units: Size of the feed-forward layer.
        activation: Its name in Hugging Face's configs.
        dropout: Rate on residual branches.
        inner_dropout: Rate within the feed-forward layer.
        norm: layer; plain: layer norm without bias; rms: without mean either.
        norm_first: Pre-norm instead of post-norm.
        gated: Whether the feed-forward layer is gated.
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
    """How a family embeds token ids as vectors of size `width`.

    Attributes:
        zero_row: The token initialised with zeros.
        positions: Number of position embeddings.
        first_position: The first token's position id.
        padding_position: The padding token's id, if it is the position id of padding, too. That
            position is initialised with zeros, and other tokens are counted from the next one.
        segments: Number of segment embeddings, of which the first is used.
        norm: Norm of the sum, named as in `BlockOptions`.
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
    """Attention pattern of one encoder layer.

    Attributes:
        reach: Tokens to attend to on either side; None: all.
        rotary_theta: Base of the rotary positions; None: no rotary positions.
    """

    reach: int | None = None
    rotary_theta: float | None = None


@dataclass(frozen=True)
class RelativePositions:
    """Learnt position biases by distance, which all layers of an encoder or decoder share.

    Attributes:
        buckets: Number of distance buckets, a multiple of 4.
        max_distance: Longer distances share one bucket.
        scale: Factor on the standard deviation of the initialisation.
    """

    buckets: int
    max_distance: int
    scale: float


@dataclass(frozen=True)
class ModelOptions:
    """How a family builds its model.

    Attributes:
        layers: Attention pattern of each encoder layer; empty: all attend to all tokens.
        relative: Relative positions of an encoder-decoder.
        head_scale: Factor on the standard deviation of an untied head of an encoder-decoder; None:
            the head is tied to the token embeddings.
        final_dropout: Rate after the encoder and after the decoder of an encoder-decoder.
        initializer_cutoff: Truncation of the initialisation in standard deviations; None: not
            truncated.
    """

    blocks: BlockOptions
    embeddings: EmbeddingOptions
    layers: tuple[LayerAttention, ...] = ()
    relative: RelativePositions | None = None
    head_scale: float | None = None
    final_dropout: float = 0.0
    initializer_cutoff: float | None = None


def block_options(architecture: Architecture, **changes: Any) -> BlockOptions:
    """Returns BERT's block options for an architecture.

    Args:
        architecture: Dimensions, dropout, activation and epsilon.
        **changes: Fields of `BlockOptions` in which a family differs.
    """
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
    """Returns the options of token embeddings whose padding starts with zeros.

    Args:
        architecture: Dimensions, dropout and epsilon.
        **changes: Fields of `EmbeddingOptions` in which a family differs.
    """
    words = EmbeddingOptions(
        rows=architecture.vocab_size,
        width=architecture.hidden_size,
        dropout=architecture.hidden_dropout_prob,
        zero_row=architecture.pad_token_id,
        epsilon=architecture.layer_norm_eps,
    )
    return replace(words, **changes)
