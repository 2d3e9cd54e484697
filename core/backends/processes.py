"""Broadcasts from rank 0; all processes must call these functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.backends.devices import Devices


def broadcast(value: Any, devices: Devices) -> Any:
    """Broadcasts rank 0's JSON value."""
    if devices.processes == 1:
        return value
    text = json.dumps(value).encode("utf-8") if devices.is_first else b""
    length = int(_broadcast(np.array(len(text), np.int32)))
    room = np.zeros(length, np.uint8)
    if devices.is_first:
        room[:] = np.frombuffer(text, np.uint8)
    return json.loads(np.asarray(_broadcast(room)).tobytes().decode("utf-8"))


def broadcast_arrays(
    arrays: Mapping[str, NDArray], like: Mapping[str, Any], devices: Devices
) -> Mapping[str, NDArray]:
    """Broadcasts rank 0's arrays, shaped `like`."""
    if devices.processes == 1:
        return arrays
    shared = {}
    for name, array in like.items():
        local_array = arrays[name] if devices.is_first else np.zeros(array.shape, array.dtype)
        shared[name] = np.asarray(_broadcast(np.asarray(local_array, array.dtype)))
    return shared


def _broadcast(array: NDArray) -> Any:
    # Only JAX shares a run between processes.
    from core.backends.jax.mesh import broadcast_from_rank_0

    return broadcast_from_rank_0(array)
