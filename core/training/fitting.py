"""Which families can learn from rows: the tokenizer suits them, and the rows are laid out so."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from core.config import Family
from core.errors import ConfigError
from core.objectives import OBJECTIVES, objectives_of_family

if TYPE_CHECKING:
    from core.shards.read import Shards
    from core.tokenizer import StudioTokenizer

# Objectives that read the same rows.
LAID_OUT_ALIKE = ("mlm", "clm")


def misfits(shards: Shards, tokenizer: StudioTokenizer) -> dict[str, str]:
    """Returns, for each family, why it can't learn from rows; empty where it can."""
    from core.tokenizer.vocabulary import missing_for

    found: dict[str, str] = {}
    for family in get_args(Family):
        missing = missing_for(tokenizer, family)
        found[family] = f"the tokenizer lacks {missing}" if missing else ""
        objectives = objectives_of_family(family)
        if not missing and not any(reads(name, shards.objective) for name in objectives):
            found[family] = f"the rows are laid out for {shards.objective}"
    return found


def check_layout(objective: str, laid_out_for: str, name: str = "to come") -> None:
    """Refuses rows that were laid out for another objective.

    Args:
        objective: What is to be learned.
        laid_out_for: The objective that the rows were built with.
        name: What the shards are called.

    Raises:
        ConfigError: They don't fit.
    """
    if not reads(objective, laid_out_for):
        families = ", ".join(OBJECTIVES[laid_out_for].families)
        raise ConfigError(
            f"The shards {name} are laid out for another objective",
            expected=f"shards built with objective {objective}",
            received=f"shards built with objective {laid_out_for}",
            fix=f"build shards with objective {objective}, or choose a family for {laid_out_for}: "
            f"{families}",
            field="shards",
        )


def reads(objective: str, laid_out_for: str) -> bool:
    """Returns whether an objective can work with rows that were built with another, or itself."""
    return objective == laid_out_for or {objective, laid_out_for} <= set(LAID_OUT_ALIKE)
