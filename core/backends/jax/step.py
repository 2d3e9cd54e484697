"""JAX backend: the training step as a pure function."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
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
from core.backends.jax.mesh import DeviceMesh, to_devices, to_host
from core.backends.optimizers import KerasSchedule, schedule_of
from core.backends.schedule import LearningRateSchedule
from core.models.head import LanguageModel
from core.objectives.objective import Batch

Array = Any
TrainStep = Callable[["TrainState", Mapping[str, Array]], "tuple[TrainState, Array]"]

# Steps dispatched before the host waits.
_STEPS_IN_FLIGHT = 16
# The most steps that one process may run ahead of another.
_STEPS_TO_AGREE = 2


class TrainState(NamedTuple):
    """Arrays that a step updates."""

    trainable: list[Array]
    non_trainable: list[Array]
    optimizer: list[Array]


class JaxBackend:
    """Trains a model on JAX devices; its Keras variables are stale."""

    def __init__(self, build: Build, devices: Devices, options: BackendOptions) -> None:
        self._devices = devices
        self._parts = options.gradient_accumulation_steps
        self._mesh = _mesh_of(devices, options)
        # Initialise sharded weights on the host: they may not fit on one device.
        host = jax.local_devices(backend="cpu")[0] if self._mesh else None
        with jax.default_device(host) if host else nullcontext():
            self.model, self.optimizer = build()
        self._state = self._take_state()
        self._in_flight: deque[Array] = deque()
        self._flags: deque[Array] = deque()
        self._compile()

    def part(self, batch_size: int) -> slice:
        return self._devices.part(batch_size)

    def put(self, batch: Batch, number: int | None = None) -> dict[str, Array]:
        parts = 1 if number is None else self._parts
        arrays = {name: self._put_sharded(values, parts) for name, values in batch.items()}
        if number is not None:
            seeds = dropout_seeds(number, parts)
            arrays["dropout_seed"] = self._put_replicated(seeds if parts > 1 else seeds[0])
        return arrays

    def train_step(self, batch: Mapping[str, Array]) -> Array:
        return self.train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Mapping[str, Array]]) -> Array:
        self._state, losses = self._train(self._state, list(batches), self._schedule)
        self._wait_for_room(losses)
        return losses

    def evaluate_step(self, batch: Mapping[str, Array]) -> Array:
        sums = self._evaluate(self._state.trainable, self._state.non_trainable, batch)
        self._wait_for_room(sums)
        return sums

    def predict_step(self, batch: Mapping[str, Array]) -> Array:
        logits = self._predict(self._state.trainable, self._state.non_trainable, batch)
        self._wait_for_room(logits)
        return logits

    def set_schedule(self, schedule: LearningRateSchedule) -> None:
        self._schedule = self._put_replicated(np.array(schedule.numbers, np.float32))

    def fetch(self, values: Sequence[Array]) -> NDArray[np.float32]:
        return np.stack([to_host(value) for value in values])

    def agree(self, flag: int) -> int:
        if self._devices.processes == 1:
            return flag
        assert self._mesh is not None
        local_flags = np.full(self._devices.count // self._devices.processes, flag, np.int32)
        rows = jax.make_array_from_process_local_data(self._mesh.rows(), local_flags)
        self._flags.append(self._largest(rows))
        if len(self._flags) <= _STEPS_TO_AGREE:
            return 0
        return int(to_host(self._flags.popleft()))

    def read_state(self) -> dict[str, NDArray]:
        # Copies, since the next step overwrites these buffers.
        return {
            variable.path: to_host(value)
            for variables, values in zip(self._variables(), self._state, strict=True)
            for variable, value in zip(variables, values, strict=True)
        }

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        check_state(variables_by_path(self.model, self.optimizer), state)
        # Free first: a device may not hold both copies.
        for array in jax.tree.leaves(self._state):
            array.delete()
        self._state = TrainState(
            *(
                [
                    self._put_weight(state[variable.path].astype(variable.dtype))
                    for variable in variables
                ]
                for variables in self._variables()
            )
        )

    def _compile(self) -> None:
        within = self._mesh.within if self._mesh else lambda function: function
        shardings = None if self._mesh is None else self._shardings()
        if self.optimizer is not None:
            step = make_train_step(self.model, self.optimizer, self._parts)
            schedule = schedule_of(self.optimizer)
            self._schedule = self._put_replicated(np.array(schedule.schedule.numbers, np.float32))
            self._train = jax.jit(
                within(make_train_steps(step, schedule)), donate_argnums=0, out_shardings=shardings
            )
        whole = None if self._mesh is None else self._mesh.whole()
        self._evaluate = jax.jit(within(make_evaluate_step(self.model)), out_shardings=whole)
        self._predict = jax.jit(within(make_predict_step(self.model)), out_shardings=whole)
        self._largest = jax.jit(jnp.max, out_shardings=whole)

    def _shardings(self) -> tuple[TrainState, Any]:
        assert self._mesh is not None
        state = [[array.sharding for array in values] for values in self._state]
        return TrainState(*state), self._mesh.whole()

    def _variables(self) -> list[list[keras.Variable]]:
        return [
            self.model.trainable_variables,
            self.model.non_trainable_variables,
            self.optimizer.variables if self.optimizer else [],
        ]

    def _take_state(self) -> TrainState:
        return TrainState(
            *(
                [self._placed(variable.value) for variable in variables]
                for variables in self._variables()
            )
        )

    def _placed(self, value: Array) -> Array:
        return value if self._mesh is None else self._put_weight(np.asarray(value))

    def _put_weight(self, array: NDArray) -> Array:
        if self._mesh is None:
            return jnp.asarray(array)
        return to_devices(array, self._mesh.weight(array.shape))

    def _put_replicated(self, array: NDArray) -> Array:
        return (
            jax.device_put(array) if self._mesh is None else to_devices(array, self._mesh.whole())
        )

    def _put_sharded(self, values: NDArray, parts: int) -> Array:
        if self._mesh is None:
            check_divisible(len(values), 1, parts)
            return jax.device_put(_split_micro_batches(values, 1, parts))
        local = self._devices.count // self._devices.processes
        check_divisible(len(values) * self._devices.processes, self._devices.count, parts)
        rows = self._mesh.rows(axis=0 if parts == 1 else 1)
        return jax.make_array_from_process_local_data(
            rows, _split_micro_batches(values, local, parts)
        )

    def _wait_for_room(self, result: Array) -> None:
        self._in_flight.append(result)
        if len(self._in_flight) > _STEPS_IN_FLIGHT:
            self._in_flight.popleft().block_until_ready()


def make_train_steps(
    step: TrainStep, schedule: KerasSchedule
) -> Callable[..., tuple[TrainState, Array]]:
    """Combines steps; the schedule's numbers are arguments, lest new ones recompile."""

    def train_steps(
        state: TrainState, batches: list[Mapping[str, Array]], numbers: Array
    ) -> tuple[TrainState, Array]:
        with schedule.given(numbers):
            if len(batches) == 1:
                state, loss = step(state, batches[0])
                return state, loss[None]
            stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *batches)
            return jax.lax.scan(step, state, stacked)

    return train_steps


def make_train_step(
    model: LanguageModel, optimizer: keras.optimizers.Optimizer, parts: int = 1
) -> TrainStep:
    """Builds the training step; with several `parts`, arrays are (parts, B, …)."""

    def loss_of(
        trainable: list[Array],
        non_trainable: list[Array],
        batch: Mapping[str, Array],
        weight: Array,
    ) -> Array:
        with weights_of(model, trainable, non_trainable):
            return model.summed_loss(*learned_from(batch)) / weight

    gradient = jax.value_and_grad(loss_of)

    def accumulate(
        state: TrainState, batch: Mapping[str, Array], weight: Array
    ) -> tuple[Array, list[Array]]:
        def add(sums: Any, part: Mapping[str, Array]) -> tuple[Any, None]:
            gradients = gradient(state.trainable, state.non_trainable, part, weight)
            return jax.tree.map(jnp.add, sums, gradients), None

        zeros = (jnp.zeros(()), [jnp.zeros_like(weight) for weight in state.trainable])
        return jax.lax.scan(add, zeros, batch)[0]

    def train_step(state: TrainState, batch: Mapping[str, Array]) -> tuple[TrainState, Array]:
        weight = _total_weight(batch)
        if parts > 1:
            loss, gradients = accumulate(state, batch, weight)
        else:
            loss, gradients = gradient(state.trainable, state.non_trainable, batch, weight)
        trainable, slots = optimizer.stateless_apply(state.optimizer, gradients, state.trainable)
        return TrainState(trainable, state.non_trainable, slots), loss

    return train_step


def make_evaluate_step(
    model: LanguageModel,
) -> Callable[[list[Array], list[Array], Mapping[str, Array]], Array]:
    """Builds the validation step, which returns sums, (3,)."""

    def evaluate_step(
        trainable: list[Array], non_trainable: list[Array], batch: Mapping[str, Array]
    ) -> Array:
        with weights_of(model, trainable, non_trainable):
            sums = model.evaluate_batch(*learned_from(batch))
        return jnp.append(sums, batch["label_weights"].sum())

    return evaluate_step


def make_predict_step(
    model: LanguageModel,
) -> Callable[[list[Array], list[Array], Mapping[str, Array]], Array]:
    """Builds the step that returns logits."""

    def predict_step(
        trainable: list[Array], non_trainable: list[Array], batch: Mapping[str, Array]
    ) -> Array:
        with weights_of(model, trainable, non_trainable):
            return model.call(inputs_of(batch))

    return predict_step


def weights_of(
    model: LanguageModel, trainable: list[Array], non_trainable: list[Array]
) -> keras.StatelessScope:
    """Makes the model use the given weights in a scope."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return keras.StatelessScope(zip(variables, [*trainable, *non_trainable], strict=True))


def _total_weight(batch: Mapping[str, Array]) -> Array:
    """Returns at least 1: a batch without predictions has loss 0."""
    return jnp.maximum(batch["label_weights"].sum(), 1.0)


def _mesh_of(devices: Devices, options: BackendOptions) -> DeviceMesh | None:
    if devices.count == 1:
        return None
    per_process = devices.count // devices.processes
    chosen: list[jax.Device] = []
    for process in range(devices.processes):
        of_process = [device for device in jax.devices() if device.process_index == process]
        chosen += of_process[:per_process]
    return DeviceMesh(chosen, options.sharding)


def _split_micro_batches(values: NDArray, devices: int, parts: int) -> NDArray:
    """Reshapes (B, …) to (parts, B / parts, …) on each device."""
    if parts == 1:
        return values
    rows = values.reshape(devices, parts, -1, *values.shape[1:])
    return np.swapaxes(rows, 0, 1).reshape(parts, -1, *values.shape[1:])
