"""Rotary positions in NumPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from core.architecture.options import RotaryPositions, RotaryScaling


def rotary_tables(length: int, size: int, rotary: RotaryPositions) -> NDArray[np.float32]:
    """Computes cosines and sines, float32 (2, L, D); D is even.

    Source: https://arxiv.org/abs/2104.09864, section 3.2.2
    """
    theta, scaling = rotary.theta, rotary.scaling
    frequencies = 1.0 / theta ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    if scaling is not None:
        frequencies = frequencies * frequency_factors(size, theta, scaling)
    angles = np.outer(np.arange(length, dtype=np.float32), frequencies.astype(np.float32))
    angles = np.concatenate([angles, angles], axis=1)
    tables = np.stack([np.cos(angles), np.sin(angles)])
    if scaling is not None and scaling.attention_factor:
        tables *= np.float32(scaling.attention_factor)
    return tables


def frequency_factors(size: int, theta: float, scaling: RotaryScaling) -> NDArray[np.float64]:
    """Returns factors on the frequencies, (D / 2,): 1 keeps one, 1 / `factor` stretches it.

    Source: transformers 5, modeling_rope_utils.py
    """
    lowest = 1.0 / scaling.factor
    pairs = size // 2
    if scaling.rope_type == "linear":
        return np.full(pairs, lowest)
    # Rotations of each pair within the sequences of the pretraining.
    length = scaling.original_max_position_embeddings
    rotations = length / (2 * math.pi) * theta ** (-np.arange(0, size, 2) / size)
    if scaling.rope_type == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        unchanged_share = np.clip((rotations - low) / (high - low), 0, 1)
    else:
        first, last = (
            size * math.log(length / (beta * 2 * math.pi)) / (2 * math.log(theta))
            for beta in (scaling.beta_fast, scaling.beta_slow)
        )
        start, stop = max(math.floor(first), 0), min(math.ceil(last), size - 1)
        unchanged_share = 1 - np.clip((np.arange(pairs) - start) / max(stop - start, 1e-3), 0, 1)
    return unchanged_share + (1 - unchanged_share) * lowest
