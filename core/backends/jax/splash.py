"""Causal attention as one kernel of a TPU, which keeps documents apart.

Source: https://arxiv.org/abs/2205.14135, as `jax.experimental.pallas.ops.tpu.splash_attention`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

Tensor = Any

# Queries and keys in a block.
_BLOCK = 512
# The product of a block's queries and keys, its use and their gradients.
_PRODUCTS = 7
_LEAST_LENGTH = 1024
# Their compiler refuses the kernel's products of bfloat16.
_KINDS_WITHOUT_KERNEL = ("TPU v2", "TPU v3")
# Products of float32 are rounded to bfloat16 there.
_TOLERANCE = 0.05


def applies(length: int) -> bool:
    """Returns whether the kernel computes sequences of this length on the devices in use."""
    if not fits(length):
        return False
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None:
        return described.platform == "tpu" and has_kernel(described.device_kind)
    return jax.devices()[0].platform == "tpu" and is_right()


def has_kernel(device_kind: str) -> bool:
    """Returns whether TPUs of this kind, as JAX names it, can compute the kernel."""
    return device_kind not in _KINDS_WITHOUT_KERNEL


def fits(length: int) -> bool:
    """Returns whether the kernel is meant for sequences of this length."""
    return length >= _LEAST_LENGTH and length % _BLOCK == 0


def flops(length: int, size: int) -> float:
    """Returns the FLOPs of a sequence with its gradients, which no compiler counts.

    Args:
        size: Sum of the head sizes.
    """
    visible = length * (length + _BLOCK) / 2
    return 2.0 * _PRODUCTS * visible * size


@cache
def is_right() -> bool:
    """Compares the kernel with plain attention, once: on a TPU of one kind it was wrong.

    Called first outside of what JAX traces. Source: https://github.com/jax-ml/jax/issues/35916.
    """
    try:
        return differs_by() < _TOLERANCE
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        return False  # An old TPU lacks what the kernel needs.


def differs_by(*, interpret: bool = False) -> float:
    """Returns the largest difference from plain attention for two documents in a sequence."""
    generator = np.random.default_rng(0)
    shape = (1, _LEAST_LENGTH, 1, 128)
    query, key, value = generator.standard_normal((3, *shape), np.float32)
    first = _LEAST_LENGTH // 3
    places = np.arange(_LEAST_LENGTH)
    starts = np.where(places < first, 0, first).astype(np.int32)
    hidden = (places > places[:, None]) | (starts[None] != starts[:, None])
    logits = query[0, :, 0] @ key[0, :, 0].T / np.sqrt(shape[-1]) + np.where(hidden, -np.inf, 0)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ value[0, :, 0]
    compute = jax.jit(partial(attention, interpret=interpret))
    computed = compute(query, key, value, shape[-1] ** -0.5, starts[None])
    return float(np.abs(np.asarray(computed, np.float32)[0, :, 0] - expected).max())


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    text_starts: Tensor | None,
    *,
    interpret: bool = False,
) -> Tensor:
    """Computes causal attention; see `core.models.kernels.attention` for the arguments.

    Args:
        interpret: Computes on a CPU what the kernel would.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as kernels

    length = query.shape[1]
    attend = kernels.make_splash_mha_single_device(
        kernels.MultiHeadMask([kernels.CausalMask((length, length))] * query.shape[2]),
        block_sizes=kernels.BlockSizes(
            block_q=_BLOCK,
            block_kv=_BLOCK,
            block_q_dkv=_BLOCK,
            block_kv_dkv=_BLOCK,
            use_fused_bwd_kernel=True,
        ),
        interpret=interpret,
    )

    def of_sequence(query: Tensor, key: Tensor, value: Tensor, starts: Tensor | None) -> Tensor:
        heads = (jnp.swapaxes(part, 0, 1) for part in (query * scale, key, value))
        documents = None if starts is None else kernels.SegmentIds(starts, starts)
        return jnp.swapaxes(attend(*heads, segment_ids=documents), 0, 1)

    has_documents = text_starts is not None
    of_device = jax.vmap(of_sequence, in_axes=(0, 0, 0, 0 if has_documents else None))
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.axis_names:
        return of_device(query, key, value, text_starts)
    rows = PartitionSpec(mesh.axis_names)
    return jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(rows, rows, rows, rows if has_documents else PartitionSpec()),
        out_specs=rows,
        check_vma=False,
    )(query, key, value, text_starts)
