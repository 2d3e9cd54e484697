"""What a model is made of, in the names of Hugging Face's `config.json`.

No engine is imported here: the page asks for the number of parameters as somebody types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from core.errors import ConfigError


@dataclass(frozen=True)
class Architecture:
    """The dimensions of a model: of a RoBERTa, and of the other families with a class for each.

    Attributes:
        vocab_size: Rows of the word embedding: the tokenizer's highest id plus one.
        hidden_size: Width H.
        num_hidden_layers: Number of layers; of two halves, the encoder's.
        num_attention_heads: Heads N.
        intermediate_size: Width of the feed-forward layer.
        max_position_embeddings: Rows of the position table. RoBERTa's positions begin at
            `pad_token_id + 1`, so that many rows are never used.
        pad_token_id: The tokenizer's padding token.
        bos_token_id: The token that begins a text, or None.
        eos_token_id: The token that ends a text, or None.
        model_type: The family, as transformers calls it.
        type_vocab_size: Rows of the segment table, of which RoBERTa uses the first.
        hidden_act: Activation of the feed-forward layer.
        hidden_dropout_prob: Dropout after embeddings and layers, 0 to 1.
        attention_probs_dropout_prob: Dropout on attention weights, 0 to 1.
        layer_norm_eps: Added to the variance in layer norms.
        initializer_range: Standard deviation of the first weights.
        variant: The `model_type` in config.json where it is not the family's, as "xlm-roberta".
    """

    kind: ClassVar[str] = "encoder"  # encoder, decoder, or encoder-decoder

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    pad_token_id: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    model_type: str = "roberta"
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    variant: str = ""

    @property
    def max_seq_length(self) -> int:
        """The longest input in tokens."""
        return self.max_position_embeddings - self.first_position

    @property
    def first_position(self) -> int:
        """The row of the position table that belongs to a text's first token."""
        return self.pad_token_id + 1

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class BertArchitecture(Architecture):
    """The dimensions of a BERT, whose positions are counted from 0."""

    model_type: str = "bert"
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    @property
    def first_position(self) -> int:
        """The row of the position table that belongs to a text's first token."""
        return 0


@dataclass(frozen=True)
class ModernBertArchitecture(BertArchitecture):
    """The dimensions of a ModernBERT, which has no tables for positions and segments.

    Attributes:
        global_attn_every_n_layers: The first of so many layers looks at all tokens.
        local_attention: Tokens that the others look at, half of them to either side.
        global_rope_theta: Base of the rotary positions in layers that look at all tokens.
        local_rope_theta: Base of the rotary positions in the others.
        initializer_cutoff_factor: First weights lie within so many standard deviations.
    """

    model_type: str = "modernbert"
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
    global_attn_every_n_layers: int = 3
    local_attention: int = 128
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    initializer_cutoff_factor: float = 2.0

    def is_global(self, index: int) -> bool:
        """Returns whether a layer looks at all tokens."""
        return index % self.global_attn_every_n_layers == 0


@dataclass(frozen=True)
class Gpt2Architecture(BertArchitecture):
    """The dimensions of a GPT-2, a decoder without an encoder."""

    kind: ClassVar[str] = "decoder"

    model_type: str = "gpt2"
    type_vocab_size: int = 0
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class EncoderDecoderArchitecture(BertArchitecture):
    """The dimensions of a model of two halves.

    Attributes:
        num_decoder_layers: Layers of the decoder.
        decoder_start_token_id: What the decoder sees first.
    """

    kind: ClassVar[str] = "encoder-decoder"

    type_vocab_size: int = 0
    num_decoder_layers: int = 0
    decoder_start_token_id: int = 0


@dataclass(frozen=True)
class BartArchitecture(EncoderDecoderArchitecture):
    """The dimensions of a BART; its position tables have two rows more than positions."""

    POSITION_OFFSET: ClassVar[int] = 2

    model_type: str = "bart"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class T5Architecture(EncoderDecoderArchitecture):
    """The dimensions of a T5 v1.1, which knows how far apart two tokens are and no positions.

    `max_position_embeddings` limits nothing. `initializer_range` is a factor: the standard
    deviation of each matrix follows from its size.

    Attributes:
        d_kv: Width of one attention head, whatever the model's width is.
        relative_attention_num_buckets: Classes of distances, a multiple of 4.
        relative_attention_max_distance: From here on all distances are one class.
    """

    model_type: str = "t5"
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-6
    initializer_range: float = 1.0
    d_kv: int = 64
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128

    @property
    def max_seq_length(self) -> int:
        """No input is too long; a number that is larger than any."""
        return 1 << 30

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_kv


ARCHITECTURES: dict[str, type[Architecture]] = {
    "roberta": Architecture,
    "bert": BertArchitecture,
    "modernbert": ModernBertArchitecture,
    "gpt2": Gpt2Architecture,
    "t5": T5Architecture,
    "bart": BartArchitecture,
}


def check_length(length: int, architecture: Architecture) -> None:
    """Refuses rows that the model has no positions for.

    Raises:
        ConfigError: With the two lengths.
    """
    if length > architecture.max_seq_length:
        raise ConfigError(
            "The rows are longer than the model's positions",
            expected=f"at most {architecture.max_seq_length} tokens",
            received=f"{length}",
            fix="build the model with a larger max_position_embeddings, or cut the rows",
        )
