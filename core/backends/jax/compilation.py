"""JAX implementation of `core.backends.compilation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import keras

# Limit of the compilation cache; the least recently used programs are evicted first.
_COMPILED_BYTES = 1 << 30


def compile_function(
    function: Callable[..., Any], static: Sequence[int], donated: Sequence[int]
) -> Callable[..., Any]:
    return jax.jit(function, static_argnums=tuple(static), donate_argnums=tuple(donated))


def compile_method(
    model: keras.Model, name: str, *, weights_change: bool = False
) -> Callable[..., Any]:
    method = getattr(model, name)
    # Listed once: walking all layers takes as long as a small model's step.
    variables = list(model.variables)
    weights = [variable.value for variable in variables]

    def run(weights: list[Any], arguments: tuple[Any, ...], fixed: tuple[int, ...]) -> Any:
        with keras.StatelessScope(state_mapping=zip(variables, weights, strict=True)):
            return method(*arguments, *fixed)

    compiled = compile_function(run, static=(2,), donated=())

    def call(*arguments: Any) -> Any:
        tensors = tuple(argument for argument in arguments if not isinstance(argument, int))
        fixed = tuple(argument for argument in arguments if isinstance(argument, int))
        current = [variable.value for variable in variables] if weights_change else weights
        return compiled(current, tensors, fixed)

    return call


@contextmanager
def full_float32() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield


def enable_compilation_cache(folder: Path) -> None:
    """Enables the compilation cache, unless the user has configured one.

    Source: https://docs.jax.dev/en/latest/persistent_compilation_cache.html
    """
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", _COMPILED_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
