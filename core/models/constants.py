"""Numbers that the kernels of both engines share."""

from __future__ import annotations

# The mesh axis that both the rows of a batch and the weights are spread along. A mesh without it
# spreads the rows only.
SPREAD_AXIS = "fsdp"

# On one device: 256 MiB, and as much again for the softmax and for the gradient. Fewer are slower:
# each piece costs a pass over the gradient of the table.
LOGITS_AT_ONCE = 1 << 26

# Of the GELU: Φ(x) = (1 + erf(x √½)) / 2, and Φ'(x) = exp(-x²/2) / √(2π).
SQRT_HALF = 0.7071067811865476
INVERSE_SQRT_2_PI = 0.3989422804014327

# Of its approximation: (1 + tanh(√(2/π) (x + a·x³))) / 2 in place of Φ(x).
SQRT_2_BY_PI = 0.7978845608028654
GELU_CUBE = 0.044715

# Of the hash that numbers become random bits by: (shift, factor) of each round, and a last shift.
# Source: https://github.com/skeeto/hash-prospector, "lowbias32" with the lowest bias found.
MIXING = ((16, 0x21F0AAAD), (15, 0x735A2D97))
LAST_SHIFT = 15


def drop_below(rate: float) -> int:
    """Returns the number that random 32-bit integers are below with probability `rate`."""
    return round(rate * 2**32)
