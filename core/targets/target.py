"""The protocol of a target: a place where a run is executed on another machine.

A target starts a machine, or a process on one, that runs `core/targets/bootstrap.py`. Everything
else travels through the mirror: code, inputs and settings there, events and checkpoints back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from core.config.targets import TARGETS, members_of
from core.errors import ConfigError

State = Literal["waiting", "starting", "running", "ended", "unknown", "unseen"]


@dataclass(frozen=True)
class Job:
    """One launch of a run.

    Attributes:
        run_id: Letters, digits and `-`.
        launch: Counts the run's launches from 1; with `run_id`, it names the machine.
        mirror: The mirror's root, as the machine reaches it.
        code: SHA-256 of the code's archive, which the mirror has as `blobs/SHA256`.
        spec: SHA-256 of the run's description in the mirror; "": not verified.
        seconds: Limit of the machine's life, installation included; None: no limit.
        secrets: Environment variables that must not be stored or shown anywhere.
        folder: The run's folder here, for what a target keeps of a launch.
    """

    run_id: str
    launch: int
    mirror: str
    code: str
    spec: str = ""
    seconds: float | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""

    @property
    def name(self) -> str:
        """The machine's name, unique among the launches of all runs."""
        return f"{self.run_id}-{self.launch}"

    @property
    def whole_seconds(self) -> int:
        """The limit, at least one second: machines take 0 for no limit."""
        return 0 if self.seconds is None else max(1, round(self.seconds))

    @property
    def arguments(self) -> list[str]:
        """Arguments of the bootstrap script; none is secret."""
        values = {"mirror": self.mirror, "run": self.run_id, "launch": self.launch}
        limit = {"seconds": self.whole_seconds} if self.whole_seconds else {}
        spec = {"spec": self.spec} if self.spec else {}
        pairs = {**values, "code": self.code, **spec, **limit}.items()
        return [part for name, value in pairs for part in (f"--{name}", str(value))]


@dataclass(frozen=True)
class Machine:
    """A machine, or a process on one, that a target has started.

    Attributes:
        target: Address of the target.
        id: The target's own identifier.
        created: Unix seconds; 0 if unknown.
        detail: For people, such as a flavour or a state.
    """

    target: str
    id: str
    run_id: str
    launch: int
    created: float = 0.0
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Machine:
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


@dataclass(frozen=True)
class Status:
    """A machine's state in the words of its target.

    Attributes:
        state: `ended` means that it will never run again: it finished, was preempted, or is gone.
            `unseen` means that only the mirror tells whether it runs.
        detail: The target's own words.
        place: The job, its nodes and its end, for people.
        seconds: Time that it has run, if the target counts it; waits between are none.
        is_cancelled: Whether somebody has ended it on purpose, at the target.
    """

    state: State
    detail: str = ""
    place: str = ""
    seconds: float | None = None
    is_cancelled: bool = False


@dataclass(frozen=True)
class MirrorRoot:
    """A mirror's root: its address from this computer, and from the machine."""

    here: str
    there: str


class Target(Protocol):
    """A place where runs are executed.

    All methods raise UnavailableError if nothing is known because the place can't be reached, and
    TargetError or ConfigError with advice if it refuses.

    Attributes:
        address: The user's text.
        creates_machines: Whether a launch creates a machine that costs money until it is deleted.
        carries_secrets: Whether a launch can carry secrets, such as the Hub's token.
        hosts: Computers that share a run.
    """

    address: str
    creates_machines: bool
    carries_secrets: bool
    hosts: int

    def check(self) -> str:
        """Verifies login, rights and room; returns a line about the machine for people."""

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the mirror to use: the one that the user asks for, or a default if ""."""

    def price_per_hour(self) -> float | None:
        """Returns US dollars per hour of the whole machine; None if unknown."""

    def launch(self, job: Job) -> Machine:
        """Starts a job. `find` must have shown that it isn't started already."""

    def find(self, run_id: str, launch: int) -> Machine | None:
        """Finds a machine by its job, if the answer to `launch` was lost."""

    def state(self, machine: Machine) -> Status:
        """Asks for a machine's state."""

    def log(self, machine: Machine) -> str:
        """Returns the end of the machine's own output; "" if there is none yet.

        Lines that begin with `studio: ` name the phases of the bootstrap script.
        """

    def cancel(self, machine: Machine) -> None:
        """Ends a job and deletes its machine; does nothing if it is gone."""

    def list_machines(self) -> list[Machine]:
        """Lists all machines of this program that still exist, those of other runs included."""


def printable(text: str) -> str:
    """Replaces what could control a terminal in words of a machine."""
    return "".join(character if character.isprintable() else " " for character in text)


# Scheme, module and class; each is imported when it is needed.
_TARGETS = {scheme: kind.opener for scheme, kind in TARGETS.items()}
LABELS = {scheme: kind.title for scheme, kind in TARGETS.items()}


def open_targets(addresses: str) -> list[Target]:
    """Opens a target, or the members of a pool; raises ConfigError as `open_target` does."""
    return [open_target(address) for address in members_of(addresses)]


def open_target(address: str) -> Target:
    """Opens a target by its address; raises ConfigError with `field="target"` if it is invalid."""
    reference = _TARGETS.get(urlsplit(address).scheme)
    if reference is None:
        raise ConfigError(
            "The target's address has an unknown scheme",
            expected="an address that begins with "
            + ", ".join(f"{scheme}://" for scheme in _TARGETS),
            received=address[:200],
            fix="see docs/remote.md for the addresses",
            field="target",
        )
    module, _, name = reference.partition(":")
    opener: Callable[[str], Target] = getattr(import_module(module), name)
    return opener(address)
