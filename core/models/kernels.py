"""The arithmetic of the layers, as fast as each engine can do it.

What costs time beside the matrix products are passes over memory. Here they are written so that
each engine fuses them: with gradients by hand where the derived ones take more passes. The results
are the same on both engines up to rounding. This module knows nothing of weights or layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import keras
from keras import ops

from core.models.constants import LOGITS_AT_ONCE

Tensor = Any

engine: Any = import_module(f"core.models.kernels_{keras.config.backend()}")


def dense(
    inputs: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    """Returns `inputs @ kernel + bias` over the last axis: (…, I) and (I, O) to (…, O).

    Args:
        inputs: (…, I).
        kernel: (I, O).
        bias: (O,), or None.
        columns: Only those of the O from one number to before another; None: all.
    """
    kernel = ops.convert_to_tensor(kernel)
    bias = None if bias is None else ops.convert_to_tensor(bias)
    compute = partial(_dense, columns=columns)
    # What is kept for the gradient is the part of the kernel, which is put together once more then.
    return (engine.recomputed(compute) if are_spread() else compute)(inputs, kernel, bias)


def _dense(
    inputs: Tensor, kernel: Tensor, bias: Tensor | None, columns: tuple[int, int] | None
) -> Tensor:
    kernel = whole(kernel)
    if columns is not None:
        kernel = kernel[:, slice(*columns)]
        bias = None if bias is None else bias[slice(*columns)]
    # Two axes, or TensorFlow sums one kernel gradient per row of the batch.
    if bias is None:
        outputs = engine.product(_flat(inputs), kernel)
    else:
        outputs = engine.dense(_flat(inputs), kernel, bias)
    return ops.reshape(outputs, (*ops.shape(inputs)[:-1], kernel.shape[-1]))


def whole(weight: Tensor) -> Tensor:
    """Returns a weight for use: where devices hold a part each, the parts are put together.

    The gradient is given back in parts. What has been put together must not be kept for it, or each
    device would hold all weights in the end; `dense` sees to that.

    Source: Rajbhandari et al., "ZeRO", https://arxiv.org/abs/1910.02054, section 5.
    """
    return engine.whole(ops.convert_to_tensor(weight))


def are_spread() -> bool:
    """Tells whether devices hold a part of each weight, where this is being computed."""
    return bool(engine.are_spread())


def recomputed_layer(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a layer that keeps only its inputs for the gradient, and computes the rest twice.

    Args:
        layer: Takes tensors or None, by position. It must change no state.

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost",
        https://arxiv.org/abs/1604.06174.
    """
    return engine.recomputed_layer(layer)


def layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Normalises the last axis, in float32, and returns the dtype of the inputs.

    Source: https://arxiv.org/abs/1607.06450.
    """
    scale = ops.convert_to_tensor(scale)
    bias = ops.zeros_like(scale) if bias is None else ops.convert_to_tensor(bias)
    outputs = engine.layer_norm(_flat(inputs), scale, bias, epsilon)
    return ops.reshape(outputs, ops.shape(inputs))


def rms_norm(inputs: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Scales the last axis to a mean square of 1, in float32, and returns the inputs' dtype.

    Source: https://arxiv.org/abs/1910.07467.
    """
    outputs = engine.rms_norm(_flat(inputs), ops.convert_to_tensor(scale), epsilon)
    return ops.reshape(outputs, ops.shape(inputs))


def gelu(inputs: Tensor) -> Tensor:
    """The exact GELU, x·Φ(x), with the error function.

    Source: https://arxiv.org/abs/1606.08415.
    """
    return engine.gelu(inputs)


def gelu_tanh(inputs: Tensor) -> Tensor:
    """The GELU by its approximation with tanh, as GPT-2 and T5 have it.

    Source: https://arxiv.org/abs/1606.08415, section 2.
    """
    return engine.gelu_tanh(inputs)


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


def split_heads(fused: Tensor, heads: int, parts: int = 3) -> list[Tensor]:
    """Splits (B, L, parts·N·D), as of query, key and value, into parts of (B, L, N, D)."""
    batch, length = ops.shape(fused)[:2]
    shape = (batch, length, heads, fused.shape[-1] // (parts * heads))
    return [ops.reshape(part, shape) for part in ops.split(fused, parts, axis=-1)]


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turns queries or keys by their positions, in float32.

    Source: https://arxiv.org/abs/2104.09864, section 3.4.2.

    Args:
        heads: (B, L, N, D).
        rotation: The cosines and sines of the angles, float32 (2, L, D) or (2, B, L, D).
    """
    wide = ops.cast(heads, "float32")
    first, second = ops.split(wide, 2, axis=-1)
    crossed = ops.concatenate([-second, first], axis=-1)
    cosines, sines = rotation[0][..., None, :], rotation[1][..., None, :]
    return ops.cast(wide * cosines + crossed * sines, heads.dtype)


def for_cache(heads: Tensor) -> Tensor:
    """Returns keys or values as a cache holds them: (B, M, N, D) to float32 (B, N, D, M).

    So both products of attention find them in order, and nothing is copied for a single token. In
    float32, since a CPU's products widen what is narrow, all of it for each token.
    """
    return ops.cast(ops.transpose(heads, (0, 2, 3, 1)), "float32")


def write_slots(cached: Tensor, new: Tensor, positions: Tensor) -> Tensor:
    """Puts new keys or values into a cache, each row's from a place of its own on.

    Args:
        cached: float32 (B, N, D, M).
        new: float32 (B, N, D, S); there is room for it.
        positions: The slot of each row's first, int32 (B,).

    Returns:
        The cache (B, N, D, M).
    """
    rows = [
        ops.slice_update(cached[row : row + 1], [0, 0, 0, positions[row]], new[row : row + 1])
        for row in range(cached.shape[0])
    ]
    return rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=0)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    rate: float,
    seed: Tensor | None,
    *,
    scaled: bool = True,
) -> Tensor:
    """Returns softmax(q·k / √D + bias) · v, (B, L, N·D).

    Source: https://arxiv.org/abs/1706.03762, section 3.2.1.

    Args:
        query: (B, L, N, D).
        key: (B, M, N, D).
        value: (B, M, N, D).
        bias: Added to the logits, float32, broadcast to (B, N, L, M); None adds nothing.
        rate: Share of the weights to drop.
        seed: See `dropout`; None drops nothing.
        scaled: Whether products are divided by √D.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Any, seed: Any) -> Tensor:
        query = query * (query.shape[-1] ** -0.5) if scaled else query
        logits = ops.cast(ops.einsum("blnd,bmnd->bnlm", query, key), "float32")
        weights = ops.softmax(logits if bias is None else logits + bias)
        weights = ops.cast(weights, value.dtype)
        weights = weights if seed is None else dropout(weights, rate, seed)
        return ops.einsum("bnlm,bmnd->blnd", weights, value)

    if bias is None and seed is None and engine.has_fused_attention(query, key):
        scale = query.shape[-1] ** -0.5 if scaled else 1.0
        mixed = engine.fused_attention(query, key, value, scale)
    else:
        mixed = engine.recomputed(attend)(query, key, value, bias, seed)
    return _joined(mixed)


def cached_attention(
    query: Tensor, parts: Sequence[tuple[Tensor, Tensor, Tensor | None]], *, scaled: bool = True
) -> Tensor:
    """Returns the same, without dropout, of keys and values in several places, (B, S, N·D).

    They needn't be put together for it: a cache is only read. Computed in float32.

    Args:
        query: (B, S, N, D).
        parts: Of each place keys and values, see `for_cache`, and what is added to the logits,
            float32, broadcast to (B, N, S, M), or None.
        scaled: Whether products are divided by √D.
    """
    wide = ops.cast(query, "float32") * (query.shape[-1] ** -0.5 if scaled else 1.0)
    logits = []
    for key, _, bias in parts:
        found = ops.einsum("bsnd,bndm->bnsm", wide, key)
        logits.append(found if bias is None else found + bias)
    weights = ops.softmax(ops.concatenate(logits, axis=-1))
    mixed, first = 0.0, 0
    for _, value, _ in parts:
        last = first + value.shape[-1]
        mixed += ops.einsum("bnsm,bndm->bsnd", weights[..., first:last], value)
        first = last
    return _joined(ops.cast(mixed, query.dtype))


def _joined(heads: Tensor) -> Tensor:
    """Puts the heads side by side: (B, L, N, D) to (B, L, N·D)."""
    batch, length, count, size = ops.shape(heads)
    return ops.reshape(heads, (batch, length, count * size))


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Returns what stands at some positions: (B, L, …) and (B, K) to (B, K, …)."""
    return engine.gather_positions(hidden, positions)


def tied_logits(hidden: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns `hidden @ table.T + bias`, float32 (…, rows of the table)."""
    logits = ops.cast(engine.product_with_rows(_flat(hidden), table), "float32")
    logits = logits if bias is None else logits + ops.cast(bias, "float32")
    return ops.reshape(logits, (*ops.shape(hidden)[:-1], table.shape[0]))


def summed_cross_entropy(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Returns the weighted sum of the cross-entropies of `tied_logits`, in nats, a float32.

    Where the logits would be many, they are computed in pieces, each with its part of the
    gradient, and are gone before the next ones are.

    Args:
        hidden: (B, K, H).
        table: (V, H), whole.
        bias: (V,), or None.
        labels: The right rows of the table, int32 (B, K).
        weights: What each counts, float32 (B, K). No gradient comes back to them.

    Source: Hsu et al., "Liger Kernel", https://arxiv.org/abs/2410.10989, section 3.2, "Fused Linear
        Cross Entropy".
    """
    pieces = _in_pieces(table, hidden, labels, weights)
    if pieces is None:
        losses = engine.cross_entropy(tied_logits(hidden, table, bias), labels)
        return ops.sum(losses * weights)
    hidden, labels, weights = pieces
    return engine.summed_cross_entropy(hidden, table, _wide(bias), labels, weights)


def judge(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Returns what `summed_cross_entropy` does, and the weights of right predictions, (2,).

    It has no gradient. For the arguments see there.
    """

    def sums(hidden: Tensor, table: Tensor, bias: Any, labels: Tensor, weights: Tensor) -> Tensor:
        logits = tied_logits(hidden, table, bias)
        right = ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")
        losses = engine.cross_entropy(logits, labels)
        return ops.stack([ops.sum(losses * weights), ops.sum(right * weights)])

    pieces = _in_pieces(table, hidden, labels, weights)
    if pieces is None:
        return sums(hidden, table, bias, labels, weights)
    hidden, labels, weights = pieces
    return engine.pair_over_pieces(sums, hidden, table, _wide(bias), labels, weights)


def count_pieces(rows: int, predictions: int, words: int) -> int:
    """Returns in how many pieces logits are computed, which are cut along the predictions of a row.

    Args:
        rows: Of all devices that share the batch, B.
        predictions: Of each row, K.
        words: Rows of the table, V.
    """
    logits = rows * predictions * words / engine.count_devices()
    return min(predictions, math.ceil(logits / LOGITS_AT_ONCE))


def _in_pieces(table: Tensor, *arrays: Tensor) -> list[Tensor] | None:
    """Returns hidden states (B, K, H) and what goes with them in pieces, None where one will do."""
    rows, predictions = arrays[0].shape[:2]
    count = count_pieces(rows, predictions, table.shape[0])
    return None if count == 1 else [_cut(one, count) for one in arrays]


def _cut(values: Tensor, count: int) -> Tensor:
    """Cuts (B, K, …) along K, (count, B, k, …): so that devices which share B have all of them.

    The last one is filled up with zeros, which are the weights of what is filled up.
    """
    rows, length = values.shape[:2]
    size = -(-length // count)
    rest = list(values.shape[2:])
    padded = ops.pad(values, [(0, 0), (0, count * size - length), *[(0, 0)] * len(rest)])
    return ops.moveaxis(ops.reshape(padded, (rows, count, size, *rest)), 1, 0)


def _wide(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else ops.cast(bias, "float32")


# By their names in Hugging Face's configs.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "gelu_new": gelu_tanh}


def _flat(inputs: Tensor) -> Tensor:
    return ops.reshape(inputs, (-1, inputs.shape[-1]))
