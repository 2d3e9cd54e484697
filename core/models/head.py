"""What all models end with: states, each of which is compared with all words.

A family says what its states are, and which table they are compared with. From that come logits,
to answer with, and losses, to learn from, for which the logits of a large vocabulary are never held
all at once.
"""

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
        """Returns what tokens are predicted from, (B, K, H); a family says from which inputs."""
        raise NotImplementedError

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Returns the table that states are compared with, (V, H), and a bias (V,) or None."""
        raise NotImplementedError

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the logits, float32 (B, K, V); see `states` for the inputs."""
        return self.decode(self.states(inputs))

    def decode(self, states: Tensor) -> Tensor:
        """Returns the logits of some states, float32 (B, K, V)."""
        return kernels.tied_logits(*self._head(states))

    def summed_loss(self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor) -> Tensor:
        """Returns the weighted sum of the cross-entropies, in nats, a float32.

        Args:
            inputs: See `states`.
            labels: The tokens that are to be predicted, int32 (B, K).
            weights: What each counts, float32 (B, K).
        """
        return kernels.summed_cross_entropy(*self._head(self.states(inputs)), labels, weights)

    def judge(self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor) -> Tensor:
        """Returns what `summed_loss` does, and the weights of right predictions, float32 (2,).

        It has no gradient.
        """
        return kernels.judge(*self._head(self.states(inputs)), labels, weights)

    def _head(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        table, bias = self.output_weights()
        return ops.cast(states, self.compute_dtype), table, bias
