"""Which precision to compute in: bfloat16 where the device is faster with it."""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Literal

from core.training.devices import Devices

DtypePolicy = Literal["float32", "mixed_bfloat16"]

# Rows, width and units of the product that is measured: a feed-forward layer's.
_SHAPES = {"cpu": (2048, 256, 1024), "gpu": (8192, 1024, 4096)}
_ROUNDS = 7
# What else a step does gains nothing, and casts cost something.
_WORTH_IT = 1.25


def choose_precision(devices: Devices) -> tuple[DtypePolicy, str]:
    """Measures products in both precisions, in turn, and returns the better policy and why.

    It takes some tenths of a second. A TPU computes in bfloat16 anyway.
    """
    if devices.kind == "tpu":
        return "mixed_bfloat16", "bfloat16, which a TPU's units multiply in"
    if devices.processes > 1 and devices.kind == "cpu":
        return "float32", "float32, since several hosts may differ in what they are fast with"
    ratio = _gain(_SHAPES[devices.kind])
    if ratio >= _WORTH_IT:
        return "mixed_bfloat16", f"bfloat16, in which products were {ratio:.1f} times as fast here"
    return "float32", f"float32: in bfloat16 products were only {ratio:.1f} times as fast here"


def _gain(shape: tuple[int, int, int]) -> float:
    """Returns how many times as fast a product is in bfloat16."""
    import keras

    factors = {name: _factors(shape, name) for name in ("float32", "bfloat16")}
    seconds: dict[str, list[float]] = {name: [] for name in factors}
    for number in range(_ROUNDS + 1):
        for name, (left, right) in factors.items():
            began = time.perf_counter()
            _wait_for(keras.ops.matmul(left, right))
            if number:  # The first one is compiled.
                seconds[name].append(time.perf_counter() - began)
    return median(seconds["float32"]) / median(seconds["bfloat16"])


def _factors(shape: tuple[int, int, int], dtype: str) -> tuple[Any, Any]:
    import keras

    rows, width, units = shape
    return keras.ops.ones((rows, width), dtype), keras.ops.ones((width, units), dtype)


def _wait_for(product: Any) -> None:
    import keras

    keras.ops.convert_to_numpy(product[:1, :1])
