"""Model architectures, with the field names of Hugging Face's `config.json`.

Imports no backend: the web app counts parameters while a user types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from core.errors import ConfigError


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a model; each family has a subclass.

    Attributes:
        vocab_size: The tokenizer's highest id plus one.
        num_hidden_layers: Number of layers; of encoder-decoders, the encoder's.
        intermediate_size: Size of the feed-forward layer.
        max_position_embeddings: Number of position ids, from 0.
        type_vocab_size: Number of segment embeddings, of which only the first is used.
        hidden_dropout_prob: Dropout after embeddings and layers.
        attention_probs_dropout_prob: Dropout on attention weights.
        initializer_range: Standard deviation of the initial weights.
        variant: The `model_type` in `config.json` if it isn't the family's, such as "xlm-roberta".
    """

    kind: ClassVar[str] = "encoder"  # encoder, decoder, or encoder-decoder
    # Divisor of the head size: rotary positions rotate pairs of values.
    head_size_multiple: ClassVar[int] = 1
    # Whether the head size is independent of the hidden size.
    has_own_head_size: ClassVar[bool] = False
    # Whether `max_position_embeddings` limits the input.
    limits_length: ClassVar[bool] = True

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    pad_token_id: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    model_type: str = ""
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
        return 0

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def adapted(self) -> Self:
        """Adapts dimensions of its own to a changed hidden size."""
        return self


@dataclass(frozen=True)
class EncoderDecoderArchitecture(Architecture):
    """Dimensions of an encoder-decoder model."""

    kind: ClassVar[str] = "encoder-decoder"

    type_vocab_size: int = 0
    num_decoder_layers: int = 0
    decoder_start_token_id: int = 0


def check_length(length: int, architecture: Architecture) -> None:
    """Refuses sequences longer than the model's positions.

    Raises:
        ConfigError: With both lengths.
    """
    if length > architecture.max_seq_length:
        raise ConfigError(
            "The sequences are longer than the model's maximum length",
            expected=f"at most {architecture.max_seq_length} tokens",
            received=f"{length}",
            fix="build the model with a larger max_position_embeddings, or use shorter sequences",
        )
