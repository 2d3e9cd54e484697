"""Buckets of relative position biases in NumPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def distance_buckets(buckets: int, max_distance: int) -> NDArray[np.int32]:
    """Returns the bucket of each distance from 0 to `max_distance`, which stands for longer ones.

    Source: mesh_tensorflow, `_relative_position_bucket`; float32, as in transformers
    """
    exact = buckets // 2
    distances = np.arange(max_distance + 1)
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    wide = ratio / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    large = np.minimum(exact + wide.astype(np.int32), buckets - 1)
    return np.where(distances < exact, distances, large).astype(np.int32)
