"""Pre-training objectives in NumPy: a batch is a function of (examples, seed, step)."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
