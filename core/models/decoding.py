"""A model's methods as functions of its weights, to be compiled by either engine.

What to do with the logits, one token at a time, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def compile_method(model: keras.Model, name: str) -> Callable[..., Any]:
    """Returns a method that is compiled once for each set of shapes.

    Weights are arguments of what is compiled, and aren't copied into it. They are taken as they are
    now.

    Args:
        model: Built.
        name: Of a method that takes and returns tensors, in dictionaries and lists if need be:
            `start_cache`, `decode_step`, `encode`. Whole numbers stay what they are.
    """
    if keras.config.backend() == "jax":
        return _compile_jax(model, name)
    import tensorflow as tf

    return tf.function(getattr(model, name), autograph=False)


def _compile_jax(model: keras.Model, name: str) -> Callable[..., Any]:
    import jax

    # Listed once: the walk through all layers takes as long as a small model's step.
    variables = list(model.variables)
    weights = [variable.value for variable in variables]

    def run(weights: list[Any], arguments: tuple[Any, ...], fixed: tuple[int, ...]) -> Any:
        mapping = zip(variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            return getattr(model, name)(*arguments, *fixed)

    compiled = jax.jit(run, static_argnums=2)

    def call(*arguments: Any) -> Any:
        tensors = tuple(one for one in arguments if not isinstance(one, int))
        fixed = tuple(one for one in arguments if isinstance(one, int))
        return compiled(weights, tensors, fixed)

    return call
