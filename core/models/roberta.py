"""RoBERTa: BERT's post-norm encoder with its own way of counting positions.

Source: https://arxiv.org/abs/1907.11692; the arithmetic is that of `RobertaForMaskedLM` in
transformers, which gives the same logits for the same weights. Not here: the pooler (the
language-model head has no use for it), decoders and cross-attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from core.errors import ConfigError
from core.models import kernels
from core.models.architecture import Architecture
from core.models.layers import (
    Attention,
    Dense,
    Dropout,
    Embedding,
    FeedForward,
    FirstWeights,
    LayerNorm,
    Tensor,
    padding_bias,
)


class RobertaForMaskedLM(keras.Model):
    """A RoBERTa with a language-model head tied to its word embedding.

    Args:
        architecture: Its dimensions.
        seed: Decides the first weights and the dropout.
        dtype: Precision policy: float32, mixed_bfloat16 or bfloat16.
        remat: Keep only each layer's inputs for the gradient, and compute the rest twice.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        seed: int,
        dtype: str = "float32",
        remat: bool = False,
    ) -> None:
        super().__init__(name="roberta", dtype=dtype)
        self.architecture = architecture
        self.remat = remat
        weights = FirstWeights(seed, architecture.initializer_range)
        self.embeddings = RobertaEmbeddings(
            architecture, weights, name="embeddings", dtype=self.dtype_policy
        )
        self.layer_stack = [
            RobertaLayer(architecture, weights, name=f"layer_{index}", dtype=self.dtype_policy)
            for index in range(architecture.num_hidden_layers)
        ]
        self.lm_head = RobertaHead(architecture, weights, name="lm_head", dtype=self.dtype_policy)
        self.build()

    def build(self, input_shape: Any = None) -> None:
        shape = (None, None, self.architecture.hidden_size)
        layers: list[keras.layers.Layer] = [self.embeddings, *self.layer_stack, self.lm_head]
        for layer in layers:
            layer.build(shape)
        self.built = True

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the logits.

        Args:
            inputs: `input_ids` int32 (B, L). Optional: `attention_mask` (B, L), 1 for tokens and 0
                for padding; without it nothing is padding. Optional: `masked_positions` int32
                (B, K). Optional: `dropout_seed` int32 (2,), other ones for each step; without it
                nothing is dropped.

        Returns:
            float32 (B, K, V) at the masked positions, or (B, L, V) where none are given.

        Raises:
            ConfigError: The rows are longer than the model's positions.
        """
        _check_length(inputs["input_ids"], self.architecture)
        mask = inputs.get("attention_mask")
        bias = None if mask is None else padding_bias(mask)
        seed = inputs.get("dropout_seed")
        hidden = self.embeddings(inputs["input_ids"], padded=mask is not None, dropout_seed=seed)
        for layer in self.layer_stack:
            apply = kernels.recomputed_layer(layer) if self.remat else layer
            hidden = apply(hidden, bias, seed)  # (B, L, H)
        if "masked_positions" in inputs:
            hidden = kernels.gather_positions(hidden, inputs["masked_positions"])  # (B, K, H)
        return self.embeddings.words.decode(self.lm_head(hidden), self.lm_head.bias)


class RobertaEmbeddings(keras.layers.Layer):
    """Words, positions and the one segment, summed and normalised."""

    def __init__(self, architecture: Architecture, weights: FirstWeights, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.architecture = architecture
        width, pad = architecture.hidden_size, architecture.pad_token_id
        policy = self.dtype_policy
        self.words = Embedding(
            architecture.vocab_size, width, weights, zero_row=pad, name="words", dtype=policy
        )
        self.positions = Embedding(
            architecture.max_position_embeddings,
            width,
            weights,
            zero_row=pad,
            name="positions",
            dtype=policy,
        )
        self.segments = Embedding(
            architecture.type_vocab_size, width, weights, name="segments", dtype=policy
        )
        self.norm = LayerNorm(architecture.layer_norm_eps, name="norm", dtype=policy)
        self.dropout = Dropout(
            architecture.hidden_dropout_prob, weights, name="dropout", dtype=policy
        )

    def build(self, input_shape: Any) -> None:
        for layer in (self.words, self.positions, self.segments, self.norm, self.dropout):
            layer.build(input_shape)

    def call(self, ids: Tensor, padded: bool = False, dropout_seed: Tensor | None = None) -> Tensor:
        places = self._padded_positions(ids) if padded else self._positions(ids)
        hidden = self.words(ids) + (places + self.segments.first(1))
        return self.dropout(self.norm(hidden), dropout_seed)

    def _positions(self, ids: Tensor) -> Tensor:
        """Returns the vectors of rows without padding, (L, H)."""
        return self.positions.first(ids.shape[1], start=self.architecture.first_position)

    def _padded_positions(self, ids: Tensor) -> Tensor:
        """Counts tokens and skips padding, as transformers does, (B, L, H)."""
        pad = self.architecture.pad_token_id
        tokens = ops.cast(ops.not_equal(ids, pad), "int32")
        return self.positions(ops.cumsum(tokens, axis=1) * tokens + pad)


class RobertaLayer(keras.layers.Layer):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, architecture: Architecture, weights: FirstWeights, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # As the attention within.
        policy = self.dtype_policy
        width = architecture.hidden_size
        epsilon, dropout = architecture.layer_norm_eps, architecture.hidden_dropout_prob
        self.attention = Attention(
            width,
            architecture.num_attention_heads,
            architecture.attention_probs_dropout_prob,
            weights,
            name="attention",
            dtype=policy,
        )
        self.attention_dropout = Dropout(dropout, weights, name="attention_dropout", dtype=policy)
        self.attention_norm = LayerNorm(epsilon, name="attention_norm", dtype=policy)
        self.feed_forward = FeedForward(
            width,
            architecture.intermediate_size,
            architecture.hidden_act,
            weights,
            name="feed_forward",
            dtype=policy,
        )
        self.output_dropout = Dropout(dropout, weights, name="output_dropout", dtype=policy)
        self.output_norm = LayerNorm(epsilon, name="output_norm", dtype=policy)

    def build(self, input_shape: Any) -> None:
        for layer in (
            self.attention,
            self.attention_dropout,
            self.attention_norm,
            self.feed_forward,
            self.output_dropout,
            self.output_norm,
        ):
            layer.build(input_shape)

    def call(
        self, inputs: Tensor, bias: Tensor | None = None, dropout_seed: Tensor | None = None
    ) -> Tensor:
        attended = self.attention(inputs, bias, dropout_seed)
        attended = self.attention_dropout(attended, dropout_seed)
        hidden = self.attention_norm(inputs + attended)
        transformed = self.output_dropout(self.feed_forward(hidden), dropout_seed)
        return self.output_norm(hidden + transformed)


class RobertaHead(keras.layers.Layer):
    """The language-model head up to the tied decoder, whose bias it holds."""

    def __init__(self, architecture: Architecture, weights: FirstWeights, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocab_size = architecture.vocab_size
        policy = self.dtype_policy
        self.dense = Dense(architecture.hidden_size, weights, name="dense", dtype=policy)
        self.norm = LayerNorm(architecture.layer_norm_eps, name="norm", dtype=policy)

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)
        self.norm.build(input_shape)
        self.bias = self.add_weight(
            shape=(self.vocab_size,), initializer="zeros", name="bias", autocast=False
        )

    def call(self, hidden: Tensor) -> Tensor:
        return self.norm(kernels.gelu(self.dense(hidden)))


def _check_length(ids: Tensor, architecture: Architecture) -> None:
    if ids.shape[1] > architecture.max_seq_length:
        raise ConfigError(
            "The rows are longer than the model's positions",
            expected=f"at most {architecture.max_seq_length} tokens",
            received=f"{ids.shape[1]}",
            fix="build the model with a larger max_position_embeddings, or cut the rows",
        )
