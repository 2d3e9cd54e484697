"""Constants that the kernels of both backends share."""

from __future__ import annotations

# Mesh axis that shards batch and weights. A mesh without it shards the batch only.
SHARDED_AXIS = "fsdp"

# Per chunk and device: 256 MiB, and as much again for the softmax and for the gradient. Smaller
# chunks are slower: each costs a pass over the embedding matrix's gradient.
MAX_LOGITS_PER_CHUNK = 1 << 26

# GELU: Φ(x) = (1 + erf(x √½)) / 2, and Φ'(x) = exp(-x²/2) / √(2π).
SQRT_HALF = 0.7071067811865476
INVERSE_SQRT_2_PI = 0.3989422804014327

# tanh GELU: (1 + tanh(√(2/π) (x + a·x³))) / 2 instead of Φ(x).
SQRT_2_BY_PI = 0.7978845608028654
GELU_CUBE = 0.044715

# Integer hash for random bits: (shift, factor) per round, and a last shift.
# Source: https://github.com/skeeto/hash-prospector, "lowbias32" with the lowest bias found.
MIXING = ((16, 0x21F0AAAD), (15, 0x735A2D97))
LAST_SHIFT = 15


def drop_below(rate: float) -> int:
    """Returns the threshold that a random uint32 is below with probability `rate`."""
    return round(rate * 2**32)
