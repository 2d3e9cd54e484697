"""Autoregressive decoding with a key-value cache (without sampling), and compiled methods."""

from __future__ import annotations

from core.backends import kernels
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
