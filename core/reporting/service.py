"""A service that receives the figures of runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from core.errors import StudioError
from core.processes.reporters import SERVICES
from core.reporting.feed import Figures

PROJECT = "pretrain-studio"


class ReportingError(StudioError):
    """A service can't be reported to."""


@dataclass(frozen=True)
class ReportedRun:
    """The run to report.

    Attributes:
        name: Name to show.
        settings: Its settings, without secrets.
        reference: The service's id of the run from an earlier process; "" for a new run.
        store: Folder for what the service keeps on this machine.
    """

    id: str
    name: str
    project: str
    settings: dict[str, Any]
    reference: str
    store: Path


class SafeNames:
    """Names of metrics that a service accepts; different metrics keep different names.

    Args:
        make: Returns a name that the service accepts.
    """

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._names:
            safe = base = self._make(name)
            number, used_names = 1, set(self._names.values())
            while safe in used_names:
                number += 1
                safe = f"{base}-{number}"
            self._names[name] = safe
        return self._names[name]


class Service(Protocol):
    """Sends figures; may raise any exception."""

    reference: str
    # Place to look at, for the run's log.
    place: str
    # Whether a failure may have sent some of the figures: metrics are sent one by one.
    sends_in_part: bool

    def send(self, figures: Sequence[Figures]) -> None: ...

    def finish(self, state: str, results: Figures | None) -> None:
        """Sends the run's results, such as test accuracies, and its end."""
        ...


def open_service(name: str, run: ReportedRun) -> Service:
    """Opens a service by its name; raises ReportingError without its package."""
    package = SERVICES[name].package
    if importlib.util.find_spec(package) is None:
        raise ReportingError(
            f"The package {package} is not installed",
            fix="pip install -c constraints.txt -r requirements-reporting.txt",
        )
    module = importlib.import_module(f"core.reporting.{name}_service")
    return module.open_run(run)


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that are set, as numbers and texts."""
    return {
        name: value if isinstance(value, str | bool | int | float) else str(value)
        for name, value in settings.items()
        if value not in (None, "", [], {})
    }


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
