"""Local-attention initialisation: half of the heads start on the nearest tokens.

Source: sinusoids, https://arxiv.org/abs/1706.03762, section 3.5.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.backends.base import variables_by_path
from core.training.cooccurrence import find_token_embeddings

if TYPE_CHECKING:
    import keras

_TABLE = "/embeddings/positions/table"
_KERNEL = re.compile(r"/layer_\d+/attention/qkv/kernel")
_LENGTH = 1.0
# Radians per token; low frequencies are denser, lest distant tokens look near.
_HIGHEST_FREQUENCY = 1.5
# In tokens.
_NEAREST = 4
# Nearer distances weigh more, against the many distant tokens.
_NEAR = 8
_MOST_DISTANCES = 1024
_SMOOTHING = 0.1


def local_attention_weights(
    model: keras.Model, heads: int, row_length: int
) -> dict[str, NDArray[np.float32]]:
    """Computes initial weights by path; padding's zero vectors stay."""
    weights = variables_by_path(model, None)
    word_length = float(np.sqrt(np.square(find_token_embeddings(model)).sum(axis=1).mean()))
    initial: dict[str, NDArray[np.float32]] = {}
    for path, positions in weights.items():
        if path.endswith(_TABLE) and positions.shape[1] >= 2 * heads:
            stack, (count, width) = path.removesuffix(_TABLE), positions.shape
            sides = (-1, -1) if "decoder" in stack else (-1, 1)
            waves = PositionWaves(count, width, width // heads, reach=row_length)
            initial[path] = np.where(np.any(positions, axis=1, keepdims=True), waves.table(), 0)
            # Length of the position's part of normalised inputs.
            share = _LENGTH / math.hypot(_LENGTH, word_length) * math.sqrt(width)
            for name, kernel in weights.items():
                if name.startswith(stack) and _KERNEL.fullmatch(name.removeprefix(stack)):
                    drawn = np.asarray(kernel).reshape(width, 3, heads, -1)
                    initial[name] = _with_heads(drawn, waves, share, sides).reshape(width, -1)
    return initial


def _with_heads(
    kernel: NDArray[np.float32], waves: PositionWaves, share: float, sides: tuple[int, int]
) -> NDArray[np.float32]:
    """Replaces half of the heads in a QKV kernel (H, 3, N, D)."""
    kernel = np.array(kernel, np.float32)
    heads = kernel.shape[2]
    for head in range(min(heads, max(2, heads // 2))):
        kernel[:, :2, head] = waves.query_and_key(share, sides[head % 2])
    return kernel


class PositionWaves:
    """Sinusoids in a few directions of the hidden space.

    Args:
        width: Hidden size, H.
        head_size: D, at least 2.
        reach: Largest distance.
    """

    def __init__(self, count: int, width: int, head_size: int, *, reach: int | None = None) -> None:
        self._count = count
        self._reach = min(count, reach or count, _MOST_DISTANCES)
        self._head_size = head_size
        number = head_size // 2
        self._frequencies = _HIGHEST_FREQUENCY * ((np.arange(number) + 0.5) / number) ** 2
        self._generator = np.random.default_rng(0)
        # (H, 2, number)
        self._directions = self._draw(width).reshape(width, 2, number)
        self._fit_ahead = self._fit()

    def table(self) -> NDArray[np.float32]:
        """Returns position embeddings, float32 (count, H)."""
        angles = np.arange(self._count)[:, None] * self._frequencies
        waves = np.stack([np.sin(angles), np.cos(angles)], axis=1)
        vectors = _flat(waves) @ _flat(self._directions).T
        return (_LENGTH * vectors / math.sqrt(len(self._frequencies))).astype(np.float32)

    def query_and_key(self, share: float, side: int) -> NDArray[np.float32]:
        """Returns random query and key kernels, (H, 2, D).

        Args:
            share: Length of the position's part of the hidden states.
            side: -1 attends behind, 1 ahead.
        """
        # A dot product is the mean over frequencies.
        unit = len(self._frequencies) * math.sqrt(self._head_size) / share**2
        cosines, sines = self._fit_ahead * unit
        sines = side * sines
        sizes = np.sqrt(np.hypot(cosines, sines)) + 1e-9
        inner = self._draw(self._head_size).reshape(self._head_size, 2, -1)
        # a cos(f (k - q)) + b sin(f (k - q))
        turned = np.array([[cosines, sines], [-sines, cosines]]) / sizes
        asked = np.einsum("hwf,vwf->hvf", self._directions, turned)
        query = _flat(asked) @ _flat(inner).T
        key = _flat(self._directions * sizes) @ _flat(inner).T
        return np.stack([query, key], axis=1).astype(np.float32)

    def _draw(self, width: int) -> NDArray[np.float64]:
        """Returns orthogonal directions, (width, 2 · number)."""
        directions = self._generator.standard_normal((width, self._head_size // 2 * 2))
        return np.linalg.qr(directions)[0]

    def _fit(self) -> NDArray[np.float64]:
        """Fits cosine and sine weights, (2, number).

        The nearest tokens' target, log(reach), offsets the number of others.
        """
        reach = self._reach
        distances = np.arange(-reach, reach + 1)
        is_nearest = (distances > 0) & (distances <= _NEAREST)
        wanted = math.log(reach) * is_nearest
        matter = np.where(np.abs(distances) <= _NEAR, 3 * max(1, math.sqrt(reach / 128)), 1)
        angles = distances[:, None] * self._frequencies
        waves = np.concatenate([np.cos(angles), np.sin(angles), np.ones_like(angles[:, :1])], 1)
        waves, wanted = waves * matter[:, None], wanted * matter
        smoothing = np.diag([_SMOOTHING] * (waves.shape[1] - 1) + [0])
        shares = np.linalg.solve(waves.T @ waves + smoothing, waves.T @ wanted)
        return shares[:-1].reshape(2, -1)


def _flat(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.reshape(len(values), -1)
