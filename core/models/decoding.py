"""Autoregressive decoding with a key-value cache."""

from __future__ import annotations

from core.models import kernels
from core.models.layers import Cache, Tensor


class Decoding:
    """Mixin for models that implement `predict_next`.

    A cache holds the number of tokens, `positions` (B,), and each layer's `key` and `value` (B, N,
    D, M). Predicting and writing in one function would copy the cache.
    """

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns logits, float32 (B, S, V), and each layer's new keys and values."""
        raise NotImplementedError

    def extend_cache(self, cache: Cache, new: list[Cache]) -> Cache:
        """Writes keys and values (B, N, D, S)."""
        positions = cache["positions"]
        layers = [
            {
                **old,
                **{name: kernels.write_slots(old[name], slots[name], positions) for name in slots},
            }
            for old, slots in zip(cache["layers"], new, strict=True)
        ]
        count = new[0]["key"].shape[-1]
        return {**cache, "positions": positions + count, "layers": layers}

    def decode_step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Returns logits and the extended cache.

        After a padded prompt, reset its `positions`.
        """
        logits, new = self.predict_next(ids, cache)
        return logits, self.extend_cache(cache, new)

    def fill_cache(self, ids: Tensor, cache: Cache) -> Cache:
        """Extends the cache; compiled, it skips the costly logits."""
        return self.decode_step(ids, cache)[1]
