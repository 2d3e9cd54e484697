"""Machines that a workspace keeps by name: address, price, and the answer to the last check.

Credentials are never kept; ssh, the Hub and clouds have their own. The file may come with a
workspace of somebody else, so what is read is checked again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from core.config import targets
from core.config.targets import place_of_target
from core.errors import ConfigError, StudioError
from core.foreign_files import parse_bounded_json, read_regular
from core.messages.redaction import has_password, redact_forms
from core.messages.suggestions import did_you_mean
from core.targets.target import Target, open_targets, printable
from core.workspace.atomic import write_atomically
from core.workspace.locks import file_lock
from core.workspace.names import check_name
from core.workspace.workspace import Workspace

MACHINES_FILE = "machines.json"
# Machines are switched off and moved; the run checks again before it uploads anything.
CHECK_HOLDS_SECONDS = 24 * 3600.0
_MOST_FILE_BYTES = 1 << 20
_MOST_MACHINES = 200
_LONGEST_ADDRESS = 4000
_LONGEST_ANSWER = 500
_MOST_DOLLARS = 100_000
_MOST_AT_ONCE = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

Price = Annotated[float, Field(ge=0, le=_MOST_DOLLARS, allow_inf_nan=False)]


class _Stored(BaseModel):
    # Unknown keys of a later version are ignored.
    model_config = ConfigDict(extra="ignore", frozen=True)


class MachineCheck(_Stored):
    """The answer to a check.

    Attributes:
        time: Unix seconds.
        answer: The machine's description of itself, or why the check failed.
    """

    time: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    passed: bool
    answer: Annotated[str, Field(max_length=_LONGEST_ANSWER)]


class SavedMachine(_Stored):
    """A machine with a name.

    Attributes:
        target: Address, as for `--target`.
        price_per_hour: US dollars; None if unknown.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    target: Annotated[
        str, Field(pattern=targets.PATTERN, min_length=1, max_length=_LONGEST_ADDRESS)
    ]
    price_per_hour: Price | None = None
    check: MachineCheck | None = None

    @property
    def has_passed(self) -> bool:
        """Whether a check has passed lately."""
        if self.check is None or not self.check.passed:
            return False
        return 0 <= time.time() - self.check.time <= CHECK_HOLDS_SECONDS

    @property
    def state(self) -> str:
        if self.has_passed:
            return "reachable"
        has_failed = self.check is not None and not self.check.passed
        return "not reachable" if has_failed else "not checked"

    @property
    def price(self) -> str:
        """The price for people; "" if unknown."""
        if self.price_per_hour is None:
            return ""
        return f"${self.price_per_hour:.2f}".removesuffix(".00") + " an hour"


def read_machines(workspace: Workspace) -> list[SavedMachine]:
    """Lists the saved machines by name; raises ConfigError for a damaged file."""
    path = workspace.root / MACHINES_FILE
    if not path.exists():
        return []
    data = read_regular(path, _MOST_FILE_BYTES, error=ConfigError)
    try:
        values = parse_bounded_json(data)["machines"]
        machines = [
            _printable(SavedMachine.model_validate(stored_machine))
            for stored_machine in values[:_MOST_MACHINES]
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"{path} can't be read",
            expected="the saved machines, as this program writes them",
            received=f"{type(error).__name__}",
            fix="delete the file, and add the machines again",
        ) from error
    by_name = {machine.name: machine for machine in machines}
    return sorted(by_name.values(), key=lambda machine: machine.name.lower())


def find_machine(workspace: Workspace, name: str) -> SavedMachine:
    """Finds a saved machine by its name; raises ConfigError."""
    machines = read_machines(workspace)
    machine = next((machine for machine in machines if machine.name == name), None)
    if machine is None:
        names = [machine.name for machine in machines]
        raise ConfigError(
            f"There is no saved machine {name[:100]!r}",
            expected=", ".join(names) or "the name of a saved machine; there is none yet",
            received=name[:100],
            fix=did_you_mean(name, names) or "add it with: studio machines add NAME ADDRESS",
            field="target",
        )
    return machine


def machine_at(workspace: Workspace, target: str) -> SavedMachine | None:
    """Returns the saved machine with an address, one with a passed check first."""
    machines = [machine for machine in read_machines(workspace) if machine.target == target]
    return next((machine for machine in machines if machine.has_passed), next(iter(machines), None))


def named_machine(workspace: Workspace, target: str) -> SavedMachine | None:
    """Returns the saved machine that a target names; None for an address."""
    return find_machine(workspace, target) if target and "://" not in target else None


def with_saved_machine(
    values: Mapping[str, Any], fields: Container[str], workspace: Workspace
) -> dict[str, Any]:
    """Replaces a saved machine's name in `target` by its address, and adds its price.

    Args:
        values: Settings of a stage or of pretraining, not parsed yet.
        fields: Names of all its settings.

    Raises:
        ConfigError: There is no machine of this name.
    """
    target = values.get("target")
    machine = named_machine(workspace, target) if isinstance(target, str) else None
    if machine is None:
        return dict(values)
    price = {"price_per_hour": machine.price_per_hour} if "price_per_hour" in fields else {}
    return {**price, **values, "target": machine.target}


def price_of(workspace: Workspace, target: str) -> float | None:
    """Returns the price of the saved machine with an address; None if unknown."""
    machine = machine_at(workspace, target) if target else None
    return machine.price_per_hour if machine else None


def save_machine(
    workspace: Workspace,
    target: str,
    name: str = "",
    price_per_hour: float | None = None,
    *,
    replaces: str = "",
) -> SavedMachine:
    """Saves a machine.

    Args:
        name: Empty: after its address.
        replaces: Name of the saved machine that is changed.

    Raises:
        ConfigError: The address, name or price is invalid, or the name is taken.
    """
    check_address(target)
    if name:
        check_name(name)
    if price_per_hour is not None and not 0 <= price_per_hour <= _MOST_DOLLARS:
        raise ConfigError(
            "The price can't be right",
            expected=f"US dollars per hour, from 0 to {_MOST_DOLLARS:,}",
            received=f"{price_per_hour}",
            fix="correct it, or leave it out",
            field="price_per_hour",
        )
    with _changing(workspace) as machines:
        before = machines.pop(replaces, None)
        name = name or (before.name if before else _free_name(target, machines))
        if name in machines:
            raise ConfigError(
                f"The name {name} is taken by {machines[name].target}",
                expected="a new name",
                received=name,
                fix=f"choose another name, or remove it with: studio machines remove {name}",
                field="name",
            )
        if len(machines) >= _MOST_MACHINES:
            raise ConfigError(
                "There are too many saved machines",
                expected=f"at most {_MOST_MACHINES}",
                fix="remove one: studio machines remove NAME",
            )
        check = before.check if before and before.target == target else None
        saved = SavedMachine(name=name, target=target, price_per_hour=price_per_hour, check=check)
        machines[name] = saved
    return saved


def remove_machine(workspace: Workspace, name: str) -> None:
    """Forgets a machine; its runs go on. Raises ConfigError if there is none of this name."""
    find_machine(workspace, name)
    with _changing(workspace) as machines:
        machines.pop(name, None)


def check_address(target: str) -> None:
    """Raises ConfigError for a text that is no address, or holds a password or a token."""
    if has_password(target):
        raise ConfigError(
            "The address holds a password or a token",
            expected="an address without secrets: a saved machine keeps none",
            received=redact_forms(target)[:200],
            fix="log in instead (a key of ssh, hf auth login, gcloud auth), and leave it out",
            field="target",
        )
    if not re.fullmatch(targets.PATTERN, target) or len(target) > _LONGEST_ADDRESS or not target:
        raise ConfigError(
            "That can't be the address of a machine",
            expected=targets.EXPECTED,
            received=target[:200],
            fix="see docs/remote.md for the addresses",
            field="target",
        )
    open_targets(target)


def check_target(workspace: Workspace, target: str, mirror: str | None = None) -> str:
    """Asks a target for its machine, and keeps the answer with the machines that have its address.

    Args:
        mirror: Asks for the mirror too; "": the default one.

    Returns:
        A line about the machine, or each member of a pool.

    Raises:
        StudioError: The machine refuses, or can't be reached; no member of a pool answers.
    """
    check_address(target)
    try:
        answer = _ask(open_targets(target), mirror)
    except StudioError as error:
        answer = ": ".join(filter(None, (error.problem, error.received)))
        _keep(workspace, target, answer, passed=False)
        raise
    _keep(workspace, target, answer, passed=True)
    return answer


def _ask(members: Sequence[Target], mirror: str | None) -> str:
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        questions = [pool.submit(_ask_member, member, mirror) for member in members]
    if len(members) == 1 or all(question.exception() for question in questions):
        return questions[0].result()
    return "; ".join(
        f"{place_of_target(member.address)}: {question.exception() or question.result()}"
        for member, question in zip(members, questions, strict=True)
    )


def _ask_member(target: Target, mirror: str | None) -> str:
    answer = target.check()
    if mirror is not None:
        target.mirror_root(mirror)
    return answer


def _keep(workspace: Workspace, target: str, answer: str, *, passed: bool) -> None:
    shown = printable(redact_forms(answer))[:_LONGEST_ANSWER]
    check = MachineCheck(time=time.time(), passed=passed, answer=shown)
    if machine_at(workspace, target) is None:
        return
    with _changing(workspace) as machines:
        for name, machine in machines.items():
            if machine.target == target:
                machines[name] = machine.model_copy(update={"check": check})


@contextmanager
def _changing(workspace: Workspace) -> Iterator[dict[str, SavedMachine]]:
    workspace.make_root()
    with file_lock(workspace.root / "machines.lock"):
        machines = {machine.name: machine for machine in read_machines(workspace)}
        yield machines
        values = {"machines": [machine.model_dump(mode="json") for machine in machines.values()]}
        text = json.dumps(values, indent=1, ensure_ascii=False)
        write_atomically(workspace.root / MACHINES_FILE, text + "\n")


def _free_name(target: str, used_names: Mapping[str, Any]) -> str:
    name = (
        _NOT_IN_NAMES.sub("-", place_of_target(target)).strip("-._")[:40] or urlsplit(target).scheme
    )
    names = [name, *(f"{name}-{number}" for number in range(2, _MOST_MACHINES + 2))]
    return next(candidate for candidate in names if candidate not in used_names)


def _printable(machine: SavedMachine) -> SavedMachine:
    """Checks an address that is read, and replaces what could control a terminal in an answer."""
    if has_password(machine.target) or printable(machine.target) != machine.target:
        raise ValueError("an address that is not accepted")
    if machine.check is None:
        return machine
    check = machine.check.model_copy(update={"answer": printable(machine.check.answer)})
    return machine.model_copy(update={"check": check})
