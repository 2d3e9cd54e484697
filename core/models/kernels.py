"""The layers' maths, fused to save passes over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import keras
import numpy as np
from keras import ops

from core.models.constants import MAX_LOGITS_PER_CHUNK

Tensor = Any

# Hides a key from a query.
HIDE = float(np.finfo(np.float32).min)
# Queries of causal attention; more blocks would take longer to compile.
_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 8

backend: Any = import_module(f"core.backends.{keras.config.backend()}.kernels")


# `inputs @ kernel + bias`, or its `columns` (start, stop). Takes tensors, not variables.
dense: Callable[..., Tensor] = backend.dense


def whole(weight: Tensor) -> Tensor:
    """All-gathers a sharded weight; its gradient comes back sharded.

    Don't save it for the gradient, or each device would end up with all weights. Source:
    https://arxiv.org/abs/1910.02054, section 5.
    """
    return backend.whole(ops.convert_to_tensor(weight))


def are_sharded() -> bool:
    """Returns whether weights are sharded here."""
    return bool(backend.are_sharded())


def rematerialized_layer(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Applies gradient checkpointing to a layer (https://arxiv.org/abs/1604.06174)."""
    return backend.rematerialized_layer(layer)


def layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Normalises in float32 (https://arxiv.org/abs/1607.06450); keeps the dtype."""
    scale = ops.convert_to_tensor(scale)
    bias = ops.zeros_like(scale) if bias is None else ops.convert_to_tensor(bias)
    outputs = backend.layer_norm(_flat(inputs), scale, bias, epsilon)
    return ops.reshape(outputs, ops.shape(inputs))


def rms_norm(inputs: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Applies RMSNorm in float32 (https://arxiv.org/abs/1910.07467); keeps the dtype."""
    outputs = backend.rms_norm(_flat(inputs), ops.convert_to_tensor(scale), epsilon)
    return ops.reshape(outputs, ops.shape(inputs))


def gelu(inputs: Tensor) -> Tensor:
    """Exact GELU, x·Φ(x). Source: https://arxiv.org/abs/1606.08415."""
    return backend.gelu(inputs)


def gelu_tanh(inputs: Tensor) -> Tensor:
    """GELU with tanh approximation."""
    return backend.gelu_tanh(inputs)


def silu(inputs: Tensor) -> Tensor:
    """Computes x·σ(x) (https://arxiv.org/abs/1702.03118)."""
    return backend.silu(inputs)


def dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Applies dropout; seed and element index determine the mask on all backends.

    Args:
        inputs: Fewer than 2**31 elements.
        seed: (2,), new for each use.
    """
    return backend.dropout(inputs, rate, seed)


def split_heads(fused: Tensor, heads: int, parts: int = 3) -> list[Tensor]:
    """Splits (B, L, parts·N·D) into (B, L, N, D)."""
    batch, length = ops.shape(fused)[:2]
    shape = (batch, length, heads, fused.shape[-1] // (parts * heads))
    return [ops.reshape(part, shape) for part in ops.split(fused, parts, axis=-1)]


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Applies rotary position embeddings to (B, L, N, D) in float32.

    `rotation` has cosines and sines, (2, L, D) or (2, B, L, D). Source:
    https://arxiv.org/abs/2104.09864, section 3.4.2.
    """
    wide = ops.cast(heads, "float32")
    first, second = ops.split(wide, 2, axis=-1)
    crossed = ops.concatenate([-second, first], axis=-1)
    cosines, sines = rotation[0][..., None, :], rotation[1][..., None, :]
    return ops.cast(wide * cosines + crossed * sines, heads.dtype)


def for_cache(heads: Tensor) -> Tensor:
    """Converts (B, M, N, D) to the cache layout, float32 (B, N, D, M).

    Attention then reads contiguous memory; CPU matmuls would convert narrower dtypes.
    """
    return ops.cast(ops.transpose(heads, (0, 2, 3, 1)), "float32")


def write_slots(cached: Tensor, new: Tensor, positions: Tensor) -> Tensor:
    """Writes (B, N, D, S) to a cache (B, N, D, M), from slots `positions` (B,) on."""
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
    causal: bool = False,
    text_starts: Tensor | None = None,
) -> Tensor:
    """Computes softmax(q·k / √D + bias) · v, (B, L, N·D).

    Causal attention runs in blocks of queries, which skip the keys after them: half the work, and
    logits of one block at a time in memory.

    Args:
        query: (B, L, N, D).
        key, value: (B, M, K, D); each of the K heads serves N / K queries.
        bias: Float32, broadcast to (B, N, L, M).
        seed: None disables dropout.
        causal: Hides later tokens.
        text_starts: First index of each token's document, int32 (B, L); with `causal`, hides other
            documents.

    Sources: https://arxiv.org/abs/1706.03762, section 3.2.1; https://arxiv.org/abs/2305.13245.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Any, seed: Any) -> Tensor:
        query = query * (query.shape[-1] ** -0.5) if scaled else query
        key, value = (_per_query(heads, query.shape[2], axis=2) for heads in (key, value))
        logits = ops.cast(ops.einsum("blnd,bmnd->bnlm", query, key), "float32")
        weights = ops.softmax(logits if bias is None else logits + bias)
        weights = ops.cast(weights, value.dtype)
        weights = weights if seed is None else dropout(weights, rate, seed)
        return ops.einsum("bnlm,bmnd->blnd", weights, value)

    if bias is None and seed is None:
        scale = query.shape[-1] ** -0.5 if scaled else 1.0
        known = {"causal": causal, "text_starts": text_starts}
        fused = backend.fused_attention(query, key, value, scale, **known)
        if fused is not None:
            return _joined(fused)
    attend = backend.rematerialized(attend)
    if not causal:
        return _joined(attend(query, key, value, bias, seed))
    length, blocks = query.shape[1], []
    size = max(_SMALLEST_BLOCK, -(-length // _MOST_BLOCKS))
    for start in range(0, length, size):
        stop = min(start + size, length)
        block_bias = causal_bias(start, stop, text_starts)
        if bias is not None:
            block_bias = ops.minimum(block_bias, bias[..., :stop])
        block_seed = None if seed is None else ops.bitwise_xor(seed, np.array([0, start], np.int32))
        inputs = (query[:, start:stop], key[:, :stop], value[:, :stop])
        blocks.append(attend(*inputs, block_bias, block_seed))
    return _joined(blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=1))


def causal_bias(start: int, stop: int, text_starts: Tensor | None = None) -> Tensor:
    """Hides keys from queries `start` to `stop`, float32, broadcast to (B, N, S, stop).

    Hides later tokens, and with `text_starts` (see `attention`) other documents.
    """
    queries, keys = ops.arange(start, stop)[:, None], ops.arange(stop)
    if text_starts is None:
        return hide(keys > queries)[None, None]
    first = text_starts[:, start:stop, None]
    return hide(ops.logical_or(keys > queries, keys < first))[:, None]


def hide(hidden: Tensor) -> Tensor:
    """Returns a bias that hides what is true, float32."""
    return ops.where(hidden, np.float32(HIDE), np.float32(0))


def attention_from_one(
    query: Tensor,
    tokens: Tensor,
    key_kernel: Tensor,
    value_kernel: Tensor,
    value_bias: Tensor | None,
    bias: Tensor | None,
    rate: float,
    seed: Tensor | None,
    *,
    scaled: bool = True,
) -> Tensor:
    """Computes `attention` from one query per row, (B, N·D), without keys and values.

    As q·(xW) is (qWᵀ)·x, the kernels apply once per head instead of once per token. The keys' bias
    is missing, as softmax ignores what it adds to all logits of a query.

    Args:
        query: (B, N, D).
        tokens: (B, M, H), which keys and values are computed from.
        key_kernel, value_kernel: (H, N·D).
        bias: Float32, broadcast to (B, N, M).
        seed: None disables dropout.
    """
    heads, size = query.shape[-2:]
    key_kernel, value_kernel = (
        ops.reshape(kernel, (kernel.shape[0], heads, size)) for kernel in (key_kernel, value_kernel)
    )
    query = query * (size**-0.5) if scaled else query
    directions = ops.einsum("bnd,hnd->bnh", query, key_kernel)
    logits = ops.cast(ops.einsum("bnh,bmh->bnm", directions, tokens), "float32")
    weights = ops.cast(ops.softmax(logits if bias is None else logits + bias), tokens.dtype)
    weights = weights if seed is None else dropout(weights, rate, seed)
    mixed = ops.einsum("bnm,bmh->bnh", weights, tokens)
    values = ops.einsum("bnh,hnd->bnd", mixed, value_kernel)
    if value_bias is not None:
        # With dropout, the weights don't sum to 1.
        values += ops.sum(weights, -1, keepdims=True) * ops.reshape(value_bias, (heads, size))
    return ops.reshape(values, (-1, heads * size))


def cached_attention(
    query: Tensor, parts: Sequence[tuple[Tensor, Tensor, Tensor | None]], *, scaled: bool = True
) -> Tensor:
    """Computes `attention` over caches for (B, S, N, D).

    `parts` have keys and values (see `for_cache`), and biases that broadcast to (B, N, S, M).
    """
    wide = ops.cast(query, "float32") * (query.shape[-1] ** -0.5 if scaled else 1.0)
    logits = []
    heads = query.shape[2]
    for key, _, bias in parts:
        scores = ops.einsum("bsnd,bndm->bnsm", wide, _per_query(key, heads, axis=1))
        logits.append(scores if bias is None else scores + bias)
    weights = ops.softmax(ops.concatenate(logits, axis=-1))
    mixed, first = 0.0, 0
    for _, value, _ in parts:
        last = first + value.shape[-1]
        value = _per_query(value, heads, axis=1)
        mixed += ops.einsum("bnsm,bndm->bsnd", weights[..., first:last], value)
        first = last
    return _joined(ops.cast(mixed, query.dtype))


def _per_query(heads: Tensor, queries: int, axis: int) -> Tensor:
    """Repeats each head of keys or values for the queries that share it."""
    groups = queries // heads.shape[axis]
    return heads if groups == 1 else ops.repeat(heads, groups, axis=axis)


def _joined(heads: Tensor) -> Tensor:
    batch, length, count, size = ops.shape(heads)
    return ops.reshape(heads, (batch, length, count * size))


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Gathers positions (B, K) from (B, L, …)."""
    return backend.gather_positions(hidden, positions)


def tied_logits(hidden: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `hidden @ table.T + bias`, float32 (…, V)."""
    logits = ops.cast(backend.matmul_with_rows(_flat(hidden), table), "float32")
    logits = logits if bias is None else logits + ops.cast(bias, "float32")
    return ops.reshape(logits, (*ops.shape(hidden)[:-1], table.shape[0]))


def log_probabilities(
    hidden: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    """Computes the log-probabilities of targets (B, K) under `tied_logits`, float32 (B, K)."""
    return -backend.cross_entropy(tied_logits(hidden, table, bias), targets)


def summed_cross_entropy(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Sums the weighted cross-entropies of `tied_logits` in nats, in chunks.

    Args:
        hidden: (B, K, H).
        table: (V, H), all-gathered.
        labels: (B, K), as `weights`.

    Source: https://arxiv.org/abs/2410.10989, section 3.2.
    """
    pieces = _in_chunks(table, hidden, labels, weights)
    if pieces is None:
        losses = backend.cross_entropy(tied_logits(hidden, table, bias), labels)
        return ops.sum(losses * weights)
    hidden, labels, weights = pieces
    return backend.summed_cross_entropy(hidden, table, _wide(bias), labels, weights)


def evaluate_batch(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Computes `summed_cross_entropy` and the weight of correct predictions, (2,)."""

    def sums(hidden: Tensor, table: Tensor, bias: Any, labels: Tensor, weights: Tensor) -> Tensor:
        logits = tied_logits(hidden, table, bias)
        right = ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")
        losses = backend.cross_entropy(logits, labels)
        return ops.stack([ops.sum(losses * weights), ops.sum(right * weights)])

    pieces = _in_chunks(table, hidden, labels, weights)
    if pieces is None:
        return sums(hidden, table, bias, labels, weights)
    hidden, labels, weights = pieces
    return backend.pair_over_chunks(sums, hidden, table, _wide(bias), labels, weights)


def count_chunks(rows: int, predictions: int, words: int) -> int:
    """Counts the chunks, along K, of logits (B, K, V)."""
    logits = rows * predictions * words / backend.count_devices()
    return min(predictions, math.ceil(logits / MAX_LOGITS_PER_CHUNK))


def _in_chunks(table: Tensor, *arrays: Tensor) -> list[Tensor] | None:
    rows, predictions = arrays[0].shape[:2]
    count = count_chunks(rows, predictions, table.shape[0])
    return None if count == 1 else [_cut(array, count) for array in arrays]


def _cut(values: Tensor, count: int) -> Tensor:
    """Cuts (B, K, …) into zero-padded (count, B, k, …), keeping B's sharding."""
    rows, length = values.shape[:2]
    size = -(-length // count)
    rest = list(values.shape[2:])
    padded = ops.pad(values, [(0, 0), (0, count * size - length), *[(0, 0)] * len(rest)])
    return ops.moveaxis(ops.reshape(padded, (rows, count, size, *rest)), 1, 0)


def _wide(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else ops.cast(bias, "float32")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "silu": silu,
}


def _flat(inputs: Tensor) -> Tensor:
    return ops.reshape(inputs, (-1, inputs.shape[-1]))
