"""Language-model head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from core.models import kernels

Tensor = Any


class LanguageModel(keras.Model):
    """A model that predicts tokens."""

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the hidden states to predict tokens from, (B, K, H).

        Args:
            inputs: `input_ids` (B, L). Optional: `attention_mask` (B, L), 0 for padding;
                `masked_positions` (B, K), default all; `dropout_seed` int32 (2,), without which
                dropout is off.
        """
        raise NotImplementedError

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Returns the output matrix (V, H) and bias (V,)."""
        raise NotImplementedError

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the logits, float32 (B, K, V)."""
        return self.decode(self.states(inputs))

    def decode(self, states: Tensor) -> Tensor:
        """Computes logits from hidden states."""
        return kernels.tied_logits(*self._head(states))

    def log_probabilities(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Computes the log-probabilities of targets (B, K), float32 (B, K)."""
        return kernels.log_probabilities(*self._head(self.states(inputs)), targets)

    def summed_loss(self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor) -> Tensor:
        """Sums weighted cross-entropies, in nats."""
        return kernels.summed_cross_entropy(*self._head(self.states(inputs)), labels, weights)

    def evaluate_batch(
        self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor
    ) -> Tensor:
        """Computes `summed_loss` and the weight of correct predictions, (2,)."""
        return kernels.evaluate_batch(*self._head(self.states(inputs)), labels, weights)

    def _head(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        table, bias = self.output_weights()
        return ops.cast(states, self.compute_dtype), table, bias
