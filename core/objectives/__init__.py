"""Pre-training objectives in NumPy: a batch is a function of (examples, seed, step)."""

from core.objectives.objective import Objective, ObjectiveSettings, Vocabulary
from core.objectives.registry import (
    OBJECTIVES,
    create_objective,
    stored_sequence_length,
)

__all__ = [
    "OBJECTIVES",
    "Objective",
    "ObjectiveSettings",
    "Vocabulary",
    "create_objective",
    "stored_sequence_length",
]
