"""What a model is made of, in the names of Hugging Face's `config.json`.

No engine is imported here: the page asks for the number of parameters as somebody types.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """The dimensions of a model.

    Attributes:
        vocab_size: Rows of the word embedding: the tokenizer's highest id plus one.
        hidden_size: Width H.
        num_hidden_layers: Number of layers.
        num_attention_heads: Heads N; they divide H.
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
    """

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
