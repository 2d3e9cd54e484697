"""TensorFlow backend: the training step as a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from core.backends.base import (
    BackendOptions,
    Build,
    check_divisible,
    check_state,
    dropout_seeds,
    inputs_of,
    learned_from,
    variables_by_path,
)
from core.backends.devices import Devices
from core.backends.optimizers import schedule_of
from core.backends.schedule import LearningRateSchedule
from core.objectives.objective import Batch

if TYPE_CHECKING:
    from core.backends.jax.exchange import ProcessExchange

Tensor = Any


class TensorFlowBackend:
    """Trains a model with replicated weights; processes exchange gradients on the host."""

    def __init__(self, build: Build, devices: Devices, options: BackendOptions) -> None:
        self._parts = options.gradient_accumulation_steps
        self._devices = devices
        # Of this process.
        self._replicas = devices.count // devices.processes
        self._exchange = _exchange_between(devices)
        self._strategy = devices.strategy or tf.distribute.get_strategy()
        with self._strategy.scope():
            self.model, self.optimizer = build()
        # At small sizes on CPU the graph is as fast as XLA and compiles in half the time.
        self._train = tf.function(self._train_all, autograph=False, jit_compile=False)
        self._evaluate = tf.function(self._evaluate_all, autograph=False, jit_compile=False)
        self._predict = tf.function(self._logits, autograph=False, jit_compile=False)
        self._sum_here = tf.function(self._sum_all, autograph=False, jit_compile=False)
        self._apply_sums = tf.function(self._apply_all, autograph=False, jit_compile=False)
        self._schedule: tf.Variable | None = None

    def part(self, batch_size: int) -> slice:
        return self._devices.part(batch_size)

    def put(self, batch: Batch, number: int | None = None) -> dict[str, Tensor]:
        parts = 1 if number is None else self._parts
        rows = len(next(iter(batch.values())))
        check_divisible(rows * self._devices.processes, self._devices.count, parts)
        first_replica = self._replicas * self._devices.process

        def share(replica: int) -> dict[str, Tensor]:
            first, count = rows // self._replicas * replica, rows // self._replicas
            arrays = {
                name: _split_micro_batches(values[first : first + count], parts)
                for name, values in batch.items()
            }
            if number is not None:
                seeds = dropout_seeds(number, parts, first_replica + replica)
                arrays["dropout_seed"] = seeds if parts > 1 else seeds[0]
            return {name: tf.convert_to_tensor(values) for name, values in arrays.items()}

        if self._replicas == 1:
            return share(0)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: share(context.replica_id_in_sync_group)
        )

    def train_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        if self._exchange is None:
            return self._train(list(batches))
        return tf.stack([self._shared_step(batch, self._exchange) for batch in batches])

    def evaluate_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        sums = self._evaluate(batch)
        if self._exchange is None:
            return sums
        return tf.convert_to_tensor(self._exchange.sum(sums.numpy()))

    def predict_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._predict(batch)

    def set_schedule(self, schedule: LearningRateSchedule) -> None:
        numbers = np.array(schedule.numbers, np.float32)
        if self._schedule is None:
            assert self.optimizer is not None
            self._schedule = tf.Variable(numbers, trainable=False)
            schedule_of(self.optimizer).take_from(self._schedule)
        self._schedule.assign(numbers)

    def fetch(self, values: Sequence[Tensor]) -> NDArray[np.float32]:
        return np.stack([value.numpy() for value in values])

    def agree(self, flag: int) -> int:
        return flag if self._exchange is None else self._exchange.largest(flag)

    def read_state(self) -> dict[str, NDArray]:
        variables = variables_by_path(self.model, self.optimizer)
        return {path: np.asarray(variable.numpy()) for path, variable in variables.items()}

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        variables = variables_by_path(self.model, self.optimizer)
        check_state(variables, state)
        for path, variable in variables.items():
            variable.assign(state[path].astype(variable.dtype))

    def _train_all(self, batches: list[Mapping[str, Tensor]]) -> Tensor:
        return tf.stack([self._on_all(self._train_step, batch) for batch in batches])

    def _shared_step(self, batch: Mapping[str, Tensor], exchange: ProcessExchange) -> Tensor:
        return self._apply_sums(exchange.sum(self._sum_here(batch).numpy()))

    def _sum_all(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._on_all(self._sums, batch)

    def _apply_all(self, sums: Tensor) -> Tensor:
        return self._on_all(self._apply, sums)

    def _sums(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns this process's summed loss, weight and gradients, in one vector."""
        loss, gradients = self._gradients(batch, tf.constant(1.0))
        firsts = tf.stack([loss, tf.reduce_sum(batch["label_weights"])])
        flat = [tf.reshape(tf.convert_to_tensor(gradient), [-1]) for gradient in gradients]
        return self._sum(tf.concat([firsts, *flat], axis=0))

    def _apply(self, sums: Tensor) -> Tensor:
        """Updates the weights with the sums of all processes; returns the loss."""
        assert self.optimizer is not None
        variables = self.model.trainable_variables
        sizes = [math.prod(variable.shape) for variable in variables]
        loss, weight, *flat = tf.split(sums, [1, 1, *sizes])
        weight = tf.maximum(weight[0], 1.0)
        gradients = [
            tf.reshape(gradient / weight, variable.shape)
            for gradient, variable in zip(flat, variables, strict=True)
        ]
        self.optimizer.apply(gradients, variables)
        return loss[0] / weight

    def _logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.model.call(inputs_of(batch))

    def _evaluate_all(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._on_all(self._evaluate_step, batch)

    def _on_all(self, step: Callable[..., Tensor], value: Any) -> Tensor:
        if self._replicas == 1:
            return step(value)
        return self._strategy.experimental_local_results(self._strategy.run(step, (value,)))[0]

    def _sum(self, value: Tensor) -> Tensor:
        if self._replicas == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce("sum", value)

    def _train_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        assert self.optimizer is not None
        weight = tf.maximum(self._sum(tf.reduce_sum(batch["label_weights"])), 1.0)
        loss, gradients = self._gradients(batch, weight)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        self.optimizer.apply(
            gradients if self._replicas == 1 else self._sum(gradients),
            self.model.trainable_variables,
        )
        return self._sum(loss)

    def _gradients(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, list[Any]]:
        if self._parts == 1:
            return self._micro_batch_gradients(batch, weight)

        def add(part: Tensor, loss: Tensor, sums: list[Tensor]) -> Any:
            rows = {name: values[part] for name, values in batch.items()}
            more, gradients = self._micro_batch_gradients(rows, weight)
            pairs = zip(sums, gradients, strict=True)
            totals = [total + tf.convert_to_tensor(gradient) for total, gradient in pairs]
            return part + 1, loss + more, totals

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.model.trainable_variables]
        _, loss, sums = tf.while_loop(
            lambda part, *_: part < self._parts,
            add,
            (tf.constant(0), tf.constant(0.0), zeros),
            parallel_iterations=1,
        )
        return loss, sums

    def _micro_batch_gradients(
        self, batch: Mapping[str, Tensor], weight: Tensor
    ) -> tuple[Tensor, list[Any]]:
        with tf.GradientTape() as tape:
            loss = self.model.summed_loss(*learned_from(batch)) / weight
        gradients = tape.gradient(
            loss,
            [variable.value for variable in self.model.trainable_variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss, gradients

    def _evaluate_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        sums = self.model.evaluate_batch(*learned_from(batch))
        return self._sum(tf.concat([sums, [tf.reduce_sum(batch["label_weights"])]], axis=0))


def _exchange_between(devices: Devices) -> ProcessExchange | None:
    if devices.processes == 1:
        return None
    from core.backends.jax.exchange import ProcessExchange

    return ProcessExchange()


def _split_micro_batches(values: NDArray, parts: int) -> NDArray:
    return values if parts == 1 else values.reshape(parts, -1, *values.shape[1:])
