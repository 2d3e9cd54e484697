"""Sharding over JAX devices; fsdp: https://arxiv.org/abs/1910.02054, stage 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from core.backends.jax.kernels import part_of
from core.models.constants import SHARDED_AXIS

Array = Any

_DATA_AXIS = "data"


class DeviceMesh:
    """A one-dimensional mesh of devices, grouped by process."""

    def __init__(self, devices: Sequence[Any], sharding: str) -> None:
        self.size = len(devices)
        self._axis = SHARDED_AXIS if sharding == "fsdp" else _DATA_AXIS
        self._mesh = Mesh(np.array(devices), (self._axis,))

    def rows(self, *, axis: int = 0) -> NamedSharding:
        """Returns the sharding along `axis`."""
        return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, self._axis))

    def whole(self) -> NamedSharding:
        """Returns a replicated array's sharding."""
        return NamedSharding(self._mesh, PartitionSpec())

    def weight(self, shape: Sequence[int]) -> NamedSharding:
        """Returns a weight's or slot's sharding."""
        if self._axis == _DATA_AXIS:
            return self.whole()
        return NamedSharding(self._mesh, part_of(tuple(shape), self.size))

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Traces a function under this mesh."""

        @wraps(function)
        def call(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
                return function(*arguments)

        return call


def to_devices(array: NDArray, sharding: NamedSharding) -> Array:
    """Shards an array that every process holds."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def to_host(array: Array) -> NDArray:
    """Copies an array to the host, all-gathered."""
    if array.is_fully_addressable:
        return np.array(array)
    if array.is_fully_replicated:
        return np.array(array.addressable_data(0))
    return np.array(multihost_utils.process_allgather(array, tiled=True))


def broadcast_from_rank_0(array: NDArray) -> Any:
    """Returns rank 0's array on all processes; the others' have its shape and dtype."""
    return multihost_utils.broadcast_one_to_all(array)
