"""Chooses bfloat16 if it is faster on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from core.backends.devices import Devices

DtypePolicy = Literal["float32", "mixed_bfloat16"]

# Rows, input and output size of a matmul, and matmuls in flight: on a GPU, dispatch takes longer
# than one.
_SHAPES = {"cpu": (2048, 256, 1024), "gpu": (8192, 4096, 8192)}
_PRODUCTS = {"cpu": 1, "gpu": 4}
_ROUNDS = 7
# The rest of a step gains nothing, and casts cost time.
_LEAST_TRAINING_SPEEDUP = 1.25


def choose_precision(
    devices: Devices, *, quiet: Callable[[], object] | None = None
) -> tuple[DtypePolicy, str]:
    """Chooses a policy, with the reason; calls `quiet` before timing."""
    if devices.kind == "tpu":
        return "mixed_bfloat16", "bfloat16, the native precision of TPUs"
    if _has_tensor_cores(devices):
        return "mixed_bfloat16", "bfloat16, the precision of this GPU's tensor cores"
    if devices.processes > 1 and devices.kind == "cpu":
        return "float32", "float32, because the fastest precision may differ between hosts"
    if quiet:
        quiet()
    ratio = _gain(_SHAPES[devices.kind], _PRODUCTS[devices.kind])
    if ratio >= _LEAST_TRAINING_SPEEDUP:
        return "mixed_bfloat16", (
            f"bfloat16: matrix multiplication was {ratio:.1f} times as fast as in float32"
        )
    return "float32", (
        f"float32: matrix multiplication in bfloat16 was only {ratio:.1f} times as fast"
    )


def _has_tensor_cores(devices: Devices) -> bool:
    """Returns True if the backend computes on a GPU with bfloat16 tensor cores."""
    if devices.kind != "gpu":
        return False
    kernels = import_module(f"core.backends.{devices.engine}.kernels")
    return bool(kernels.has_tensor_cores())


def _gain(shape: tuple[int, int, int], products: int) -> float:
    names = ("float32", "bfloat16")
    return gain_of({name: partial(_multiply, *_factors(shape, name), products) for name in names})


def gain_of(
    calls: Mapping[str, Callable[[], object]],
    fewest_rounds: int = _ROUNDS,
    most_rounds: int = _ROUNDS,
    enough_seconds: float = 0.0,
) -> float:
    """Returns the speedup of bfloat16 over float32, from median times.

    `calls` block. No round starts after `enough_seconds`, except the fewest.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for number in range(most_rounds):
        if number >= fewest_rounds and time.perf_counter() - started > enough_seconds:
            break
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return median(seconds["float32"]) / median(seconds["bfloat16"])


def _factors(shape: tuple[int, int, int], dtype: str) -> tuple[Any, Any]:
    import keras

    rows, width, units = shape
    return keras.ops.ones((rows, width), dtype), keras.ops.ones((width, units), dtype)


def _multiply(left: Any, right: Any, products: int) -> None:
    import keras

    for _ in range(products):
        product = keras.ops.matmul(left, right)
    keras.ops.convert_to_numpy(product[:1, :1])
