"""What models that write have in common, and their methods as functions of their weights.

What to do with the logits, one token at a time, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from core.models import kernels
from core.models.layers import Cache, Tensor


class Decoding:
    """Decoding with a cache, for models that have `predict_next`.

    A cache holds `positions` int32 (B,), how many tokens of each row are in it, and for each layer
    `key` and `value` (B, N, D, M). A step reads it, and writing to it is another: done at once,
    each step would copy all of it.
    """

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns the logits of the token after each, float32 (B, S, V), and keys and values.

        Args:
            ids: The next tokens, int32 (B, S): a prompt, or one token of each row.
            cache: Of what came before.
        """
        raise NotImplementedError

    def extend_cache(self, cache: Cache, new: list[Cache]) -> Cache:
        """Returns the cache with what `predict_next` returned.

        Args:
            cache: With room for it.
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
        """Returns the logits of the token after each, float32 (B, S, V), and the cache with them.

        For the arguments see `predict_next`. Set the cache's `positions` back behind a prompt that
        was padded.
        """
        logits, new = self.predict_next(ids, cache)
        return logits, self.extend_cache(cache, new)

    def fill_cache(self, ids: Tensor, cache: Cache) -> Cache:
        """Returns the cache with new tokens, as `decode_step` does, without saying anything.

        A prompt's logits are most of its cost where the vocabulary is large.
        """
        return self.decode_step(ids, cache)[1]


def compile_method(model: keras.Model, name: str) -> Callable[..., Any]:
    """Returns a method that is compiled once for each set of shapes.

    Weights are arguments of what is compiled, and aren't copied into it. They are taken as they are
    now.

    Args:
        model: Built.
        name: Of a method that takes and returns tensors, in dictionaries and lists if need be:
            `start_cache`, `predict_next`, `encode`. Whole numbers stay what they are.
    """
    if keras.config.backend() == "jax":
        return _compile_jax(model, name)
    import tensorflow as tf

    return tf.function(getattr(model, name), autograph=False)


def compile_extend_cache(model: Decoding) -> Callable[[Cache, list[Cache]], Cache]:
    """Returns `extend_cache`, compiled. The given cache is gone afterwards."""
    if keras.config.backend() == "jax":
        import jax

        return jax.jit(model.extend_cache, donate_argnums=0)
    import tensorflow as tf

    return tf.function(model.extend_cache, autograph=False)


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
