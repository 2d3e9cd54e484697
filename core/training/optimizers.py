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

    The gradient of an embedding lookup is a list of rows there, in which an id that occurs twice
    stands twice; AdamW would square each by itself instead of their sum. And a dozen passes over
    every weight are done in one kernel, with the same formula.

    Source: https://arxiv.org/abs/1711.05101, algorithm 2.
    """

    def apply(self, grads: Sequence[Tensor], trainable_variables: Any = None) -> None:
        super().apply([_dense(gradient) for gradient in grads], trainable_variables)

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


def create_optimizer(
    config: TrainConfig, schedule: LearningRateSchedule, model: keras.Model
) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a config, built for a model.

    Norms and biases, which are the weights of rank 1, take no weight decay.
    """
    optimizer = AdamW(
        learning_rate=KerasSchedule(schedule),
        weight_decay=config.weight_decay,
        beta_1=config.adam_beta1,
        beta_2=config.adam_beta2,
        epsilon=config.adam_epsilon,
        global_clipnorm=config.max_grad_norm,
        name="adamw",
    )
    undecayed = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
    optimizer.exclude_from_weight_decay(var_list=undecayed)
    optimizer.build(model.trainable_variables)
    return optimizer


def _dense(gradient: Tensor) -> Tensor:
    """Sums the rows of a TensorFlow `IndexedSlices`; any other gradient is left as it is."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)
