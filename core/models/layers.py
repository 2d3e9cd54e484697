"""The parts that all families share: one embedding, one attention, one feed-forward.

Everything is plain Keras 3 and runs on TensorFlow and JAX alike. Where one engine wants another
formulation than the other, `core.models.kernels` has both. Layers know nothing of checkpoints or
of Hugging Face's names.

Softmax and layer norms are computed in float32 whatever the policy says. Weights are called
`kernel`, `table`, `scale` and `bias`: the last two take no weight decay.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from core.models import kernels

Tensor = Any


class FirstWeights:
    """Gives each weight an initialiser of its own, drawn by numpy: equal on all engines.

    Args:
        seed: Decides all of them, together with the order in which layers are made.
        stddev: Standard deviation of the normal distribution.
    """

    def __init__(self, seed: int, stddev: float) -> None:
        self._seed = seed
        self._stddev = stddev
        self._numbers = itertools.count()

    def normal(self, *, zero_row: int | None = None) -> NormalWeights:
        """Returns the next weight's initialiser.

        Args:
            zero_row: This row of a table is zero, as padding is in Hugging Face's models.
        """
        return NormalWeights(self._seed, next(self._numbers), self._stddev, zero_row)

    def dropout_seed(self) -> int:
        """Returns the next dropout layer's seed, below 2**31."""
        key = np.array([self._seed, next(self._numbers)], np.uint64)
        return int(np.random.Philox(key=key).random_raw() >> np.uint64(33))


class NormalWeights(keras.initializers.Initializer):
    """Draws one weight from a normal distribution. Calling it again gives the same numbers."""

    def __init__(self, seed: int, number: int, stddev: float, zero_row: int | None = None) -> None:
        self.seed = seed
        self.number = number
        self.stddev = stddev
        self.zero_row = zero_row

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not self.stddev:
            return ops.zeros(shape, dtype=dtype)
        key = np.array([self.seed, self.number], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key))
        values = generator.standard_normal(tuple(shape), np.float32) * np.float32(self.stddev)
        if self.zero_row is not None:
            values[self.zero_row] = 0
        return ops.convert_to_tensor(values, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "number": self.number,
            "stddev": self.stddev,
            "zero_row": self.zero_row,
        }


class Dense(keras.layers.Layer):
    """`x @ kernel + bias` over the last axis."""

    def __init__(self, units: int, weights: FirstWeights, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self._initial_kernel = weights.normal()

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(shape=shape, initializer=self._initial_kernel, name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs: Tensor) -> Tensor:
        return kernels.dense(inputs, self.kernel, self.bias)


class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, computed in float32."""

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (input_shape[-1],)
        self.scale = self.add_weight(shape=shape, initializer="ones", name="scale", autocast=False)
        self.bias = self.add_weight(shape=shape, initializer="zeros", name="bias", autocast=False)

    def call(self, inputs: Tensor) -> Tensor:
        return kernels.layer_norm(inputs, self.scale, self.bias, self.epsilon)


class Dropout(keras.layers.Layer):
    """Sets a share of the inputs to zero in training and scales the others up.

    It keeps no state: what it drops follows from the step's seed and from a number of its own.

    Args:
        rate: That share, 0 to 1.
        weights: Where its own number comes from.
    """

    def __init__(self, rate: float, weights: FirstWeights, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self._number = weights.dropout_seed()

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def call(self, inputs: Tensor, dropout_seed: Tensor | None = None) -> Tensor:
        seed = self.seed_of(dropout_seed)
        return inputs if seed is None else kernels.dropout(inputs, self.rate, seed)

    def seed_of(self, dropout_seed: Tensor | None) -> Tensor | None:
        """Returns this layer's seed in a step, int32 (2,); None where nothing is to be dropped.

        Args:
            dropout_seed: The step's, int32 (2,); None drops nothing.
        """
        if dropout_seed is None or not self.rate:
            return None
        return ops.bitwise_xor(dropout_seed, np.array([self._number, 0], np.int32))


class Embedding(keras.layers.Layer):
    """A table of vectors by id, which may also serve as the decoder (tied weights).

    Args:
        rows: Number of ids.
        width: Length of a vector, H.
        weights: Where the first values come from.
        zero_row: The row that begins as zero.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        weights: FirstWeights,
        *,
        zero_row: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.width = width
        self._initial_table = weights.normal(zero_row=zero_row)

    def build(self, input_shape: Any = None) -> None:
        # Not cast by itself: a lookup needs some rows in the compute dtype, not the whole table.
        self.table = self.add_weight(
            shape=(self.rows, self.width),
            initializer=self._initial_table,
            name="table",
            autocast=False,
        )

    def call(self, ids: Tensor) -> Tensor:
        table = kernels.whole(self.table)
        return ops.cast(ops.take(table, ids, axis=0), self.compute_dtype)

    def first(self, count: int, *, start: int = 0) -> Tensor:
        """Returns `count` rows from `start` on, (count, H)."""
        table = kernels.whole(self.table)
        return ops.cast(table[start : start + count], self.compute_dtype)

    def decode(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Returns the logits of tied weights, float32 (…, rows)."""
        table = kernels.whole(ops.cast(self.table, self.compute_dtype))
        return kernels.tied_logits(hidden, table, bias)


class Attention(keras.layers.Layer):
    """Multi-head self-attention with one fused kernel for query, key and value.

    Args:
        width: Of the hidden states, H.
        heads: Number of heads N; they divide the width.
        dropout: Dropout on the attention weights.
        weights: Where the first values come from.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, weights: FirstWeights, **kwargs: Any
    ) -> None:
        # Left alone, so that the bias on the logits stays in float32.
        super().__init__(autocast=False, **kwargs)
        self.heads = heads
        policy = self.dtype_policy
        self.qkv = Dense(3 * width, weights, name="qkv", dtype=policy)
        self.dropout = Dropout(dropout, weights, name="dropout", dtype=policy)
        self.output_dense = Dense(width, weights, name="output", dtype=policy)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.qkv.build(input_shape)
        self.dropout.build()
        self.output_dense.build(input_shape)

    def call(
        self, inputs: Tensor, bias: Tensor | None = None, dropout_seed: Tensor | None = None
    ) -> Tensor:
        """Attends.

        Args:
            inputs: Hidden states (B, L, H).
            bias: Added to the attention logits, float32, broadcast to (B, N, L, L): a large
                negative number hides a key. None adds nothing.
            dropout_seed: The step's, int32 (2,); None drops nothing.
        """
        query, key, value = kernels.split_heads(self.qkv(inputs), self.heads)  # (B, L, N, D)
        rate, seed = self.dropout.rate, self.dropout.seed_of(dropout_seed)
        mixed = kernels.attention(query, key, value, bias, rate, seed)  # (B, L, H)
        return self.output_dense(mixed)


class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between them.

    Args:
        width: Of the hidden states, H.
        units: Width between the two, I.
        activation: Its name in Hugging Face's configs.
        weights: Where the first values come from.
    """

    def __init__(
        self, width: int, units: int, activation: str, weights: FirstWeights, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.activation = kernels.ACTIVATIONS[activation]
        self.up = Dense(units, weights, name="up", dtype=self.dtype_policy)
        self.down = Dense(width, weights, name="down", dtype=self.dtype_policy)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.up.build(input_shape)
        self.down.build((*input_shape[:-1], self.up.units))

    def call(self, inputs: Tensor) -> Tensor:
        return self.down(self.activation(self.up(inputs)))


def padding_bias(attention_mask: Tensor) -> Tensor:
    """Returns what hides padding from attention, float32 (B, 1, 1, L).

    Args:
        attention_mask: 1 for tokens and 0 for padding, (B, L).
    """
    hidden = 1.0 - ops.cast(attention_mask, "float32")
    return (hidden * float(np.finfo(np.float32).min))[:, None, None, :]
