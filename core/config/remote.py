"""Options of where a run is executed, which several stages share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from core.config import targets
from core.config.base import StageConfig
from core.config.options import MIRROR_PATTERN, option
from core.errors import ConfigError

_GROUP = "Where to run"
_LIMITS = ("max_hours", "max_cost", "price_per_hour")


def target_option() -> Any:
    return option(
        "",
        "The machine that does the work; empty: this one.",
        details=f"{targets.EXPECTED}: docs/remote.md.",
        title="Address",
        group=_GROUP,
        basic=True,
        pattern=targets.PATTERN,
        identity=False,
    )


def max_hours_option() -> Any:
    return option(
        None,
        "Hours after which the machine ends, and a training saves; empty: no limit.",
        title="Hours at most",
        group=_GROUP,
        basic=True,
        gt=0,
        le=10_000,
        identity=False,
    )


def max_cost_option() -> Any:
    return option(
        None,
        "US dollars after which the machine ends, and a training saves; empty: no limit.",
        title="Dollars at most",
        group=_GROUP,
        basic=True,
        gt=0,
        le=1_000_000,
        identity=False,
    )


def price_option() -> Any:
    return option(
        None,
        "US dollars per hour of the machine; empty: as the target says.",
        title="Price per hour",
        group=_GROUP,
        basic=True,
        ge=0,
        le=100_000,
        identity=False,
    )


def mirror_option() -> Any:
    return option(
        "",
        "Address that receives events, checkpoints and the result during the run.",
        details=(
            "gs://bucket/folder, s3://bucket/folder, hf://buckets/owner/name, ssh://host/folder or "
            "file:///folder. Another machine follows the run there: docs/remote.md."
        ),
        group=_GROUP,
        pattern=MIRROR_PATTERN,
        path=True,
        identity=False,
    )


class RemoteConfig(StageConfig):
    """Options of a stage that another machine can execute.

    Each config declares the fields at their place in its form, with the functions above.
    """

    if TYPE_CHECKING:
        target: str
        max_hours: float | None
        max_cost: float | None
        price_per_hour: float | None
        mirror: str

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        given = next((name for name in _LIMITS if getattr(self, name) is not None), "")
        if given and not self.target:
            raise ConfigError(
                f"⟬{given}⟭ is a limit of a machine elsewhere, and there is no target",
                expected="a target, or none of " + ", ".join(f"⟬{name}⟭" for name in _LIMITS),
                received=f"⟬{given}={getattr(self, given)}⟭ without a target",
                fix=f"set ⟬target⟭ too, or leave ⟬{given}⟭ out",
                field=given,
            )
        return self
