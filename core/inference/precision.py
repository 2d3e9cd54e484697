"""Which precision to answer in: bfloat16 where the processor is faster with it.

Importing this imports no engine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from core.config import DTYPES, Dtype
from core.errors import ConfigError
from core.models.architecture import Architecture
from core.training.precision import gain_of

logger = logging.getLogger(__name__)
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 60
_ENOUGH_SECONDS = 0.3
# Below it the answers, which are rounded then, gain too little.
_WORTH_IT = 1.2
# Of the kernels that are multiplied with, in float32: more than a processor keeps at hand.
_MOST_KERNEL_BYTES = 256 << 20

_gains: dict[tuple[int, ...], float] = {}
_lock = threading.Lock()


def check_dtype(dtype: str) -> None:
    """Checks the name of a precision.

    Raises:
        ConfigError: There is none of that name.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            "There is no such precision",
            expected=" or ".join(DTYPES),
            received=repr(dtype),
            fix="take float32, which is exact, or auto, which is as fast as it can be here",
            field="dtype",
        )


def choose_dtype(dtype: Dtype, architecture: Architecture, tokens: int) -> Dtype:
    """Returns the precision to compute in: what was asked for; for auto, what is faster here.

    For auto the products of feed-forward layers like the model's are timed in both, in turn: of as
    many layers as it has, up to 256 MiB of kernels. It takes some tenths of a second, once for
    models of one size. An engine must have been imported.

    Args:
        dtype: What was asked for.
        architecture: The model's dimensions.
        tokens: How many are computed at once, typically.
    """
    if dtype != "auto":
        return dtype
    layers = _layers(architecture)
    sizes = (architecture.hidden_size, architecture.intermediate_size, layers, tokens)
    with _lock:
        if sizes not in _gains:
            _gains[sizes] = _measure(*sizes)
        gain = _gains[sizes]
    return dtype_by_gain(gain, "products were")


def dtype_by_gain(gain: float, measured: str) -> Dtype:
    """Returns the precision that is worth it, and logs why.

    Args:
        gain: How many times as fast something was in bfloat16.
        measured: What was, with its verb.
    """
    chosen: Dtype = "bfloat16" if gain >= _WORTH_IT else "float32"
    logger.info("Answers in %s: in bfloat16 %s %.1f times as fast", chosen, measured, gain)
    return chosen


def _layers(architecture: Architecture) -> int:
    """Returns how many feed-forward layers there are, or as many of them as may be made."""
    layers = architecture.num_hidden_layers + getattr(architecture, "num_decoder_layers", 0)
    layer_bytes = 2 * 4 * architecture.hidden_size * architecture.intermediate_size
    return max(1, min(layers, _MOST_KERNEL_BYTES // layer_bytes))


def _measure(hidden: int, intermediate: int, layers: int, tokens: int) -> float:
    """Returns how many times as fast products are in bfloat16."""
    calls = {
        dtype: _products(hidden, intermediate, layers, tokens, dtype)
        for dtype in ("float32", "bfloat16")
    }
    return gain_of(calls, _FEWEST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS)


def _products(
    hidden: int, intermediate: int, layers: int, tokens: int, dtype: str
) -> Callable[[], Any]:
    """Returns what computes the products of a stack of feed-forward layers, and waits for them."""
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
    compiled = _compile(stack)
    return lambda: ops.convert_to_numpy(compiled(inputs, kernel_pairs)[:1, :1])


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import keras

    if keras.config.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, autograph=False)
