"""JAX's part of `core.backends.optimizers`."""

from __future__ import annotations

from core.backends.jax.kernels import are_sharded

# XLA fuses the operations of Keras's AdamW.
HAS_FUSED_ADAM = False


def assigns_variables() -> bool:
    """Returns False: a step is a pure function."""
    return False


def batches_kernels() -> bool:
    """Returns True if Muon may concatenate kernels of one shape: they are not sharded."""
    return not are_sharded()
