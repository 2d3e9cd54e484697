"""The arithmetic of the layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

Tensor = Any


def dense(inputs: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Returns `inputs @ kernel + bias` over the last axis."""
    flat = ops.reshape(inputs, (-1, kernel.shape[0]))
    return ops.reshape(ops.matmul(flat, kernel) + bias, (*ops.shape(inputs)[:-1], kernel.shape[1]))


def layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Normalises the last axis. Source: https://arxiv.org/abs/1607.06450."""
    mean = ops.mean(inputs, axis=-1, keepdims=True)
    centred = inputs - mean
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * scale + bias


def tied_logits(hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """Returns `hidden @ table.T + bias`, float32 (…, rows of the table)."""
    flat = ops.reshape(hidden, (-1, table.shape[1]))
    logits = ops.cast(ops.matmul(flat, ops.transpose(table)), "float32") + bias
    return ops.reshape(logits, (*ops.shape(hidden)[:-1], table.shape[0]))


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits (B, L, 3H) into query, key and value, each (B, N, L, D)."""
    batch, length = ops.shape(qkv)[:2]
    split = ops.reshape(qkv, (batch, length, 3, heads, qkv.shape[-1] // (3 * heads)))
    query, key, value = ops.unstack(ops.transpose(split, (2, 0, 3, 1, 4)), 3)
    return query, key, value


def merge_heads(values: Tensor) -> Tensor:
    """Joins (B, N, L, D) to (B, L, H)."""
    batch, heads, length, size = ops.shape(values)
    return ops.reshape(ops.transpose(values, (0, 2, 1, 3)), (batch, length, heads * size))


def attention_probabilities(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """Returns softmax(q·k / √D + bias), float32 (B, N, L, L).

    Source: https://arxiv.org/abs/1706.03762, section 3.2.1.
    """
    scaled = query * (query.shape[-1] ** -0.5)
    logits = ops.cast(ops.matmul(scaled, ops.transpose(key, (0, 1, 3, 2))), "float32")
    return ops.softmax(logits if bias is None else logits + bias)


def gelu(inputs: Tensor) -> Tensor:
    """The exact GELU, with the error function. Source: https://arxiv.org/abs/1606.08415."""
    return ops.gelu(inputs, approximate=False)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu}


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Returns the states at some positions: (B, L, H) and (B, K) to (B, K, H)."""
    batch, length = ops.shape(hidden)[:2]
    flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
    starts = ops.arange(batch, dtype="int32") * length
    return ops.take(flat, positions + starts[:, None], axis=0)
