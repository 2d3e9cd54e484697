"""T5 v1.1: an encoder-decoder with relative position biases and gated feed-forward layers.

Source: https://arxiv.org/abs/1910.10683, section 2.1, and
https://github.com/google-research/text-to-text-transfer-transformer/blob/main/released_checkpoints.md
for v1.1: gated GELU, an untied head, no dropout in pre-training. Computes as
`T5ForConditionalGeneration` in transformers.

Initialisation: normal, standard deviation 1 for token embeddings, 1/√(inputs) for kernels, smaller
by √D for query kernels as attention logits aren't scaled (Mesh TensorFlow,
mesh_tensorflow/transformer/attention.py and layers.py). The head has 1/√(inputs) too: with
transformers' 1 (`T5PreTrainedModel._init_weights`) the initial loss is far above a guess.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from core.models.encoder import blocks_of
from core.models.encoder_decoder import EncoderDecoder
from core.models.layers import (
    BlockOptions,
    Embedding,
    EmbeddingOptions,
    Initializers,
    InitializerScales,
    Tensor,
)


class T5ForConditionalGeneration(EncoderDecoder):
    """T5 v1.1 with its language-model head."""

    def block_options(self) -> BlockOptions:
        found = self.architecture
        wide = found.hidden_size**-0.5
        scales = InitializerScales(
            query=(found.hidden_size * found.d_kv) ** -0.5,
            key=wide,
            value=wide,
            mixed=(found.num_attention_heads * found.d_kv) ** -0.5,
            up=wide,
            down=found.intermediate_size**-0.5,
        )
        return blocks_of(
            found,
            head_size=found.d_kv,
            inner_dropout=found.hidden_dropout_prob,
            norm="rms",
            norm_first=True,
            use_bias=False,
            gated=True,
            scaled=False,
            scales=scales,
        )

    def embedding_options(self) -> EmbeddingOptions:
        found = self.architecture
        return EmbeddingOptions(found.vocab_size, found.hidden_size, found.hidden_dropout_prob)

    def final_dropout(self) -> float:
        return float(self.architecture.hidden_dropout_prob)

    def make_distances(self, weights: Initializers) -> None:
        """Makes one relative position bias each for encoder and decoder, shared by all layers."""
        found = self.architecture
        for half in ("encoder", "decoder"):
            table = Embedding(
                found.relative_attention_num_buckets,
                found.num_attention_heads,
                weights,
                scale=found.hidden_size**-0.5,
                name=f"{half}_distances",
                dtype=self.dtype_policy,
            )
            setattr(self, f"{half}_distances", table)

    def make_head(self, weights: Initializers) -> Embedding:
        found = self.architecture
        return Embedding(
            found.vocab_size,
            found.hidden_size,
            weights,
            scale=found.hidden_size**-0.5,
            name="lm_head",
            dtype=self.dtype_policy,
        )

    def own_layers(self) -> list[keras.layers.Layer]:
        return [self.encoder_distances, self.decoder_distances]

    def encoder_bias(self, length: int) -> Tensor:
        places = ops.arange(length)
        away = places[None, None, :] - places[None, :, None]
        buckets = self._bucket(ops.abs(away), both_ways=True)
        half = self.architecture.relative_attention_num_buckets // 2
        return _heads_first(self.encoder_distances, ops.where(away > 0, buckets + half, buckets))

    def decoder_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        back = queries[:, :, None] - keys[None, None, :]
        return _heads_first(self.decoder_distances, self._bucket(back, both_ways=False))

    def _bucket(self, distances: Tensor, *, both_ways: bool) -> Tensor:
        found = self.architecture
        buckets = found.relative_attention_num_buckets // (2 if both_ways else 1)
        classes = distance_buckets(buckets, found.relative_attention_max_distance)
        return ops.take(ops.convert_to_tensor(classes), ops.clip(distances, 0, len(classes) - 1))


def distance_buckets(buckets: int, max_distance: int) -> NDArray[np.int32]:
    """Returns the bucket of each distance, int32 (max_distance + 1,).

    The first half of the buckets hold one distance each, the others logarithmic ranges.

    Source: mesh_tensorflow/transformer/transformer_layers.py, `_relative_position_bucket`; in
        float32, as transformers has it.
    """
    exact = buckets // 2
    distances = np.arange(max_distance + 1)
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    wide = ratio / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    large = np.minimum(exact + wide.astype(np.int32), buckets - 1)
    return np.where(distances < exact, distances, large).astype(np.int32)


def _heads_first(table: Embedding, buckets: Tensor) -> Tensor:
    values = ops.cast(table.look_up(buckets), "float32")  # (B, S, M, N)
    return ops.transpose(values, (0, 3, 1, 2))
