"""Embeddings, blocks and final norm of decoders and encoder-decoders."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from core.architecture.options import BlockOptions, EmbeddingOptions, RotaryPositions
from core.models.layers import (
    Block,
    Cache,
    Dropout,
    Embedding,
    Embeddings,
    Initializers,
    Norm,
    Tensor,
    build_all,
    rotation,
    run_blocks,
)


class Stack(keras.layers.Layer):
    """Embeddings and blocks, with a final norm if pre-norm."""

    def __init__(
        self,
        count: int,
        embedding_options: EmbeddingOptions,
        options: BlockOptions,
        weights: Initializers,
        *,
        words: Embedding | None = None,
        cross: bool = False,
        rotary: RotaryPositions | None = None,
        final_dropout: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.options = options
        self.rotary = rotary
        self.remat = remat
        policy = self.dtype_policy
        self.embeddings = Embeddings(
            embedding_options, weights, words, name="embeddings", dtype=policy
        )
        self.blocks = [
            Block(options, weights, cross=cross, name=f"layer_{index}", dtype=policy)
            for index in range(count)
        ]
        self.final_norm = None
        if options.norm_first:
            self.final_norm = Norm(options.norm, options.epsilon, name="final_norm", dtype=policy)
        self.final_dropout = Dropout(final_dropout, weights, name="final_dropout", dtype=policy)

    def build(self, input_shape: Any = None) -> None:
        layers = [self.embeddings, *self.blocks, self.final_norm, self.final_dropout]
        build_all(
            [layer for layer in layers if layer is not None], (None, None, self.options.width)
        )
        self.built = True

    def call(
        self,
        ids: Tensor,
        bias: Tensor | None = None,
        dropout_seed: Tensor | None = None,
        memory: Tensor | None = None,
        memory_bias: Tensor | None = None,
        text_starts: Tensor | None = None,
    ) -> Tensor:
        """Computes hidden states (B, L, H); `text_starts` are as for `kernels.attention`."""
        hidden = self.embeddings(ids, dropout_seed, self.embeddings.position_ids(text_starts))
        angles = self._angles(ids.shape[1])
        arguments = (bias, dropout_seed, angles, memory, memory_bias, None, text_starts)
        hidden = run_blocks(self.blocks, self.remat, hidden, *arguments)
        return self._finish(hidden, dropout_seed)

    def start_cache(
        self, batch_size: int, length: int, memory: Tensor | None = None
    ) -> list[Cache]:
        return [block.start_cache(batch_size, length, memory) for block in self.blocks]

    def step(
        self,
        ids: Tensor,
        caches: list[Cache],
        positions: Tensor,
        past_bias: Tensor,
        bias: Tensor,
        memory_bias: Tensor | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """Returns hidden states (B, S, H), keys and values.

        `positions` (B,) counts preceding tokens.
        """
        position_ids = positions[:, None] + ops.arange(ids.shape[1])[None, :]
        first = self.embeddings.options.first_position
        hidden, new = self.embeddings(ids, None, position_ids + first), []
        angles = self._angles(caches[0]["key"].shape[-1])
        angles = None if angles is None else ops.take(angles, position_ids, axis=1)
        for block, cache in zip(self.blocks, caches, strict=True):
            hidden, new_cache = block.step(hidden, cache, past_bias, bias, angles, memory_bias)
            new.append(new_cache)
        return self._finish(hidden, None), new

    def _angles(self, length: int) -> Tensor | None:
        if self.rotary is None:
            return None
        return rotation(length, self.options.head_size, self.rotary)

    def _finish(self, hidden: Tensor, seed: Tensor | None) -> Tensor:
        hidden = hidden if self.final_norm is None else self.final_norm(hidden)
        return self.final_dropout(hidden, seed)
