"""ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward layers and no biases.

One layer in three attends to all tokens, the others to 64 on either side.

Source: https://arxiv.org/abs/2412.13663. Initialisation: N(0, 0.02²), truncated at two standard
    deviations; residual outputs and head smaller by √(2 · layers)
    (https://github.com/AnswerDotAI/ModernBERT, src/bert_layers/initialization.py, "full_megatron").
    Computes as `ModernBertForMaskedLM` in transformers, except that attention dropout applies to
    the weights alone.
"""

from __future__ import annotations

from typing import Any

from core.models.encoder import EncoderForMaskedLM, blocks_of
from core.models.layers import (
    BlockOptions,
    EmbeddingOptions,
    Initializers,
    InitializerScales,
    Tensor,
    both_biases,
    local_bias,
    rotation,
)


class ModernBertForMaskedLM(EncoderForMaskedLM):
    """ModernBERT with a language-model head tied to its token embeddings."""

    def first_weights(self, seed: int) -> Initializers:
        found = self.architecture
        return Initializers(seed, found.initializer_range, found.initializer_cutoff_factor)

    def block_options(self) -> BlockOptions:
        found = self.architecture
        added = (2 * found.num_hidden_layers) ** -0.5
        return blocks_of(
            found,
            dropout=0.0,
            inner_dropout=found.hidden_dropout_prob,
            norm="plain",
            norm_first=True,
            use_bias=False,
            gated=True,
            scales=InitializerScales(mixed=added, down=added),
        )

    def embedding_options(self) -> EmbeddingOptions:
        found = self.architecture
        return EmbeddingOptions(
            rows=found.vocab_size,
            width=found.hidden_size,
            dropout=found.hidden_dropout_prob,
            zero_row=found.pad_token_id,
            norm="plain",
            epsilon=found.layer_norm_eps,
        )

    def layer_inputs(self, length: int, bias: Tensor | None) -> list[tuple[Any, Any]]:
        found = self.architecture
        near = both_biases(local_bias(length, found.local_attention // 2), bias)
        local = (near, rotation(length, found.head_size, found.local_rope_theta))
        whole = (bias, rotation(length, found.head_size, found.global_rope_theta))
        return [
            whole if found.is_global(index) else local for index in range(len(self.layer_stack))
        ]
