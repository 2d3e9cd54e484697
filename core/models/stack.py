"""Embeddings, blocks and final norm of GPT-2, T5 and BART."""

from __future__ import annotations

from typing import Any

import keras

from core.architecture.options import BlockOptions, EmbeddingOptions
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
        final_dropout: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.width = options.width
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
        build_all([layer for layer in layers if layer is not None], (None, None, self.width))
        self.built = True

    def call(
        self,
        ids: Tensor,
        bias: Tensor | None = None,
        dropout_seed: Tensor | None = None,
        memory: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> Tensor:
        """Computes hidden states (B, L, H)."""
        hidden = self.embeddings(ids, dropout_seed)
        arguments = (bias, dropout_seed, None, memory, memory_bias)
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
        first = self.embeddings.options.first_position
        places = positions[:, None] + keras.ops.arange(ids.shape[1])[None, :] + first
        hidden, new = self.embeddings(ids, None, places), []
        for block, cache in zip(self.blocks, caches, strict=True):
            hidden, new_cache = block.step(hidden, cache, past_bias, bias, memory_bias)
            new.append(new_cache)
        return self._finish(hidden, None), new

    def _finish(self, hidden: Tensor, seed: Tensor | None) -> Tensor:
        hidden = hidden if self.final_norm is None else self.final_norm(hidden)
        return self.final_dropout(hidden, seed)
