"""Exchanges arrays between processes on their CPUs, for a backend that can't."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from core.backends.jax.mesh import DeviceMesh, to_host


class ProcessExchange:
    """Combines arrays of joined processes, which must all call it equally often."""

    def __init__(self) -> None:
        self._mesh = DeviceMesh(jax.devices("cpu"), "data")
        whole = self._mesh.whole()
        self._sum = jax.jit(lambda rows: jnp.sum(rows, axis=0), out_shardings=whole)
        self._largest = jax.jit(jnp.max, out_shardings=whole)

    def sum(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the sum of the processes' arrays, alike on all of them."""
        return to_host(self._sum(self._rows(values)))

    def largest(self, value: int) -> int:
        """Returns the largest of the processes' numbers."""
        return int(to_host(self._largest(self._rows(np.array(value, np.int32)))))

    def _rows(self, values: NDArray) -> jax.Array:
        return jax.make_array_from_process_local_data(self._mesh.rows(), values[None])
