"""Optimizers, and the compiled step's learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import keras
from keras import ops

from core.backends.schedule import LearningRateSchedule
from core.config.options import settled
from core.config.train import TrainConfig

Tensor = Any

_backend: Any = import_module(f"core.backends.{keras.config.backend()}.optimizers")


class KerasSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, schedule: LearningRateSchedule) -> None:
        super().__init__()
        self.schedule = schedule
        self._numbers: Tensor = None

    def __call__(self, step: Tensor) -> Tensor:
        given = self._numbers
        numbers = None if given is None else ops.unstack(given, len(self.schedule.numbers))
        return self.schedule.at(ops.cast(step, "float32"), ops, numbers)

    def take_from(self, numbers: Any) -> None:
        """Reads the schedule's numbers, (6,), from a variable of the backend from now on."""
        self._numbers = numbers

    @contextmanager
    def given(self, numbers: Tensor) -> Iterator[None]:
        """Makes the schedule's numbers, (6,), inputs: constants would force recompilations."""
        self._numbers = numbers
        try:
            yield
        finally:
            self._numbers = None

    def get_config(self) -> dict[str, Any]:
        return {"schedule": self.schedule}


class AdamW(keras.optimizers.AdamW):
    """Keras's AdamW, fused on TensorFlow; gradients come already all-reduced.

    Source: https://arxiv.org/abs/1711.05101, algorithm 2. Unlike in optax and PyTorch, epsilon is
    added before bias correction.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        return list(grads_and_vars)

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        if not _backend.assigns_variables():
            super()._apply_weight_decay(variables)
            return
        # Keras recomputes the learning rate for each weight, which doubles the graph.
        factor = 1.0 - self._get_current_learning_rate() * self.weight_decay
        for variable in variables:
            if self._use_weight_decay(variable):
                # In place: two passes over the variable, not five.
                variable.value.assign(variable.value * factor)

    def _backend_update_step(
        self, grads: Sequence[Tensor], variables: Sequence[keras.Variable], learning_rate: Tensor
    ) -> None:
        if _backend.assigns_variables():
            self._update_all(grads, [variable.value for variable in variables], learning_rate)
        else:
            super()._backend_update_step(grads, variables, learning_rate)

    def _update_all(
        self, gradients: Sequence[Tensor], variables: Sequence[Any], learning_rate: Tensor
    ) -> None:
        """Updates the backend's variables, computing shared terms once."""
        powers = self._powers()
        for gradient, variable in zip(gradients, variables, strict=True):
            self._fused_update_step(gradient, variable, learning_rate, powers)

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        if _backend.HAS_FUSED_ADAM:
            self._fused_update_step(gradient, variable, learning_rate, self._powers())
        else:
            super().update_step(gradient, variable, learning_rate)

    def _powers(self) -> tuple[Tensor, Tensor]:
        step = ops.cast(self.iterations + 1, "float32")
        return ops.power(self.beta_1, step), ops.power(self.beta_2, step)

    def _fused_update_step(
        self, gradient: Tensor, variable: Any, learning_rate: Tensor, powers: tuple[Tensor, Tensor]
    ) -> None:
        index = self._get_variable_index(variable)
        _backend.fused_adam(
            gradient,
            variable,
            self._momentums[index].value,
            self._velocities[index].value,
            learning_rate,
            powers,
            (self.beta_1, self.beta_2, self.epsilon),
        )


class Muon(AdamW):
    """Orthogonalised momentum for kernels; AdamW for embeddings, norms and biases.

    Updates have AdamW's size (https://arxiv.org/abs/2502.16982, section 2.2), so both use one
    learning rate. Source: https://kellerjordan.github.io/posts/muon/.

    Args:
        adam_ratio: AdamW's fraction of the learning rate.
    """

    def __init__(
        self,
        *,
        momentum: float,
        adam_ratio: float,
        product_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.adam_ratio = adam_ratio
        self.product_dtype = product_dtype

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")
        rest = [variable for variable in variables if not _is_kernel(variable)]
        velocities = iter(self.add_optimizer_variables(rest, "velocity"))
        self._velocities = [
            None if _is_kernel(variable) else next(velocities) for variable in variables
        ]
        self._parts = [_parts_of(variable) for variable in variables]

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        if self._velocities[index] is not None:
            super().update_step(gradient, variable, learning_rate * self.adam_ratio)
            return
        parts = _side_by_side(self._look_ahead(gradient, variable), self._parts[index])
        self._move(variable, orthogonalise(parts, self.product_dtype), learning_rate)

    def _backend_update_step(
        self, grads: Sequence[Tensor], variables: Sequence[keras.Variable], learning_rate: Tensor
    ) -> None:
        if _backend.batches_kernels():
            rest = partial(self.update_step, learning_rate=learning_rate)
            self._update_kernels(grads, variables, learning_rate, rest)
        else:
            super()._backend_update_step(grads, variables, learning_rate)

    def _update_all(
        self, gradients: Sequence[Tensor], variables: Sequence[Any], learning_rate: Tensor
    ) -> None:
        rest_rate, powers = learning_rate * self.adam_ratio, self._powers()
        rest = partial(self._fused_update_step, learning_rate=rest_rate, powers=powers)
        self._update_kernels(gradients, variables, learning_rate, rest)

    def _update_kernels(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[Any],
        learning_rate: Tensor,
        update_other: Callable[[Tensor, Any], None],
    ) -> None:
        alike: dict[tuple[int, int], list[tuple[Any, Tensor]]] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            index = self._get_variable_index(variable)
            if self._velocities[index] is not None:
                update_other(gradient, variable)
                continue
            parts = _side_by_side(self._look_ahead(gradient, variable), self._parts[index])
            alike.setdefault(tuple(sorted(parts.shape[1:])), []).append((variable, parts))
        for members in alike.values():
            for some in _bounded(members, _TOGETHER):
                self._move_together(some, learning_rate)

    def _move_together(self, members: Sequence[tuple[Any, Tensor]], learning_rate: Tensor) -> None:
        wide = [_as_wide(parts) for _, parts in members]
        together = orthogonalise(ops.concatenate(wide, axis=0), self.product_dtype)
        start = 0
        for variable, parts in members:
            update = together[start : start + parts.shape[0]]
            start += parts.shape[0]
            self._move(variable, _as_wide(update, parts.shape), learning_rate)

    def _look_ahead(self, gradient: Tensor, variable: Any) -> Tensor:
        momentum = self._momentums[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, (gradient - momentum) * (1.0 - self.momentum))
        return gradient + (momentum - gradient) * self.momentum

    def _move(self, variable: Any, update: Tensor, learning_rate: Tensor) -> None:
        scale = _ADAM_LIKE_SIZE * max(update.shape[1:]) ** 0.5
        rate = ops.cast(learning_rate, variable.dtype) * scale
        self.assign_sub(variable, _joined(ops.cast(update, variable.dtype)) * rate)


class Adafactor(keras.optimizers.Optimizer):
    """Adafactor, as `optax.adafactor(learning_rate)`, relative to the weights.

    Source: https://arxiv.org/abs/1804.04235, algorithms 4 and 5.
    """

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._parts = [_parts_of(variable) for variable in variables]
        self._moments = [
            self._make_moments(variable, parts)
            for variable, parts in zip(variables, self._parts, strict=True)
        ]

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        parts = self._parts[index]
        gradient = _split_parts(ops.cast(gradient, variable.dtype), parts)
        update = gradient * self._inverse_roots(ops.square(gradient), self._moments[index])
        update = update / ops.maximum(_root_mean_square(update) / _LARGEST_UPDATE, 1.0)
        size = ops.maximum(_root_mean_square(_split_parts(variable, parts)), _SMALLEST_WEIGHT)
        step = update * size * ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, ops.reshape(ops.moveaxis(step, 0, -2), tuple(variable.shape)))

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        return list(grads_and_vars)  # Already summed over the devices.

    def _make_moments(self, variable: keras.Variable, parts: int) -> list[keras.Variable]:
        shape = (parts, *variable.shape[:-1], variable.shape[-1] // parts)
        shapes = {"moment": shape}
        if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_FACTORED:
            shapes = {"row": shape[:2], "column": (shape[0], shape[2])}
        path = variable.path.replace("/", "_")
        return [
            self.add_variable(shape=shape, initializer="zeros", name=f"{path}_{name}")
            for name, shape in shapes.items()
        ]

    def _inverse_roots(self, squares: Tensor, moments: list[keras.Variable]) -> Tensor:
        squares = squares + _SMALLEST_SQUARE
        if len(moments) == 1:
            return ops.rsqrt(self._renew(moments[0], squares))
        row = self._renew(moments[0], ops.mean(squares, axis=-1))
        column = self._renew(moments[1], ops.mean(squares, axis=-2))
        row = row / ops.mean(row, axis=-1, keepdims=True)
        return ops.rsqrt(row)[..., None] * ops.rsqrt(column)[..., None, :]

    def _renew(self, moment: keras.Variable, new: Tensor) -> Tensor:
        decay = 1.0 - ops.power(ops.cast(self.iterations + 1, moment.dtype), -_DECAY_POWER)
        value = moment * decay + new * (1.0 - decay)
        self.assign(moment, value)
        return value


# Defaults of `optax.adafactor`.
_SMALLEST_SQUARE = 1e-30
_SMALLEST_WEIGHT = 1e-3
_LARGEST_UPDATE = 1.0
_DECAY_POWER = 0.8
_SMALLEST_FACTORED = 128


def _split_parts(values: Tensor, parts: int) -> Tensor:
    """Splits (…, parts·n) into (parts, …, n)."""
    values = ops.convert_to_tensor(values)
    shape = tuple(values.shape)
    apart = ops.reshape(values, (*shape[:-1], parts, shape[-1] // parts))
    return ops.moveaxis(apart, -2, 0)


def _root_mean_square(parts: Tensor) -> Tensor:
    axes = tuple(range(1, len(parts.shape)))
    return ops.sqrt(ops.mean(ops.square(parts), axis=axes, keepdims=True))


def _is_kernel(variable: keras.Variable) -> bool:
    return bool(variable.path.endswith("/kernel"))


def _parts_of(variable: keras.Variable) -> int:
    return _FUSED_KERNELS.get(variable.path.split("/")[-2], 1)


# Numbers of matrices in fused kernels.
_FUSED_KERNELS = {"qkv": 3, "kv": 2, "gated_up": 2}

# Enough elements to fill a device; more would need memory for copies.
_TOGETHER = 1 << 25

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_ADAM_LIKE_SIZE = 0.2


def _side_by_side(matrix: Tensor, parts: int) -> Tensor:
    """Splits (m, parts·n) into (parts, m, n)."""
    rows, columns = matrix.shape
    return ops.transpose(ops.reshape(matrix, (rows, parts, columns // parts)), (1, 0, 2))


def _joined(parts: Tensor) -> Tensor:
    count, rows, width = parts.shape
    return ops.reshape(ops.transpose(parts, (1, 0, 2)), (rows, count * width))


def _bounded(
    members: Sequence[tuple[Any, Tensor]], most: int
) -> Iterator[list[tuple[Any, Tensor]]]:
    group: list[tuple[Any, Tensor]] = []
    elements = 0
    for member in members:
        size = math.prod(member[1].shape)
        if group and elements + size > most:
            yield group
            group, elements = [], 0
        group.append(member)
        elements += size
    yield group


def _as_wide(parts: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Transposes (p, m, n) so that m ≤ n, or back to `shape`."""
    rows, columns = (shape or parts.shape)[1:]
    return parts if rows <= columns else ops.transpose(parts, (0, 2, 1))


def orthogonalise(matrices: Tensor, dtype: str = "float32") -> Tensor:
    """Approximates the orthogonal matrix nearest to each of (p, m, n)."""
    size = ops.sqrt(ops.sum(ops.square(matrices), axis=(1, 2), keepdims=True)) + 1e-7
    x = ops.cast(_as_wide(matrices / size), dtype)
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        x = first * x + ops.matmul(third * square + fifth * ops.matmul(square, square), x)
    return _as_wide(x, matrices.shape)


def schedule_of(optimizer: keras.optimizers.Optimizer) -> KerasSchedule:
    """Returns an optimizer's schedule."""
    schedule = optimizer._learning_rate  # `learning_rate` is its current value.
    assert isinstance(schedule, KerasSchedule)
    return schedule


def create_optimizer(
    config: TrainConfig, schedule: LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """Creates a config's optimizer, not yet built."""
    settings: dict[str, Any] = {
        "learning_rate": KerasSchedule(schedule),
        "weight_decay": settled(config.weight_decay),
        "beta_1": config.adam_beta1,
        "beta_2": settled(config.adam_beta2),
        "epsilon": config.adam_epsilon,
        "global_clipnorm": config.max_grad_norm,
        "name": config.optimizer,
    }
    if config.optimizer == "adamw":
        return AdamW(**settings)
    if config.optimizer == "adafactor":
        names = ("learning_rate", "global_clipnorm", "name")
        return Adafactor(**{name: settings[name] for name in names})
    return Muon(
        momentum=config.muon_momentum,
        adam_ratio=config.adam_learning_rate_ratio,
        product_dtype="bfloat16" if config.dtype_policy == "mixed_bfloat16" else "float32",
        **settings,
    )


def build_optimizer(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Creates the slots; norms and biases take no weight decay."""
    undecayed = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
    optimizer.exclude_from_weight_decay(var_list=undecayed)
    optimizer.build(model.trainable_variables)
