"""Finds model families that can train on given shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.families import families_of_objective, list_families
from core.tokenizer.vocabulary import missing_for

if TYPE_CHECKING:
    from core.shards.read import Shards
    from core.tokenizer.loading import StudioTokenizer

LAID_OUT_ALIKE = ("mlm", "clm")


def incompatibilities(shards: Shards, tokenizer: StudioTokenizer) -> dict[str, str]:
    """Maps each family to its incompatibility, or ""; mentions of options are marked."""
    reasons: dict[str, str] = {}
    for family in list_families():
        missing = missing_for(tokenizer, family.name)
        reasons[family.name] = f"the tokenizer lacks {missing}" if missing else ""
        if not missing and not any(reads(name, shards.objective) for name in family.objectives):
            reasons[family.name] = (
                f"the shards were built for the objective ⟬objective:{shards.objective}⟭"
            )
    return reasons


def check_layout(objective: str, laid_out_for: str, name: str = "to come") -> None:
    """Raises ConfigError for another objective's layout."""
    if not reads(objective, laid_out_for):
        families = ", ".join(families_of_objective(laid_out_for))
        raise ConfigError(
            f"The shards {name} were built for another objective",
            expected=f"shards built with objective ⟬objective:{objective}⟭",
            received=f"shards built with objective ⟬objective:{laid_out_for}⟭",
            fix=f"build shards with objective ⟬objective:{objective}⟭, or choose a family that "
            f"trains with ⟬objective:{laid_out_for}⟭: {families}",
            field="shards",
        )


def describe_other_objective(objective: str, laid_out_for: str) -> tuple[str, str]:
    """Returns a warning if an encoder trains on shards for decoders, and a family for them; or "".

    The reverse is usual, as shards are built for an encoder unless told otherwise.
    """
    if (objective, laid_out_for) != ("mlm", "clm"):
        return "", ""
    families = families_of_objective(laid_out_for)
    sentence = (
        f"The shards were built for the objective ⟬objective:{laid_out_for}⟭ of "
        f"{', '.join(families)}; this model learns ⟬objective:{objective}⟭ and writes no text"
    )
    return sentence, families[0]


def reads(objective: str, laid_out_for: str) -> bool:
    """Returns whether two objectives share a layout."""
    return objective == laid_out_for or {objective, laid_out_for} <= set(LAID_OUT_ALIKE)
