"""Language-model head: logits, and losses that never hold all logits of a large vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from core.backends import kernels

Tensor = Any


class LanguageModel(keras.Model):
    """A model that predicts tokens."""

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the hidden states to predict tokens from, (B, K, H).

        Args:
            inputs: `input_ids` int32 (B, L). Optional: `attention_mask` (B, L), 1 for tokens and 0
                for padding; `masked_positions` int32 (B, K), by default all; `dropout_seed` int32
                (2,), a new one per step, without which dropout is off. Families differ.

        Raises:
            ConfigError: The sequences are longer than the model's positions.
        """
        raise NotImplementedError

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Returns the output embedding matrix (V, H), and a bias (V,) or None."""
        raise NotImplementedError

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the logits, float32 (B, K, V); see `states` for the inputs."""
        return self.decode(self.states(inputs))

    def decode(self, states: Tensor) -> Tensor:
        """Computes the logits of hidden states, float32 (B, K, V)."""
        return kernels.tied_logits(*self._head(states))

    def summed_loss(self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor) -> Tensor:
        """Sums weighted cross-entropies in nats; labels int32 and weights float32 are (B, K)."""
        return kernels.summed_cross_entropy(*self._head(self.states(inputs)), labels, weights)

    def evaluate_batch(
        self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor
    ) -> Tensor:
        """Computes `summed_loss` and the weight of correct predictions, (2,), without gradient."""
        return kernels.evaluate_batch(*self._head(self.states(inputs)), labels, weights)

    def _head(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        table, bias = self.output_weights()
        return ops.cast(states, self.compute_dtype), table, bias
