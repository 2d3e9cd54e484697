"""TensorFlow implementation of `core.models.kernels`.

XLA fuses elementwise operations; on a CPU, matmuls are faster outside (`benchmarks/throughput.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf
from keras import ops

from core.backends.devices import has_avx512
from core.models.constants import (
    GELU_CUBE,
    INVERSE_SQRT_2_PI,
    LAST_SHIFT,
    MIXING,
    SQRT_2_BY_PI,
    SQRT_HALF,
    drop_below,
)

Tensor = Any

# From this width on, compiling a kernel's gradient is worth its time.
_WORTH_COMPILING = 256


def _compiled(function: Callable) -> Callable:
    """Compiles with XLA; a TPU compiles everything anyway."""
    fused = tf.function(function, jit_compile=True, autograph=False)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return (function if _is_there("TPU") else fused)(*arguments)

    return call


def _is_there(kind: str) -> bool:
    return bool(tf.config.list_logical_devices(kind))


def _is_on_cpu() -> bool:
    return not (_is_there("GPU") or _is_there("TPU"))


def dense(
    inputs: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    if columns is not None:
        kernel = kernel[:, slice(*columns)]
        bias = None if bias is None else bias[slice(*columns)]
    # Two axes, or TensorFlow sums one kernel gradient per example.
    rows, kernel = ops.reshape(inputs, (-1, inputs.shape[-1])), tf.convert_to_tensor(kernel)
    given = [tf.matmul(rows, kernel), rows, kernel]
    given += [] if bias is None else [tf.convert_to_tensor(bias)]
    outputs = tf.custom_gradient(_finish_dense)(*given)
    return ops.reshape(outputs, (*ops.shape(inputs)[:-1], kernel.shape[-1]))


def _finish_dense(product: Tensor, inputs: Tensor, kernel: Tensor, bias: Any = None) -> Any:
    """Adds the bias; computes the gradients of the product, too."""

    def gradient(upstream: Tensor) -> tuple[Tensor | None, ...]:
        pull = tf.matmul(upstream, kernel, transpose_b=True)
        gradients = (None, pull, _kernel_gradient(inputs, upstream))
        # The gradient of `bias_add` is slow.
        return gradients if bias is None else (*gradients, _column_sum(upstream))

    # `bias_add` fuses with the matmul.
    return product if bias is None else tf.nn.bias_add(product, bias), gradient


def _kernel_gradient(inputs: Tensor, upstream: Tensor) -> Tensor:
    # On a CPU without AVX-512, oneDNN takes 1.5 times as long as XLA for this transposition.
    is_wide = min(inputs.shape[-1], upstream.shape[-1]) >= _WORTH_COMPILING
    if is_wide and _is_on_cpu() and not has_avx512():
        return _transposed_product(inputs, upstream)
    return tf.matmul(inputs, upstream, transpose_a=True)


def matmul_with_rows(inputs: Tensor, table: Tensor) -> Tensor:
    """Computes `inputs @ table.T`, (T, V)."""
    return tf.matmul(inputs, table, transpose_b=True)


def layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    def normalise(inputs: Tensor, scale: Tensor, bias: Tensor) -> Any:
        outputs, mean, inverse = _layer_norm_forward(inputs, scale, bias, epsilon)

        def gradient(upstream: Tensor) -> Any:
            return _layer_norm_backward(inputs, scale, mean, inverse, upstream)

        return outputs, gradient

    # Variables can't have a custom gradient.
    scale, bias = tf.convert_to_tensor(scale), tf.convert_to_tensor(bias)
    return tf.custom_gradient(normalise)(inputs, scale, bias)


def rms_norm(inputs: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    def normalise(inputs: Tensor, scale: Tensor) -> Any:
        outputs, inverse = _rms_norm_forward(inputs, scale, epsilon)
        return outputs, lambda upstream: _rms_norm_backward(inputs, scale, inverse, upstream)

    return tf.custom_gradient(normalise)(inputs, tf.convert_to_tensor(scale))


def gelu(inputs: Tensor) -> Tensor:
    def activate(inputs: Tensor) -> Any:
        return _gelu_forward(inputs), lambda upstream: _gelu_backward(inputs, upstream)

    return tf.custom_gradient(activate)(inputs)


def gelu_tanh(inputs: Tensor) -> Tensor:
    def activate(inputs: Tensor) -> Any:
        return _gelu_tanh_forward(inputs), lambda upstream: _gelu_tanh_backward(inputs, upstream)

    return tf.custom_gradient(activate)(inputs)


def silu(inputs: Tensor) -> Tensor:
    def activate(inputs: Tensor) -> Any:
        return _silu_forward(inputs), lambda upstream: _silu_backward(inputs, upstream)

    return tf.custom_gradient(activate)(inputs)


def dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    def drop(inputs: Tensor) -> Any:
        return _drop(inputs, rate, seed), lambda upstream: _drop(upstream, rate, seed)

    return tf.custom_gradient(drop)(inputs)


def rematerialized(function: Callable) -> Callable:
    """Returns the function unchanged: memory suffices."""
    return function


def rematerialized_layer(layer: Callable) -> Callable:
    def call(*inputs: Tensor | None) -> Tensor:
        given = [tensor is not None for tensor in inputs]

        def apply(*tensors: Tensor) -> Tensor:
            remaining = iter(tensors)
            return layer(*(next(remaining) if is_given else None for is_given in given))

        return tf.recompute_grad(apply)(*(tensor for tensor in inputs if tensor is not None))

    return call


def whole(weight: Tensor) -> Tensor:
    return weight


def fused_attention(*inputs: Tensor, **known: Any) -> None:
    """Returns None: TensorFlow has no such kernel."""


def has_tensor_cores() -> bool:
    """Returns False: on TensorFlow, matmuls are timed on every GPU."""
    return False


def are_sharded() -> bool:
    return False


def count_devices() -> int:
    """Returns 1: each device sees its own examples only."""
    return 1


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    wide = tf.reshape(tf.cast(logits, tf.float32), (-1, logits.shape[-1]))
    losses = tf.custom_gradient(_cross_entropy)(wide, tf.reshape(labels, (-1,)))
    return tf.reshape(losses, tf.shape(labels))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    """Takes less than half the time of TensorFlow's own kernel on a CPU."""
    shares = tf.nn.softmax(logits)
    # The largest probability can't round to zero.
    sums = tf.reduce_max(logits, axis=-1) - tf.math.log(tf.reduce_max(shares, axis=-1))

    def gradient(upstream: Tensor) -> tuple[Tensor, None]:
        places = tf.stack([tf.range(tf.size(labels)), labels], axis=1)
        scaled = shares * upstream[:, None]
        return tf.tensor_scatter_nd_sub(scaled, places, upstream), None

    return sums - tf.gather(logits, labels, batch_dims=1), gradient


def summed_cross_entropy(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    width, given = hidden.shape[-1], [hidden, table] if bias is None else [hidden, table, bias]

    def total(hidden: Tensor, table: Tensor, *biases: Tensor) -> Any:
        def of_piece(number: Tensor, loss: Tensor, of_table: Tensor, pulls: Any, *rest: Any) -> Any:
            states = tf.reshape(hidden[number], (-1, width))
            counts = tf.reshape(weights[number], (-1,))
            logits = tf.cast(matmul_with_rows(states, table), tf.float32)
            logits = logits + biases[0] if biases else logits
            losses, gradient = _cross_entropy(logits, tf.reshape(labels[number], (-1,)))
            pull, _ = gradient(counts)
            narrow = tf.cast(pull, states.dtype)
            more = tf.matmul(narrow, states, transpose_a=True)
            pulls = pulls.write(number, tf.matmul(narrow, table))
            loss += tf.reduce_sum(losses * counts)
            of_table += tf.cast(more, tf.float32)
            of_bias = [bias_sum + _column_sum(pull) for bias_sum in rest]
            return number + 1, loss, of_table, pulls, *of_bias

        zeros = tf.zeros(table.shape, tf.float32)
        pulls = tf.TensorArray(hidden.dtype, hidden.shape[0])
        _, loss, of_table, pulls, *of_bias = tf.while_loop(
            lambda number, *_: number < hidden.shape[0],
            of_piece,
            (tf.constant(0), tf.constant(0.0), zeros, pulls, *map(tf.zeros_like, biases)),
            parallel_iterations=1,
        )
        of_hidden = tf.reshape(pulls.stack(), hidden.shape)

        def gradient(upstream: Tensor) -> list[Tensor]:
            gradients = [of_hidden, of_table, *of_bias]
            return [
                tf.cast(tf.cast(values, tf.float32) * upstream, to.dtype)
                for values, to in zip(gradients, given, strict=True)
            ]

        return loss, gradient

    return tf.custom_gradient(total)(*given)


def pair_over_chunks(
    function: Callable[..., Tensor],
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor,
) -> Tensor:
    """Sums a function's pair over chunks, (2,)."""

    def of_piece(number: Tensor, sums: Tensor) -> Any:
        more = function(hidden[number], table, bias, labels[number], weights[number])
        return number + 1, sums + more

    return tf.while_loop(
        lambda number, _: number < hidden.shape[0],
        of_piece,
        (tf.constant(0), tf.zeros(2)),
        parallel_iterations=1,
    )[1]


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    return tf.gather(hidden, positions, batch_dims=1)


@_compiled
def _transposed_product(left: Tensor, right: Tensor) -> Tensor:
    return tf.matmul(left, right, transpose_a=True)


@_compiled
def _drop(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    places = tf.bitcast(tf.range(tf.size(inputs)), tf.uint32)
    keys = _mix(tf.cast(seed, tf.uint32))
    bits = _mix(_mix(tf.reshape(places, tf.shape(inputs)) ^ keys[0]) + keys[1])
    mask = tf.cast(bits >= tf.constant(drop_below(rate), tf.uint32), inputs.dtype)
    return inputs * mask * tf.constant(1.0 / (1.0 - rate), inputs.dtype)


def _mix(bits: Tensor) -> Tensor:
    for shift, factor in MIXING:
        bits = _fold(bits, shift) * tf.constant(factor, tf.uint32)
    return _fold(bits, LAST_SHIFT)


def _fold(bits: Tensor, shift: int) -> Tensor:
    return bits ^ tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint32))


@_compiled
def _layer_norm_forward(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Any:
    wide = tf.cast(inputs, tf.float32)
    mean = _row_mean(wide)
    centred = wide - mean
    inverse = tf.math.rsqrt(_row_mean(tf.square(centred)) + epsilon)
    scale, bias = tf.cast(scale, tf.float32), tf.cast(bias, tf.float32)
    return tf.cast(centred * inverse * scale + bias, inputs.dtype), mean, inverse


@_compiled
def _layer_norm_backward(
    inputs: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, upstream: Tensor
) -> Any:
    normal = (tf.cast(inputs, tf.float32) - mean) * inverse
    upstream = tf.cast(upstream, tf.float32)
    product = upstream * normal
    scale = tf.cast(scale, tf.float32)
    pull = _row_mean(upstream * scale) + normal * _row_mean(product * scale)
    inputs_gradient = tf.cast((upstream * scale - pull) * inverse, inputs.dtype)
    return inputs_gradient, _column_sum(product), _column_sum(upstream)


@_compiled
def _rms_norm_forward(inputs: Tensor, scale: Tensor, epsilon: float) -> Any:
    wide = tf.cast(inputs, tf.float32)
    inverse = tf.math.rsqrt(_row_mean(tf.square(wide)) + epsilon)
    return tf.cast(wide * inverse * tf.cast(scale, tf.float32), inputs.dtype), inverse


@_compiled
def _rms_norm_backward(inputs: Tensor, scale: Tensor, inverse: Tensor, upstream: Tensor) -> Any:
    normal = tf.cast(inputs, tf.float32) * inverse
    upstream = tf.cast(upstream, tf.float32)
    product = upstream * normal
    scale = tf.cast(scale, tf.float32)
    pull = normal * _row_mean(product * scale)
    return tf.cast((upstream * scale - pull) * inverse, inputs.dtype), _column_sum(product)


def _row_mean(values: Tensor) -> Tensor:
    if not _is_on_cpu():
        return tf.reduce_mean(values, axis=-1, keepdims=True)
    # XLA's row reductions are slow on a CPU; elsewhere a matmul is less exact.
    return tf.matmul(values, tf.fill((values.shape[-1], 1), 1.0 / values.shape[-1]))


def _column_sum(values: Tensor) -> Tensor:
    if not _is_on_cpu():
        return tf.reduce_sum(values, axis=0)
    return tf.matmul(tf.ones((1, tf.shape(values)[0]), values.dtype), values)[0]


@_compiled
def _gelu_forward(inputs: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    return tf.cast(wide * _normal_cdf(wide), inputs.dtype)


@_compiled
def _gelu_backward(inputs: Tensor, upstream: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    density = INVERSE_SQRT_2_PI * tf.exp(-0.5 * tf.square(wide))
    slope = _normal_cdf(wide) + wide * density
    return tf.cast(tf.cast(upstream, tf.float32) * slope, inputs.dtype)


@_compiled
def _gelu_tanh_forward(inputs: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    return tf.cast(0.5 * wide * (1.0 + _tanh_argument(wide)[0]), inputs.dtype)


@_compiled
def _gelu_tanh_backward(inputs: Tensor, upstream: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    tanh, slope = _tanh_argument(wide)
    total = 0.5 * (1.0 + tanh) + 0.5 * wide * (1.0 - tf.square(tanh)) * slope
    return tf.cast(tf.cast(upstream, tf.float32) * total, inputs.dtype)


@_compiled
def _silu_forward(inputs: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    return tf.cast(wide * tf.sigmoid(wide), inputs.dtype)


@_compiled
def _silu_backward(inputs: Tensor, upstream: Tensor) -> Tensor:
    wide = tf.cast(inputs, tf.float32)
    share = tf.sigmoid(wide)
    slope = share * (1.0 + wide * (1.0 - share))
    return tf.cast(tf.cast(upstream, tf.float32) * slope, inputs.dtype)


def _tanh_argument(values: Tensor) -> tuple[Tensor, Tensor]:
    squares = tf.square(values)
    argument = SQRT_2_BY_PI * values * (1.0 + GELU_CUBE * squares)
    return tf.tanh(argument), SQRT_2_BY_PI * (1.0 + 3.0 * GELU_CUBE * squares)


def _normal_cdf(values: Tensor) -> Tensor:
    return 0.5 * (1.0 + tf.math.erf(values * SQRT_HALF))
