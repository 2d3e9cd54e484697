"""Model architectures, with the field names of Hugging Face's `config.json`.

Imports no backend: the web app counts parameters while a user types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from core.errors import ConfigError


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a RoBERTa; each other family has a subclass.

    Attributes:
        vocab_size: The tokenizer's highest id plus one.
        num_hidden_layers: Number of layers; of encoder-decoders, the encoder's.
        intermediate_size: Size of the feed-forward layer.
        max_position_embeddings: RoBERTa never uses the first `pad_token_id + 1` of these.
        type_vocab_size: Number of segment embeddings, of which only the first is used.
        hidden_dropout_prob: Dropout after embeddings and layers.
        attention_probs_dropout_prob: Dropout on attention weights.
        initializer_range: Standard deviation of the initial weights.
        variant: The `model_type` in `config.json` if it isn't the family's, such as "xlm-roberta".
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
        """The position id of the first token."""
        return self.pad_token_id + 1

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class BertArchitecture(Architecture):
    """Dimensions of a BERT, with positions from 0."""

    model_type: str = "bert"
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    @property
    def first_position(self) -> int:
        return 0


@dataclass(frozen=True)
class ModernBertArchitecture(BertArchitecture):
    """Dimensions of a ModernBERT, which has no position or segment embeddings.

    Attributes:
        global_attn_every_n_layers: Layer 0 and every n-th after it attend to all tokens.
        local_attention: Window of the other layers in tokens, half on either side.
        global_rope_theta: Base of rotary positions in global layers.
        local_rope_theta: The same in local layers.
        initializer_cutoff_factor: Truncation in standard deviations.
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
        """Checks whether a layer attends to all tokens."""
        return index % self.global_attn_every_n_layers == 0


@dataclass(frozen=True)
class Gpt2Architecture(BertArchitecture):
    """Dimensions of a GPT-2."""

    kind: ClassVar[str] = "decoder"

    model_type: str = "gpt2"
    type_vocab_size: int = 0
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class EncoderDecoderArchitecture(BertArchitecture):
    """Dimensions of an encoder-decoder model."""

    kind: ClassVar[str] = "encoder-decoder"

    type_vocab_size: int = 0
    num_decoder_layers: int = 0
    decoder_start_token_id: int = 0


@dataclass(frozen=True)
class BartArchitecture(EncoderDecoderArchitecture):
    """Dimensions of a BART, which has two more position embeddings than positions."""

    POSITION_OFFSET: ClassVar[int] = 2

    model_type: str = "bart"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class T5Architecture(EncoderDecoderArchitecture):
    """Dimensions of a T5 v1.1, which has relative positions only.

    `max_position_embeddings` limits nothing. `initializer_range` is a factor on standard deviations
    that follow from matrix sizes.

    Attributes:
        d_kv: Head size, independent of the hidden size.
        relative_attention_num_buckets: Number of distance buckets, a multiple of 4.
        relative_attention_max_distance: Longer distances share one bucket.
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
        """A number above any length: inputs have no limit."""
        return 1 << 30

    @property
    def head_size(self) -> int:
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
    """Refuses sequences longer than the model's positions.

    Raises:
        ConfigError: With both lengths.
    """
    if length > architecture.max_seq_length:
        raise ConfigError(
            "The rows are longer than the model's positions",
            expected=f"at most {architecture.max_seq_length} tokens",
            received=f"{length}",
            fix="build the model with a larger max_position_embeddings, or cut the rows",
        )
