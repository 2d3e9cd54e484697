"""ModernBERT: a pre-norm encoder with rotary positions, gated units and no biases.

One layer in three looks at all tokens, the others at 64 to either side.

Source: https://arxiv.org/abs/2412.13663. First weights are normal with a standard deviation of
0.02, those that are added to the hidden states and the head's smaller by √(2 · layers), none beyond
two standard deviations (https://github.com/AnswerDotAI/ModernBERT,
src/bert_layers/initialization.py, "full_megatron"). The arithmetic is that of
`ModernBertForMaskedLM` in transformers, but for attention's dropout, which is of its weights alone.
"""

from __future__ import annotations

from typing import Any

from core.models.encoder import EncoderForMaskedLM, blocks_of
from core.models.layers import (
    BlockOptions,
    EmbeddingOptions,
    FirstScales,
    FirstWeights,
    Tensor,
    both_biases,
    local_bias,
    rotation,
)


class ModernBertForMaskedLM(EncoderForMaskedLM):
    """A ModernBERT with a language-model head tied to its word embedding."""

    def first_weights(self, seed: int) -> FirstWeights:
        """Returns a normal distribution that is cut off."""
        found = self.architecture
        return FirstWeights(seed, found.initializer_range, found.initializer_cutoff_factor)

    def block_options(self) -> BlockOptions:
        """Returns ModernBERT's blocks."""
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
            scales=FirstScales(mixed=added, down=added),
        )

    def embedding_options(self) -> EmbeddingOptions:
        """Returns words, normalised."""
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
        """Returns for each layer what it may look at and how its heads turn."""
        found = self.architecture
        near = both_biases(local_bias(length, found.local_attention // 2), bias)
        local = (near, rotation(length, found.head_size, found.local_rope_theta))
        whole = (bias, rotation(length, found.head_size, found.global_rope_theta))
        return [
            whole if found.is_global(index) else local for index in range(len(self.layer_stack))
        ]
