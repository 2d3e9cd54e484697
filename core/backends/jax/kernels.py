"""JAX implementation of `core.models.kernels`.

Norms take (T, H). Chunks have a leading axis: hidden states (chunks, B, k, H).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from core.backends.jax import splash
from core.models.constants import (
    GELU_CUBE,
    INVERSE_SQRT_2_PI,
    LAST_SHIFT,
    MIXING,
    SHARDED_AXIS,
    SQRT_2_BY_PI,
    SQRT_HALF,
    drop_below,
)

Tensor = Any

FUSED_ATTENTION = "cudnn"

# Compute capabilities: bfloat16 tensor cores; larger heads in cuDNN's attention.
_AMPERE = 8.0
_HOPPER = 9.0


def dense(
    inputs: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    if not are_sharded():
        return _dense(inputs, kernel, bias, columns)
    # Saves the sharded kernel for the gradient, which all-gathers it again.
    return rematerialized(partial(_dense, columns=columns))(inputs, kernel, bias)


def _dense(
    inputs: Tensor, kernel: Tensor, bias: Tensor | None, columns: tuple[int, int] | None
) -> Tensor:
    kernel = whole(kernel)
    if columns is not None:
        kernel = kernel[:, slice(*columns)]
        bias = None if bias is None else bias[slice(*columns)]
    outputs = _product(inputs.reshape(-1, inputs.shape[-1]), kernel, 0)
    outputs = outputs if bias is None else outputs + bias
    return outputs.reshape(*inputs.shape[:-1], kernel.shape[-1])


def matmul_with_rows(inputs: Tensor, table: Tensor) -> Tensor:
    """Computes `inputs @ table.T`, (T, V)."""
    # On a CPU XLA would copy `table.T`.
    return _product(inputs, table, 1)


def _product(inputs: Tensor, kernel: Tensor, axis: int) -> Tensor:
    if inputs.dtype == kernel.dtype == jnp.bfloat16:
        return _narrow_product(inputs, kernel, axis)
    return jax.lax.dot_general(inputs, kernel, (((1,), (axis,)), ((), ())))


def _dot(left: Tensor, right: Tensor, left_axis: int, right_axis: int, **options: Any) -> Tensor:
    return jax.lax.dot_general(left, right, (((left_axis,), (right_axis,)), ((), ())), **options)


def _narrow(inputs: Tensor, kernel: Tensor, axis: int) -> Tensor:
    """On CPUs, XLA would convert the kernel to float32 for bfloat16 results or a single row."""

    def on_cpu(inputs: Tensor, kernel: Tensor) -> Tensor:
        rows = len(inputs)
        several = inputs if rows > 1 else jnp.pad(inputs, ((0, 1), (0, 0)))
        wide = _dot(several, kernel, 1, axis, preferred_element_type=jnp.float32)
        return wide[:rows].astype(inputs.dtype)

    def elsewhere(inputs: Tensor, kernel: Tensor) -> Tensor:
        return _dot(inputs, kernel, 1, axis)

    return jax.lax.platform_dependent(inputs, kernel, cpu=on_cpu, default=elsewhere)


def _narrow_forward(inputs: Tensor, kernel: Tensor, axis: int) -> Any:
    return _narrow(inputs, kernel, axis), (inputs, kernel)


def _narrow_backward(axis: int, saved: Any, upstream: Tensor) -> Any:
    inputs, kernel = saved
    pair = (inputs, upstream) if axis == 0 else (upstream, inputs)
    return _narrow(upstream, kernel, 1 - axis), _dot(*pair, 0, 0)


def _places(shape: tuple[int, ...]) -> Tensor:
    """Returns element indices; each device can number its shard."""
    places = jnp.zeros((), jnp.uint32)
    for axis, size in enumerate(shape):
        places = places * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return places


def _mix(bits: Tensor) -> Tensor:
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return bits ^ (bits >> np.uint32(LAST_SHIFT))


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    causal: bool,
    text_starts: Tensor | None,
) -> Tensor | None:
    """Computes softmax(scale · q·k) · v in one kernel; None where no kernel does all of it."""
    if causal and splash.applies(query.shape[1]):
        return splash.attention(query, key, value, scale, text_starts)
    # MaxText #4476: cuDNN's kernel ignores documents.
    if text_starts is not None or not _has_cudnn_attention(query, key):
        return None
    return jax.nn.dot_product_attention(
        query, key, value, scale=scale, is_causal=causal, implementation=FUSED_ATTENTION
    )


def _has_cudnn_attention(query: Tensor, key: Tensor) -> bool:
    """Returns whether cuDNN's attention applies; sharding it is untested."""
    size = query.shape[-1]
    fits = query.shape[1] % 2 == key.shape[1] % 2 == 0 and size % 8 == 0
    alone = not jax.sharding.get_abstract_mesh().axis_names
    may = fits and alone and query.dtype == jnp.bfloat16 and has_tensor_cores()
    return may and size <= widest_fused_head()


def widest_fused_head() -> int:
    """Returns cuDNN's largest head size."""
    return 256 if float(jax.devices()[0].compute_capability) >= _HOPPER else 128


def has_tensor_cores() -> bool:
    """Returns whether an NVIDIA GPU has bfloat16 tensor cores."""
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return False
    return float(device.compute_capability) >= _AMPERE


def rematerialized(function: Callable) -> Callable:
    """Saves only arguments: attention weights are large, and cheap to recompute."""
    return jax.checkpoint(function)


def rematerialized_layer(layer: Callable) -> Callable:
    return jax.checkpoint(layer)


def whole(weight: Tensor) -> Tensor:
    """All-gathers a weight if weights are sharded."""
    if not are_sharded():
        return weight
    devices = jax.sharding.get_abstract_mesh().shape[SHARDED_AXIS]
    return _gathered(weight, part_of(weight.shape, devices))


def are_sharded() -> bool:
    return SHARDED_AXIS in jax.sharding.get_abstract_mesh().axis_names


def part_of(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Shards a weight along its longest divisible axis, if any."""
    fitting = [(size, -axis) for axis, size in enumerate(shape) if size % devices == 0]
    if len(shape) < 2 or not fitting:
        return PartitionSpec()
    axis = -max(fitting)[1]
    return PartitionSpec(
        *[SHARDED_AXIS if dimension == axis else None for dimension in range(len(shape))]
    )


def _gather(weight: Tensor, part: PartitionSpec) -> Tensor:
    return jax.lax.with_sharding_constraint(weight, PartitionSpec())


def _gather_forward(weight: Tensor, part: PartitionSpec) -> Any:
    return _gather(weight, part), None


def _gather_backward(part: PartitionSpec, _: Any, upstream: Tensor) -> Any:
    return (jax.lax.with_sharding_constraint(upstream, part),)


def count_devices() -> int:
    """Counts the devices that share a batch."""
    return max(1, jax.sharding.get_abstract_mesh().size)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _summed_cross_entropy(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    return _summed_cross_entropy_forward(hidden, table, bias, labels, weights)[0]


def _summed_cross_entropy_forward(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Any:
    def of_piece(sums: Any, piece: Any) -> Any:
        states, labels, weights = (array.reshape(-1, *array.shape[2:]) for array in piece)
        logits = matmul_with_rows(states, table).astype(jnp.float32)
        logits = logits if bias is None else logits + bias
        loss = (cross_entropy(logits, labels) * weights).sum()
        is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) == labels[:, None]
        pull = (jax.nn.softmax(logits) - is_label) * weights[:, None]
        narrow = pull.astype(states.dtype)
        of_table = _dot(narrow, states, 0, 0, preferred_element_type=jnp.float32)
        of_bias = None if bias is None else pull.sum(axis=0)
        sums = jax.tree.map(jnp.add, sums, (loss, of_table, of_bias))
        return sums, _product(narrow, table, 0).reshape(piece[0].shape)

    def of_device(hidden: Tensor, table: Tensor, bias: Any, labels: Tensor, weights: Tensor) -> Any:
        zeros = (jnp.zeros(()), jnp.zeros(table.shape), None if bias is None else bias * 0)
        sums, pulls = jax.lax.scan(of_piece, zeros, (hidden, labels, weights))
        loss, of_table, of_bias = sums
        return (loss, of_table.astype(table.dtype), of_bias), pulls

    totals = _on_each_device(of_device, (hidden, table, bias, labels, weights))
    (loss, of_table, of_bias), of_hidden = totals
    return loss, (of_hidden, of_table, of_bias)


def _summed_cross_entropy_backward(saved: Any, upstream: Tensor) -> Any:
    scaled = jax.tree.map(lambda gradient: (gradient * upstream).astype(gradient.dtype), saved)
    return (*scaled, None, None)


def pair_over_chunks(
    function: Callable[..., Tensor],
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor,
) -> Tensor:
    """Sums a function's pair over chunks, (2,)."""

    def of_device(hidden: Tensor, table: Tensor, bias: Any, labels: Tensor, weights: Tensor) -> Any:
        def of_piece(total: Tensor, piece: Any) -> Any:
            states, labels, weights = piece
            return total + function(states, table, bias, labels, weights), None

        return jax.lax.scan(of_piece, jnp.zeros(2), (hidden, labels, weights))[0], None

    return _on_each_device(of_device, (hidden, table, bias, labels, weights))[0]


def _on_each_device(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """All-reduces the first result."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.axis_names:
        return function(*arguments)

    def added(*arguments: Any) -> Any:
        sums, rows = function(*arguments)
        return jax.lax.psum(sums, mesh.axis_names), rows

    rows, whole = PartitionSpec(None, mesh.axis_names), PartitionSpec()
    return jax.shard_map(
        added,
        mesh=mesh,
        in_specs=(rows, whole, whole, rows, rows),
        out_specs=(whole, rows),
        check_vma=False,
    )(*arguments)


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    def gather(row: Tensor, places: Tensor) -> Tensor:
        return row.at[places].get(mode="clip")

    # By example, so that each device gathers from its own shard.
    return jax.vmap(gather)(hidden, positions)


def _layer_norm(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return _layer_norm_forward(inputs, scale, bias, epsilon)[0]


def _layer_norm_forward(inputs: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Any:
    wide = inputs.astype(jnp.float32)
    mean = _row_mean(wide)
    centred = wide - mean
    inverse = jax.lax.rsqrt(_row_mean(jnp.square(centred)) + epsilon)
    outputs = (centred * inverse * scale + bias).astype(inputs.dtype)
    return outputs, (inputs, scale, mean, inverse)


def _layer_norm_backward(epsilon: float, saved: Any, upstream: Tensor) -> Any:
    inputs, scale, mean, inverse = saved
    normal = (inputs.astype(jnp.float32) - mean) * inverse
    upstream = upstream.astype(jnp.float32)
    product = upstream * normal
    pull = _row_mean(upstream * scale) + normal * _row_mean(product * scale)
    inputs_gradient = (upstream * scale - pull) * inverse
    return inputs_gradient.astype(inputs.dtype), _column_sum(product), _column_sum(upstream)


def _rms_norm(inputs: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return _rms_norm_forward(inputs, scale, epsilon)[0]


def _rms_norm_forward(inputs: Tensor, scale: Tensor, epsilon: float) -> Any:
    wide = inputs.astype(jnp.float32)
    inverse = jax.lax.rsqrt(_row_mean(jnp.square(wide)) + epsilon)
    return (wide * inverse * scale).astype(inputs.dtype), (inputs, scale, inverse)


def _rms_norm_backward(epsilon: float, saved: Any, upstream: Tensor) -> Any:
    inputs, scale, inverse = saved
    normal = inputs.astype(jnp.float32) * inverse
    upstream = upstream.astype(jnp.float32)
    product = upstream * normal
    pull = normal * _row_mean(product * scale)
    inputs_gradient = (upstream * scale - pull) * inverse
    return inputs_gradient.astype(inputs.dtype), _column_sum(product)


def _gelu(inputs: Tensor) -> Tensor:
    wide = inputs.astype(jnp.float32)
    return (wide * _normal_cdf(wide)).astype(inputs.dtype)


def _gelu_forward(inputs: Tensor) -> Any:
    return _gelu(inputs), inputs


def _gelu_backward(inputs: Tensor, upstream: Tensor) -> Any:
    wide = inputs.astype(jnp.float32)
    density = INVERSE_SQRT_2_PI * jnp.exp(-0.5 * jnp.square(wide))
    slope = _normal_cdf(wide) + wide * density
    return ((upstream.astype(jnp.float32) * slope).astype(inputs.dtype),)


def _gelu_tanh(inputs: Tensor) -> Tensor:
    wide = inputs.astype(jnp.float32)
    return (0.5 * wide * (1.0 + _tanh_argument(wide)[0])).astype(inputs.dtype)


def _gelu_tanh_forward(inputs: Tensor) -> Any:
    return _gelu_tanh(inputs), inputs


def _gelu_tanh_backward(inputs: Tensor, upstream: Tensor) -> Any:
    wide = inputs.astype(jnp.float32)
    tanh, slope = _tanh_argument(wide)
    total = 0.5 * (1.0 + tanh) + 0.5 * wide * (1.0 - jnp.square(tanh)) * slope
    return ((upstream.astype(jnp.float32) * total).astype(inputs.dtype),)


def _silu(inputs: Tensor) -> Tensor:
    return jax.nn.silu(inputs.astype(jnp.float32)).astype(inputs.dtype)


def _silu_forward(inputs: Tensor) -> Any:
    return _silu(inputs), inputs


def _silu_backward(inputs: Tensor, upstream: Tensor) -> Any:
    wide = inputs.astype(jnp.float32)
    share = jax.nn.sigmoid(wide)
    slope = share * (1.0 + wide * (1.0 - share))
    return ((upstream.astype(jnp.float32) * slope).astype(inputs.dtype),)


def _tanh_argument(values: Tensor) -> tuple[Tensor, Tensor]:
    squares = jnp.square(values)
    argument = SQRT_2_BY_PI * values * (1.0 + GELU_CUBE * squares)
    return jnp.tanh(argument), SQRT_2_BY_PI * (1.0 + 3.0 * GELU_CUBE * squares)


def _dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    return _drop(_kept(inputs, rate, seed), inputs, rate)


def _dropout_forward(inputs: Tensor, rate: float, seed: Tensor) -> Any:
    if not _is_on_cpu():
        return _dropout(inputs, rate, seed), (None, seed)
    # XLA would compute the mask for each use of the outputs, and again for the gradient.
    mask = jax.lax.optimization_barrier(_kept(inputs, rate, seed))
    return _drop(mask, inputs, rate), (mask, seed)


def _dropout_backward(rate: float, saved: Any, upstream: Tensor) -> Any:
    mask, seed = saved
    mask = _kept(upstream, rate, seed) if mask is None else mask
    return _drop(mask, upstream, rate), None


def _kept(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    keys = _mix(seed.astype(jnp.uint32))
    bits = _mix(_mix(_places(inputs.shape) ^ keys[0]) + keys[1])
    return bits >= np.uint32(drop_below(rate))


def _drop(mask: Tensor, values: Tensor, rate: float) -> Tensor:
    return values * mask.astype(values.dtype) * jnp.asarray(1.0 / (1.0 - rate), values.dtype)


def _is_on_cpu() -> bool:
    described = jax.sharding.get_abstract_mesh().abstract_device
    return (described or jax.devices()[0]).device_kind == "cpu"


def _row_mean(values: Tensor) -> Tensor:
    def by_product(values: Tensor) -> Tensor:
        # XLA's row reductions are slow on a CPU.
        return values @ jnp.full((values.shape[-1], 1), 1.0 / values.shape[-1], values.dtype)

    def by_reduction(values: Tensor) -> Tensor:
        return jnp.mean(values, axis=-1, keepdims=True)

    return jax.lax.platform_dependent(values, cpu=by_product, default=by_reduction)


def _column_sum(values: Tensor) -> Tensor:
    def by_product(values: Tensor) -> Tensor:
        return (jnp.ones((1, values.shape[0]), values.dtype) @ values)[0]

    def by_reduction(values: Tensor) -> Tensor:
        return jnp.sum(values, axis=0)

    return jax.lax.platform_dependent(values, cpu=by_product, default=by_reduction)


def _normal_cdf(values: Tensor) -> Tensor:
    return 0.5 * (1.0 + jax.lax.erf(values * SQRT_HALF))


summed_cross_entropy = jax.custom_vjp(_summed_cross_entropy)
summed_cross_entropy.defvjp(_summed_cross_entropy_forward, _summed_cross_entropy_backward)
_narrow_product = jax.custom_vjp(_narrow, nondiff_argnums=(2,))
_narrow_product.defvjp(_narrow_forward, _narrow_backward)
_gathered = jax.custom_vjp(_gather, nondiff_argnums=(1,))
_gathered.defvjp(_gather_forward, _gather_backward)
layer_norm = jax.custom_vjp(_layer_norm, nondiff_argnums=(3,))
layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
rms_norm = jax.custom_vjp(_rms_norm, nondiff_argnums=(2,))
rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)
gelu = jax.custom_vjp(_gelu)
gelu.defvjp(_gelu_forward, _gelu_backward)
gelu_tanh = jax.custom_vjp(_gelu_tanh)
gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)
silu = jax.custom_vjp(_silu)
silu.defvjp(_silu_forward, _silu_backward)
dropout = jax.custom_vjp(_dropout, nondiff_argnums=(1,))
dropout.defvjp(_dropout_forward, _dropout_backward)
