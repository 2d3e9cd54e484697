"""Constants that backends share."""

from __future__ import annotations

# A mesh without this axis shards the batch only.
SHARDED_AXIS = "fsdp"

# Smaller chunks cost more passes over the embedding matrix's gradient.
MAX_LOGITS_PER_CHUNK = 1 << 26

# For GELU.
SQRT_HALF = 0.7071067811865476
INVERSE_SQRT_2_PI = 0.3989422804014327

# For GELU with the tanh approximation.
SQRT_2_BY_PI = 0.7978845608028654
GELU_CUBE = 0.044715

# Integer hash, (shift, factor). Source: https://github.com/skeeto/hash-prospector
MIXING = ((16, 0x21F0AAAD), (15, 0x735A2D97))
LAST_SHIFT = 15


def drop_below(rate: float) -> int:
    """Returns the threshold below which a random uint32 is with probability `rate`."""
    return round(rate * 2**32)
