"""Declares the services that receive the figures of runs.

Choices, pattern, help and the selection of environment variables follow from a declaration;
`core/reporting/NAME_service.py` sends the figures.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportingService:
    """A service.

    Attributes:
        package: The Python package that it needs.
    """

    name: str
    package: str

    @property
    def prefix(self) -> str:
        """The beginning of its environment variables, which no other process gets."""
        return f"{self.name.upper()}_"


SERVICES = {
    service.name: service
    for service in (
        ReportingService("trackio", "trackio"),
        ReportingService("wandb", "wandb"),
        ReportingService("mlflow", "mlflow"),
    )
}
_FIRST, *_LATER = SERVICES
_ANY = "|".join(SERVICES)
PATTERN = rf"^$|^({_ANY})([, ]+({_ANY}))*$"
EXPECTED = f"{', '.join([_FIRST, *_LATER[:-1]])} or {_LATER[-1]}, or several with commas"
CHOICES = ("", *SERVICES, *(f"{_FIRST}, {name}" for name in _LATER))
PREFIXES = tuple(service.prefix for service in SERVICES.values())
