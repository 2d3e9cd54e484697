"""Chooses the precision for inference."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.options import DTYPES, Dtype
from core.backends.compilation import compile_function
from core.backends.precision import gain_of
from core.errors import ConfigError

logger = logging.getLogger(__name__)
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 60
_ENOUGH_SECONDS = 0.3
# Below this, the speed-up isn't worth the rounding errors.
_LEAST_INFERENCE_SPEEDUP = 1.2
# More than a processor's cache holds.
_MOST_KERNEL_BYTES = 256 << 20

_gains: dict[tuple[int, ...], float] = {}
_lock = threading.Lock()


def check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise ConfigError(
            "The precision is unknown",
            expected=" or ".join(DTYPES),
            received=repr(dtype),
            fix="choose float32 for exact results, or auto for the fastest precision on this "
            "machine",
            field="dtype",
        )


def choose_dtype(dtype: Dtype, architecture: Architecture, tokens: int) -> Dtype:
    """Resolves auto to the faster precision on this machine.

    Times feed-forward matmuls of `tokens` tokens: some tenths of a second per model size.
    """
    if dtype != "auto":
        return dtype
    layers = _layers(architecture)
    sizes = (architecture.hidden_size, architecture.intermediate_size, layers, tokens)
    with _lock:
        if sizes not in _gains:
            _gains[sizes] = _measure(*sizes)
        gain = _gains[sizes]
    return dtype_by_gain(gain, "matrix multiplication was")


def dtype_by_gain(gain: float, measured: str) -> Dtype:
    """Chooses bfloat16 if its speed-up `gain` is worth it; logs why."""
    chosen: Dtype = "bfloat16" if gain >= _LEAST_INFERENCE_SPEEDUP else "float32"
    line = "Inference uses %s: in bfloat16, %s %.1f times as fast as in float32"
    logger.info(line, chosen, measured, gain)
    return chosen


def _layers(architecture: Architecture) -> int:
    layers = architecture.num_hidden_layers + getattr(architecture, "num_decoder_layers", 0)
    layer_bytes = 2 * 4 * architecture.hidden_size * architecture.intermediate_size
    return max(1, min(layers, _MOST_KERNEL_BYTES // layer_bytes))


def _measure(hidden: int, intermediate: int, layers: int, tokens: int) -> float:
    calls = {
        dtype: _products(hidden, intermediate, layers, tokens, dtype)
        for dtype in ("float32", "bfloat16")
    }
    return gain_of(calls, _FEWEST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS)


def _products(
    hidden: int, intermediate: int, layers: int, tokens: int, dtype: str
) -> Callable[[], Any]:
    from keras import ops

    from core.models import kernels

    def stack(inputs: Any, kernel_pairs: Sequence[tuple[Any, Any]]) -> Any:
        for widening, narrowing in kernel_pairs:
            inputs = kernels.dense(kernels.dense(inputs, widening), narrowing)
        return inputs

    inputs = ops.zeros((tokens, hidden), dtype)
    kernel_pairs = [
        (ops.zeros((hidden, intermediate), dtype), ops.zeros((intermediate, hidden), dtype))
        for _ in range(layers)
    ]
    compiled = compile_function(stack)
    return lambda: ops.convert_to_numpy(compiled(inputs, kernel_pairs)[:1, :1])
