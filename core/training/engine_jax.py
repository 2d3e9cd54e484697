"""The training step as a pure function that JAX compiles.

`make_train_step` is what is compiled wherever this project trains or asks what training would cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from numpy.typing import NDArray

from core.training.batches import Batch
from core.training.engine import check_state, model_inputs, variables_by_path

Array = Any

# Steps that may be on their way to the device before the host waits for the oldest.
_STEPS_IN_FLIGHT = 16


class TrainState(NamedTuple):
    """All that a step changes, in the order of the Keras variables."""

    trainable: list[Array]
    non_trainable: list[Array]
    optimizer: list[Array]


class JaxEngine:
    """Trains a model on one device.

    Args:
        model: A built model. Between `read_state` calls its own variables are out of date.
        optimizer: Built for the model; None where nothing is trained.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._state = self._take_state()
        self._in_flight: deque[Array] = deque()
        if optimizer is not None:
            self._train = jax.jit(make_train_step(model, optimizer), donate_argnums=0)
        self._evaluate = jax.jit(make_evaluate_step(model))

    def put(self, batch: Batch) -> dict[str, Array]:
        """Moves a batch to the device."""
        return {name: jax.device_put(values) for name, values in batch.items()}

    def train_step(self, batch: Mapping[str, Array]) -> Array:
        """Updates the weights and returns the batch's loss."""
        self._state, loss = self._train(self._state, batch)
        self._wait_for_room(loss)
        return loss

    def evaluate_step(self, batch: Mapping[str, Array]) -> Array:
        """Returns the sums of losses, of right predictions, and of weights, (3,)."""
        sums = self._evaluate(self._state.trainable, self._state.non_trainable, batch)
        self._wait_for_room(sums)
        return sums

    def fetch(self, values: Sequence[Array]) -> NDArray[np.float32]:
        """Waits for values of equal shape and returns them stacked."""
        return np.stack([np.asarray(value) for value in values])

    def read_state(self) -> dict[str, NDArray]:
        """Returns every weight, seed state and optimizer slot by path."""
        self._give_state_back()
        variables = variables_by_path(self.model, self.optimizer)
        # Copies: the next step is given these very buffers to write to.
        return {path: np.array(variable.value) for path, variable in variables.items()}

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        """Sets every weight, seed state and optimizer slot."""
        variables = variables_by_path(self.model, self.optimizer)
        check_state(variables, state)
        for path, variable in variables.items():
            variable.assign(jnp.asarray(state[path].astype(variable.dtype)))
        self._state = self._take_state()

    def _take_state(self) -> TrainState:
        return TrainState(
            trainable=_values(self.model.trainable_variables),
            non_trainable=_values(self.model.non_trainable_variables),
            optimizer=_values(self.optimizer.variables) if self.optimizer else [],
        )

    def _give_state_back(self) -> None:
        _assign(self.model.trainable_variables, self._state.trainable)
        _assign(self.model.non_trainable_variables, self._state.non_trainable)
        if self.optimizer:
            _assign(self.optimizer.variables, self._state.optimizer)

    def _wait_for_room(self, result: Array) -> None:
        self._in_flight.append(result)
        if len(self._in_flight) > _STEPS_IN_FLIGHT:
            self._in_flight.popleft().block_until_ready()


def make_train_step(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, Array]]:
    """Returns the training step: state and batch to the next state and the loss."""

    def loss_of(
        trainable: list[Array], non_trainable: list[Array], batch: Mapping[str, Array]
    ) -> tuple[Array, list[Array]]:
        logits, non_trainable = model.stateless_call(
            trainable, non_trainable, model_inputs(batch), training=True
        )
        return token_losses(logits, batch).sum() / _total_weight(batch), non_trainable

    def train_step(state: TrainState, batch: Mapping[str, Array]) -> tuple[TrainState, Array]:
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, non_trainable), gradients = gradient(state.trainable, state.non_trainable, batch)
        trainable, slots = optimizer.stateless_apply(state.optimizer, gradients, state.trainable)
        return TrainState(trainable, non_trainable, slots), loss

    return train_step


def make_evaluate_step(
    model: keras.Model,
) -> Callable[[list[Array], list[Array], Mapping[str, Array]], Array]:
    """Returns the validation step: weights and batch to three sums."""

    def evaluate_step(
        trainable: list[Array], non_trainable: list[Array], batch: Mapping[str, Array]
    ) -> Array:
        logits, _ = model.stateless_call(
            trainable, non_trainable, model_inputs(batch), training=False
        )
        right = (jnp.argmax(logits, axis=-1) == batch["labels"]).astype(jnp.float32)
        weights = batch["label_weights"]
        losses = token_losses(logits, batch)
        return jnp.stack([losses.sum(), (right * weights).sum(), weights.sum()])

    return evaluate_step


def token_losses(logits: Array, batch: Mapping[str, Array]) -> Array:
    """Returns the weighted cross-entropy of each prediction in nats, float32 (B, K)."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen) * batch["label_weights"]


def _total_weight(batch: Mapping[str, Array]) -> Array:
    """Returns the sum of the weights, at least 1: a batch without predictions has loss 0."""
    return jnp.maximum(batch["label_weights"].sum(), 1.0)


def _values(variables: Sequence[keras.Variable]) -> list[Array]:
    return [variable.value for variable in variables]


def _assign(variables: Sequence[keras.Variable], values: Sequence[Array]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
