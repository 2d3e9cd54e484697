"""The arithmetic of the layers, as fast as each engine can do it.

What costs time beside the matrix products are passes over memory. Here they are written so that
each engine fuses them: with gradients by hand where the derived ones take more passes. The results
are the same on both engines up to rounding. This module knows nothing of weights or layers.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras
from keras import ops

Tensor = Any

engine: Any = import_module(f"core.models.kernels_{keras.config.backend()}")


def dense(inputs: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Returns `inputs @ kernel + bias` over the last axis: (…, I) and (I, O) to (…, O)."""
    kernel, bias = ops.convert_to_tensor(kernel), ops.convert_to_tensor(bias)
    # Two axes, or TensorFlow sums one kernel gradient per row of the batch.
    outputs = engine.dense(_flat(inputs), whole(kernel), bias)
    return ops.reshape(outputs, (*ops.shape(inputs)[:-1], kernel.shape[-1]))


def whole(weight: Tensor) -> Tensor:
    """Returns a weight for use: where devices hold a part each, the parts are put together.

    The gradient is given back in parts, so that no device ever holds more than the weight at hand.

    Source: Rajbhandari et al., "ZeRO", https://arxiv.org/abs/1910.02054, section 5.
    """
    return engine.whole(ops.convert_to_tensor(weight))


def recomputed_layer(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a layer that keeps only its inputs for the gradient, and computes the rest twice.

    Args:
        layer: Takes tensors or None, by position. It must change no state.

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost",
        https://arxiv.org/abs/1604.06174.
    """
    return engine.recomputed_layer(layer)


def layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Normalises the last axis, in float32, and returns the dtype of the inputs.

    Source: https://arxiv.org/abs/1607.06450.
    """
    scale, bias = ops.convert_to_tensor(scale), ops.convert_to_tensor(bias)
    outputs = engine.layer_norm(_flat(inputs), scale, bias, epsilon)
    return ops.reshape(outputs, ops.shape(inputs))


def gelu(inputs: Tensor) -> Tensor:
    """The exact GELU, x·Φ(x), with the error function.

    Source: https://arxiv.org/abs/1606.08415.
    """
    return engine.gelu(inputs)


def dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Sets a share of the inputs to zero and scales the others up.

    What is dropped follows from the seed and the element's place by a hash: the same on both
    engines and however a batch is spread over devices. Nothing is kept for the gradient.

    Args:
        inputs: Of any shape, fewer than 2**31 elements.
        rate: The share, 0 to 1 exclusive.
        seed: Two whole numbers, (2,), other ones for each use.
    """
    return engine.dropout(inputs, rate, seed)


def split_heads(qkv: Tensor, heads: int) -> list[Tensor]:
    """Splits (B, L, 3H) into query, key and value, each (B, L, N, D)."""
    batch, length = ops.shape(qkv)[:2]
    shape = (batch, length, heads, qkv.shape[-1] // (3 * heads))
    return [ops.reshape(part, shape) for part in ops.split(qkv, 3, axis=-1)]


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rate: float, seed: Tensor | None
) -> Tensor:
    """Returns softmax(q·k / √D + bias) · v, (B, L, H).

    Source: https://arxiv.org/abs/1706.03762, section 3.2.1.

    Args:
        query: (B, L, N, D).
        key: (B, M, N, D).
        value: (B, M, N, D).
        bias: Added to the logits, float32, broadcast to (B, N, L, M); None adds nothing.
        rate: Share of the weights to drop.
        seed: See `dropout`; None drops nothing.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Any, seed: Any) -> Tensor:
        scaled = query * (query.shape[-1] ** -0.5)
        logits = ops.cast(ops.einsum("blnd,bmnd->bnlm", scaled, key), "float32")
        weights = ops.softmax(logits if bias is None else logits + bias)
        weights = ops.cast(weights, value.dtype)
        weights = weights if seed is None else dropout(weights, rate, seed)
        return ops.einsum("bnlm,bmnd->blnd", weights, value)

    mixed = engine.recomputed(attend)(query, key, value, bias, seed)
    batch, length, heads, size = ops.shape(mixed)
    return ops.reshape(mixed, (batch, length, heads * size))


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Returns the states at some positions: (B, L, H) and (B, K) to (B, K, H)."""
    return engine.gather_positions(hidden, positions)


def tied_logits(hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """Returns `hidden @ table.T + bias`, float32 (…, rows of the table)."""
    logits = ops.cast(ops.matmul(_flat(hidden), ops.transpose(table)), "float32")
    return ops.reshape(
        logits + ops.cast(bias, "float32"), (*ops.shape(hidden)[:-1], table.shape[0])
    )


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu}


def _flat(inputs: Tensor) -> Tensor:
    return ops.reshape(inputs, (-1, inputs.shape[-1]))
