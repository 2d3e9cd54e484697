"""Rotary positions in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rotary_tables(length: int, size: int, theta: float) -> NDArray[np.float32]:
    """Computes cosines and sines, float32 (2, L, D); D is even.

    Source: https://arxiv.org/abs/2104.09864, section 3.2.2
    """
    frequencies = 1.0 / theta ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angles = np.outer(np.arange(length, dtype=np.float32), frequencies.astype(np.float32))
    angles = np.concatenate([angles, angles], axis=1)
    return np.stack([np.cos(angles), np.sin(angles)])
