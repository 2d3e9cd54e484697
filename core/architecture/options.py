"""Options from which layers build a family's model; imports no backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from core.architecture.architecture import Architecture

ScalingKind = Literal["linear", "llama3", "yarn"]
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
        kv_heads: Heads of keys and values, each shared by a group of queries; None: one per query,
            from a kernel fused with the queries'.
        norm: layer; plain: without bias; rms: without mean either.
        query_key_norm: Whether each head's queries and keys are normalised.
        causal: Whether tokens attend only to earlier ones; masks of encoder-decoders say it.
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
    kv_heads: int | None = None
    inner_dropout: float | None = None
    norm: Literal["layer", "plain", "rms"] = "layer"
    norm_first: bool = False
    query_key_norm: bool = False
    causal: bool = False
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
class RotaryScaling:
    """How frequencies are lowered for sequences longer than the pretraining's.

    Fields are named as in `config.json`.

    Attributes:
        original_max_position_embeddings: Sequence length of the pretraining.
        low_freq_factor, high_freq_factor: Bounds of llama3, in rotations per sequence.
        beta_fast, beta_slow: Bounds of yarn, in rotations per sequence.
        attention_factor: Factor of yarn on cosines and sines.
    """

    rope_type: ScalingKind
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    attention_factor: float = 0.0


@dataclass(frozen=True)
class RotaryPositions:
    """Rotation of queries and keys (https://arxiv.org/abs/2104.09864)."""

    theta: float
    scaling: RotaryScaling | None = None


@dataclass(frozen=True)
class LayerAttention:
    """Attention of an encoder layer, to `reach` tokens on either side; None: all."""

    reach: int | None = None
    rotary: RotaryPositions | None = None


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
    rotary: RotaryPositions | None = None
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
