"""TensorFlow implementation of `core.backends.compilation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


def compile_function(
    function: Callable[..., Any], static: Sequence[int], donated: Sequence[int]
) -> Callable[..., Any]:
    """Compiles a function; TensorFlow finds Python values itself and donates no memory."""
    return tf.function(function, autograph=False)


def compile_method(
    model: keras.Model, name: str, *, weights_change: bool = False
) -> Callable[..., Any]:
    """Compiles a method; TensorFlow reads the model's variables."""
    return compile_function(getattr(model, name), static=(), donated=())


@contextmanager
def full_float32() -> Iterator[None]:
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


def enable_compilation_cache(folder: Path) -> None:
    """Does nothing: TensorFlow keeps no compiled graphs on disk."""
