"""The training step as a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from core.training.batches import Batch
from core.training.engine import check_state, model_inputs, variables_by_path

Tensor = Any


class TensorFlowEngine:
    """Trains a model on one device.

    Args:
        model: A built model.
        optimizer: Built for the model; None where nothing is trained.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        # On CPU the graph is as fast as XLA at small sizes, and ready in half the time.
        self._train = tf.function(self._train_step, autograph=False, jit_compile=False)
        self._evaluate = tf.function(self._evaluate_step, autograph=False, jit_compile=False)

    def put(self, batch: Batch) -> dict[str, Tensor]:
        """Moves a batch to the device."""
        return {name: tf.convert_to_tensor(values) for name, values in batch.items()}

    def train_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Updates the weights and returns the batch's loss."""
        return self._train(batch)

    def evaluate_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the sums of losses, of right predictions, and of weights, (3,)."""
        return self._evaluate(batch)

    def fetch(self, values: Sequence[Tensor]) -> NDArray[np.float32]:
        """Waits for values of equal shape and returns them stacked."""
        return np.stack([value.numpy() for value in values])

    def read_state(self) -> dict[str, NDArray]:
        """Returns every weight, seed state and optimizer slot by path."""
        variables = variables_by_path(self.model, self.optimizer)
        return {path: np.asarray(variable.numpy()) for path, variable in variables.items()}

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        """Sets every weight, seed state and optimizer slot."""
        variables = variables_by_path(self.model, self.optimizer)
        check_state(variables, state)
        for path, variable in variables.items():
            variable.assign(state[path].astype(variable.dtype))

    def _train_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        assert self.optimizer is not None
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            losses = token_losses(self.model(model_inputs(batch), training=True), batch)
            loss = tf.reduce_sum(losses) / _total_weight(batch)
        gradients = tape.gradient(
            loss,
            [variable.value for variable in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        self.optimizer.apply(gradients, variables)
        return loss

    def _evaluate_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        logits = self.model(model_inputs(batch), training=False)
        right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), batch["labels"])
        weights = batch["label_weights"]
        return tf.stack(
            [
                tf.reduce_sum(token_losses(logits, batch)),
                tf.reduce_sum(tf.cast(right, tf.float32) * weights),
                tf.reduce_sum(weights),
            ]
        )


def token_losses(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the weighted cross-entropy of each prediction in nats, float32 (B, K)."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=batch["labels"], logits=tf.cast(logits, tf.float32)
    )
    return losses * batch["label_weights"]


def _total_weight(batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum of the weights, at least 1: a batch without predictions has loss 0."""
    return tf.maximum(tf.reduce_sum(batch["label_weights"]), 1.0)
