"""Compiles functions, and caches compiled programs on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.backends.devices import Devices

if TYPE_CHECKING:
    import keras

_COMPILED_BYTES = 1 << 30


def compile_function(
    function: Callable[..., Any], *, static: Sequence[int] = (), donated: Sequence[int] = ()
) -> Callable[..., Any]:
    """Compiles a function of tensors, once per set of shapes.

    JAX only: `static` arguments are Python values, `donated` ones lend their memory.
    """
    import keras

    if keras.config.backend() == "jax":
        import jax

        return jax.jit(function, static_argnums=tuple(static), donate_argnums=tuple(donated))
    import tensorflow as tf

    return tf.function(function, autograph=False)


def compile_method(model: keras.Model, name: str) -> Callable[..., Any]:
    """Compiles a model's method; weights are arguments, integers constants."""
    import keras

    method = getattr(model, name)
    if keras.config.backend() != "jax":
        return compile_function(method)
    # Walking all layers takes as long as a small model's step.
    variables = list(model.variables)
    weights = [variable.value for variable in variables]

    def run(weights: list[Any], arguments: tuple[Any, ...], fixed: tuple[int, ...]) -> Any:
        with keras.StatelessScope(state_mapping=zip(variables, weights, strict=True)):
            return method(*arguments, *fixed)

    compiled = compile_function(run, static=(2,))

    def call(*arguments: Any) -> Any:
        tensors = tuple(one for one in arguments if not isinstance(one, int))
        fixed = tuple(one for one in arguments if isinstance(one, int))
        return compiled(weights, tensors, fixed)

    return call


@contextmanager
def full_float32() -> Iterator[None]:
    """Computes float32 matmuls without TensorFloat-32, whose mantissa has 10 bits."""
    import keras

    if keras.config.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
        return
    import tensorflow as tf

    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


def enable_compilation_cache(devices: Devices, folder: Path) -> None:
    """Enables JAX's compilation cache, unless configured."""
    if devices.engine != "jax":
        return
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", _COMPILED_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
