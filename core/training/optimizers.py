"""Optimizers, and the learning-rate schedule as the compiled step sees it.

Imports Keras: to be imported only after the engine was chosen. A further optimizer is another
class here and another line in `create_optimizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from core.config import TrainConfig
from core.training.recipe import LearningRateSchedule

Tensor = Any


class KerasSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule that is computed within the compiled step."""

    def __init__(self, schedule: LearningRateSchedule) -> None:
        super().__init__()
        self.schedule = schedule

    def __call__(self, step: Tensor) -> Tensor:
        return self.schedule.at(ops.cast(step, "float32"), ops)

    def get_config(self) -> dict[str, Any]:
        return {"schedule": self.schedule}


class AdamW(keras.optimizers.AdamW):
    """AdamW as Keras has it, with two repairs for TensorFlow.

    A dozen passes over every weight are done in one kernel, with the same formula. And gradients
    are expected to be summed over the devices already, before they are clipped.

    Source: https://arxiv.org/abs/1711.05101, algorithm 2.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        return list(grads_and_vars)

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        if keras.backend.backend() == "tensorflow":
            self._fused_update_step(gradient, variable, learning_rate)
        else:
            super().update_step(gradient, variable, learning_rate)

    def _fused_update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        import tensorflow as tf

        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.cast(tf.pow(self.beta_1, step), variable.dtype),
            beta2_power=tf.cast(tf.pow(self.beta_2, step), variable.dtype),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )


class Muon(AdamW):
    """Orthogonalised momentum for the kernels; AdamW for tables, norms and biases.

    A step moves a kernel by the nearest orthogonal matrix to its momentum, scaled to the size that
    AdamW's steps have, so that both take one learning rate. The fused kernel of query, key and
    value counts as three.

    Source: Jordan et al., https://kellerjordan.github.io/posts/muon/; the scale is that of Liu et
    al., "Muon is Scalable for LLM Training", https://arxiv.org/abs/2502.16982, section 2.2.

    Args:
        momentum: Of the kernels.
        adam_ratio: AdamW's learning rate as a share of the learning rate.
        **kwargs: As AdamW's.
    """

    def __init__(self, *, momentum: float, adam_ratio: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.adam_ratio = adam_ratio

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")
        rest = [variable for variable in variables if not _is_kernel(variable)]
        velocities = iter(self.add_optimizer_variables(rest, "velocity"))
        self._velocities = [None if _is_kernel(one) else next(velocities) for one in variables]
        self._parts = [_parts_of(one) for one in variables]

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        if self._velocities[index] is not None:
            super().update_step(gradient, variable, learning_rate * self.adam_ratio)
            return
        momentum = self._momentums[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, (gradient - momentum) * (1.0 - self.momentum))
        nesterov = gradient + (momentum - gradient) * self.momentum
        update = _orthogonalise_parts(nesterov, self._parts[index])
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * update)


class Adafactor(keras.optimizers.Optimizer):
    """Adam's second moments as a row and a column for each matrix, and no momentum.

    A step is as large as the weight is: the learning rate is a share of its root mean square.
    Matrices that stand side by side in a fused kernel count by themselves. The arithmetic is that
    of `optax.adafactor(learning_rate)`, which the Flax example of T5 uses; there is no weight
    decay.

    Source: Shazeer & Stern, https://arxiv.org/abs/1804.04235, algorithms 4 and 5.
    """

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._parts = [_parts_of(one) for one in variables]
        self._moments = [
            self._make_moments(one, parts)
            for one, parts in zip(variables, self._parts, strict=True)
        ]

    def update_step(self, gradient: Tensor, variable: Tensor, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        parts = self._parts[index]
        gradient = _split_parts(ops.cast(gradient, variable.dtype), parts)
        update = gradient * self._inverse_roots(ops.square(gradient), self._moments[index])
        update = update / ops.maximum(_root_mean_square(update) / _LARGEST_UPDATE, 1.0)
        size = ops.maximum(_root_mean_square(_split_parts(variable, parts)), _SMALLEST_WEIGHT)
        step = update * size * ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, _join_parts(step, variable.shape))

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        return list(grads_and_vars)  # They are summed over the devices already.

    def _make_moments(self, variable: keras.Variable, parts: int) -> list[keras.Variable]:
        shape = (parts, *variable.shape[:-1], variable.shape[-1] // parts)
        shapes = {"moment": shape}
        if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_FACTORED:
            shapes = {"row": shape[:2], "column": (shape[0], shape[2])}
        path = variable.path.replace("/", "_")
        return [
            self.add_variable(shape=one, initializer="zeros", name=f"{path}_{name}")
            for name, one in shapes.items()
        ]

    def _inverse_roots(self, squares: Tensor, moments: list[keras.Variable]) -> Tensor:
        """Returns 1 / √(mean square of the gradients so far), for each element."""
        squares = squares + _SMALLEST_SQUARE
        if len(moments) == 1:
            return ops.rsqrt(self._renew(moments[0], squares))
        row = self._renew(moments[0], ops.mean(squares, axis=-1))
        column = self._renew(moments[1], ops.mean(squares, axis=-2))
        row = row / ops.mean(row, axis=-1, keepdims=True)
        return ops.rsqrt(row)[..., None] * ops.rsqrt(column)[..., None, :]

    def _renew(self, moment: keras.Variable, new: Tensor) -> Tensor:
        kept = 1.0 - ops.power(ops.cast(self.iterations + 1, moment.dtype), -_DECAY_POWER)
        value = moment * kept + new * (1.0 - kept)
        self.assign(moment, value)
        return value


# Adafactor's constants. Source: the paper's section 9, and the defaults of `optax.adafactor`.
_SMALLEST_SQUARE = 1e-30
_SMALLEST_WEIGHT = 1e-3
_LARGEST_UPDATE = 1.0
_DECAY_POWER = 0.8
_SMALLEST_FACTORED = 128


def _split_parts(values: Tensor, parts: int) -> Tensor:
    """Returns what stands side by side, (…, parts·n), one after the other, (parts, …, n)."""
    values = ops.convert_to_tensor(values)
    shape = tuple(values.shape)
    apart = ops.reshape(values, (*shape[:-1], parts, shape[-1] // parts))
    return ops.moveaxis(apart, -2, 0)


def _join_parts(values: Tensor, shape: Sequence[int]) -> Tensor:
    return ops.reshape(ops.moveaxis(values, 0, -2), tuple(shape))


def _root_mean_square(parts: Tensor) -> Tensor:
    """Returns each part's, broadcast to (parts, …, n)."""
    axes = tuple(range(1, len(parts.shape)))
    return ops.sqrt(ops.mean(ops.square(parts), axis=axes, keepdims=True))


def _is_kernel(variable: keras.Variable) -> bool:
    return bool(variable.path.endswith("/kernel"))


def _parts_of(variable: keras.Variable) -> int:
    """Returns how many matrices, or biases, stand side by side in a weight."""
    return _FUSED_KERNELS.get(variable.path.split("/")[-2], 1)


# Kernels that hold several matrices side by side, and how many.
_FUSED_KERNELS = {"qkv": 3, "kv": 2, "gated_up": 2}

# The quintic iteration's coefficients, and how often it is done.
# Source: https://kellerjordan.github.io/posts/muon/
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_ADAM_LIKE_SIZE = 0.2


def _orthogonalise_parts(matrix: Tensor, parts: int) -> Tensor:
    """Orthogonalises the `parts` matrices that stand side by side in (m, parts·n), and scales."""
    rows, columns = matrix.shape
    width = columns // parts
    stacked = ops.transpose(ops.reshape(matrix, (rows, parts, width)), (1, 0, 2))
    update = orthogonalise(stacked) * (_ADAM_LIKE_SIZE * max(rows, width) ** 0.5)
    return ops.reshape(ops.transpose(update, (1, 0, 2)), (rows, columns))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Returns about the nearest orthogonal matrix to each of (p, m, n), by Newton and Schulz."""
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else ops.transpose(matrices, (0, 2, 1))
    x = x / (ops.sqrt(ops.sum(ops.square(x), axis=(1, 2), keepdims=True)) + 1e-7)
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        x = first * x + ops.matmul(third * square + fifth * ops.matmul(square, square), x)
    return x if wide else ops.transpose(x, (0, 2, 1))


def create_optimizer(
    config: TrainConfig, schedule: LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a config, not yet built for a model."""
    settings: dict[str, Any] = {
        "learning_rate": KerasSchedule(schedule),
        "weight_decay": config.weight_decay,
        "beta_1": config.adam_beta1,
        "beta_2": config.adam_beta2,
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
        momentum=config.muon_momentum, adam_ratio=config.adam_learning_rate_ratio, **settings
    )


def build_optimizer(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Makes the optimizer's slots for a model's weights.

    Norms and biases, which are the weights of rank 1, take no weight decay.
    """
    undecayed = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
    optimizer.exclude_from_weight_decay(var_list=undecayed)
    optimizer.build(model.trainable_variables)
