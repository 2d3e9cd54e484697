"""TensorFlow's part of `core.backends.optimizers`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any

HAS_FUSED_ADAM = True


def assigns_variables() -> bool:
    """Returns True if a step assigns variables itself: no distribution strategy is used."""
    return bool(tf.distribute.get_strategy().num_replicas_in_sync == 1)


def batches_kernels() -> bool:
    """Returns False: Muon batches kernels only if `assigns_variables`."""
    return False


def fused_adam(
    gradient: Tensor,
    variable: Any,
    momentum: Any,
    velocity: Any,
    learning_rate: Tensor,
    powers: tuple[Tensor, Tensor],
    constants: tuple[float, float, float],
) -> None:
    """Updates a variable and its slots in one kernel.

    Args:
        powers: The betas to the power of the step.
        constants: Both betas, and epsilon.
    """
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=powers[0],
        beta2_power=powers[1],
        lr=tf.cast(learning_rate, variable.dtype),
        beta1=constants[0],
        beta2=constants[1],
        epsilon=constants[2],
        grad=gradient,
    )
