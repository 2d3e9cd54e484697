"""Autoregressive decoding with a key-value cache (without sampling), and compiled methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from core.models import kernels
from core.models.layers import Cache, Tensor


class Decoding:
    """Mixin for models that implement `predict_next`.

    A cache holds `positions` int32 (B,), the number of cached tokens per sequence, and for each
    layer `key` and `value` (B, N, D, M). Predicting and writing are separate functions: in one,
    each step would copy the whole cache.
    """

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns next-token logits, float32 (B, S, V), and new keys and values per layer.

        Args:
            ids: int32 (B, S): a prompt, or one token per sequence.
            cache: Holds the preceding tokens.
        """
        raise NotImplementedError

    def extend_cache(self, cache: Cache, new: list[Cache]) -> Cache:
        """Writes new keys and values to a cache.

        Args:
            cache: A cache with room for them.
            new: Each layer's `key` and `value` (B, N, D, S).
        """
        positions = cache["positions"]
        layers = [
            {**old, **{name: kernels.write_slots(old[name], one[name], positions) for name in one}}
            for old, one in zip(cache["layers"], new, strict=True)
        ]
        count = new[0]["key"].shape[-1]
        return {**cache, "positions": positions + count, "layers": layers}

    def decode_step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Returns `predict_next`'s logits, and the extended cache.

        After a padded prompt, reset the cache's `positions` to the prompt's length.
        """
        logits, new = self.predict_next(ids, cache)
        return logits, self.extend_cache(cache, new)

    def fill_cache(self, ids: Tensor, cache: Cache) -> Cache:
        """Extends the cache; compiled, it skips the logits, which cost most if V is large."""
        return self.decode_step(ids, cache)[1]


def compile_method(model: keras.Model, name: str) -> Callable[..., Any]:
    """Compiles a method, once per set of shapes.

    The function takes the current weights as arguments, so they aren't copied into it.

    Args:
        model: A built model.
        name: A method of tensors, or dictionaries and lists of them: `start_cache`, `predict_next`,
            `encode`. Integers stay Python integers.
    """
    if keras.config.backend() == "jax":
        return _compile_jax(model, name)
    import tensorflow as tf

    return tf.function(getattr(model, name), autograph=False)


def compile_extend_cache(model: Decoding) -> Callable[[Cache, list[Cache]], Cache]:
    """Compiles `extend_cache`, which consumes the given cache."""
    if keras.config.backend() == "jax":
        import jax

        return jax.jit(model.extend_cache, donate_argnums=0)
    import tensorflow as tf

    return tf.function(model.extend_cache, autograph=False)


def _compile_jax(model: keras.Model, name: str) -> Callable[..., Any]:
    import jax

    # Listed once: walking all layers takes as long as a small model's step.
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
