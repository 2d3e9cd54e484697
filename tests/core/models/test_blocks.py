"""A block's output at selected positions equals its full output there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import ENGINES, run_on

# The arguments are the sequence length and whether the norm comes first.
SCRIPT = """
import json, sys
import keras
import numpy as np
from keras import ops
from core.architecture.options import RotaryPositions
from core.backends import kernels
from core.models.layers import (Block, BlockOptions, Initializers, both_biases, local_bias,
                                padding_bias, rotation)

length, norm_first = int(sys.argv[1]), sys.argv[2] == "True"
options = BlockOptions(width=16, heads=2, head_size=8, units=24, activation="gelu", dropout=0.0,
                       attention_dropout=0.0, epsilon=1e-5, norm_first=norm_first)
block = Block(options, Initializers(0, 0.3), name="block", dtype="float32")
block.build((None, None, 16))
generator = np.random.default_rng(0)
for variable in block.trainable_variables:
    if variable.path.endswith("bias"):
        variable.assign(generator.normal(0, 1, variable.shape))
hidden = ops.convert_to_tensor(generator.normal(0, 1, (4, length, 16)).astype(np.float32))
places = np.sort(generator.integers(0, length - 4, (4, 3)), axis=1).astype(np.int32)
mask = np.ones((4, length), np.int32)
mask[1, -4:] = 0
upstream = np.cos(np.arange(4 * 3 * 16)).astype(np.float32).reshape(4, 3, 16)
padding = padding_bias(mask)
near = both_biases(local_bias(length, 3), padding)
# Bias, rotation, and how many positions of each row.
settings = {
    "plain": (None, None, 3),
    "padded": (padding, None, 3),
    "local, turned": (near, rotation(length, 8, RotaryPositions(1e4)), 3),
    "one": (None, None, 1),
    "one, padded": (padding, None, 1),
    "one, local": (near, None, 1),
    "one, turned": (padding, rotation(length, 8, RotaryPositions(1e4)), 1),
}

def of_all(hidden, bias, turn, count):
    whole = block(hidden, bias, None, turn)
    return kernels.gather_positions(whole, places[:, :count])

def of_some(hidden, bias, turn, count):
    return block(hidden, bias, None, turn, None, None, places[:, :count])

def value_and_gradients(function, bias, turn, count):
    weights = [variable.value for variable in block.trainable_variables]
    if keras.backend.backend() == "jax":
        import jax
        def loss(hidden, weights):
            with keras.StatelessScope(zip(block.trainable_variables, weights, strict=True)):
                outputs = function(hidden, bias, turn, count)
            return (outputs * upstream[:, :count]).sum(), outputs
        found, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, weights)
        return outputs, [found[0], *found[1]]
    import tensorflow as tf
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        outputs = function(hidden, bias, turn, count)
        loss = tf.reduce_sum(outputs * upstream[:, :count])
    return outputs, tape.gradient(loss, [hidden, *weights])

def largest(ones, others):
    pairs = zip(ones, others, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)

said = {}
for name, given in settings.items():
    ones, others = (value_and_gradients(one, *given) for one in (of_some, of_all))
    said[name] = [largest([ones[0]], [others[0]]), largest(ones[1], others[1]),
                  float(np.abs(np.asarray(ones[0])).max())]
print(json.dumps(said))
"""


@pytest.mark.slow(8)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("length", [16, pytest.param(80, marks=pytest.mark.long)])
@pytest.mark.parametrize("engine", ENGINES)
def test_block_output_at_selected_positions_matches_the_full_output(
    engine: str, length: int, norm_first: bool
) -> None:
    said: dict[str, Any] = run_on(engine, SCRIPT, length, norm_first)
    assert len(said) == 7
    for name, (values, gradients, size) in said.items():
        assert size > 0.5, name
        assert values < 1e-5, name
        assert gradients < 1e-4, name
