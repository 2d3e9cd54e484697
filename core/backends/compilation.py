"""Compiles functions, and caches compiled programs on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from core.backends.devices import Devices


def compile_function(
    function: Callable[..., Any], *, static: Sequence[int] = (), donated: Sequence[int] = ()
) -> Callable[..., Any]:
    """Compiles a function of tensors, once per set of shapes.

    JAX only: `static` arguments are Python values, `donated` ones lend their memory.
    """
    return _of_keras().compile_function(function, static, donated)


def compile_method(
    model: keras.Model, name: str, *, weights_change: bool = False
) -> Callable[..., Any]:
    """Compiles a method of a built model. Weights are arguments, not constants of the program.

    Args:
        name: A method of tensors, or dictionaries and lists of them, such as `start_cache` or
            `__call__`. Integers stay Python integers.
        weights_change: Whether the model may get other weights between calls.
    """
    return _of_keras().compile_method(model, name, weights_change=weights_change)


def full_float32() -> AbstractContextManager[None]:
    """Computes float32 matmuls without TensorFloat-32, whose mantissa has 10 bits."""
    context: AbstractContextManager[None] = _of_keras().full_float32()
    return context


def enable_compilation_cache(devices: Devices, folder: Path) -> None:
    """Enables the backend's compilation cache, unless the user has configured one; JAX only."""
    _of(devices.engine).enable_compilation_cache(folder)


def _of_keras() -> Any:
    import keras

    return _of(keras.config.backend())


def _of(engine: str) -> Any:
    return import_module(f"core.backends.{engine}.compilation")
