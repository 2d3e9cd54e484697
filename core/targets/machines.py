"""Lists and deletes the machines that runs of a workspace have started."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from core.config.targets import TARGETS, members_of
from core.errors import ConfigError, StudioError
from core.store import USED_TARGETS, Store
from core.targets.target import Machine, open_target, printable
from core.workspace.workspace import Workspace

_MOST_RUNS = 100_000
_MOST_AT_ONCE = 8


@dataclass(frozen=True)
class ListedMachine:
    """A machine that still exists, or a target that can't be asked.

    Attributes:
        created: Unix seconds; 0 if unknown.
        error: Why the target can't be asked; the other fields are empty then.
    """

    target: str
    id: str = ""
    run_id: str = ""
    launch: int = 0
    created: float = 0.0
    detail: str = ""
    error: str = ""


def list_machines(workspace: Workspace) -> list[ListedMachine]:
    """Asks every target that a run of this workspace has used.

    Machines of other workspaces are listed too: their target tells them by this program's label.
    """
    targets = known_targets(workspace)
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        machines = [machine for listed in pool.map(_list, targets) for machine in listed]
    # Two addresses of one service or host, such as of two flavours, show the same machines.
    listers = {target: _lister_of(target) for target in targets}
    return list(
        {
            (
                listers[machine.target] if machine.id else machine.target,
                machine.id,
                machine.run_id,
            ): machine
            for machine in machines
        }.values()
    )


def delete_machine(workspace: Workspace, machine_id: str, target: str = "") -> ListedMachine:
    """Deletes a machine by the id that `list_machines` shows; its run stops without saving.

    Raises:
        ConfigError: No machine has this id.
        TargetError: The target refuses, or can't be reached.
    """
    listed = list_machines(workspace)
    matching_machines = [
        machine for machine in listed if machine.id == machine_id and target in ("", machine.target)
    ]
    if not matching_machines:
        raise ConfigError(
            f"There is no machine {machine_id[:200]}",
            expected=", ".join(machine.id for machine in listed if machine.id)
            or "a machine; there is none",
            received=machine_id[:200],
            fix="list the machines with: studio targets",
            field="id",
        )
    listed_machine = _only(matching_machines, workspace)
    machine = Machine(
        listed_machine.target,
        listed_machine.id,
        listed_machine.run_id,
        listed_machine.launch,
        listed_machine.created,
        listed_machine.detail,
    )
    try:
        _stop_run(workspace, listed_machine)
    finally:
        open_target(listed_machine.target).cancel(machine)
    return listed_machine


def _only(machines: Sequence[ListedMachine], workspace: Workspace) -> ListedMachine:
    """Returns the machine, of several with one id that of this workspace's run.

    Raises ConfigError if that isn't clear.
    """
    launched = [machine for machine in machines if _has_launched(workspace, machine)]
    chosen = launched or machines
    if len(chosen) > 1:
        raise ConfigError(
            f"Several targets have a machine {chosen[0].id}",
            expected="one machine of this id",
            received=", ".join(machine.target for machine in chosen),
            fix="delete it in the web app (Runs, Machines), which shows the target of each",
            field="id",
        )
    return chosen[0]


def _has_launched(workspace: Workspace, machine: ListedMachine) -> bool:
    """Returns whether a run of this workspace has launched a machine, which its target names.

    One that a run has left doesn't count: the run goes on elsewhere.
    """
    from core.records.folder import RunFolder
    from core.targets.launcher import RemoteState

    try:
        launches = RemoteState.read(RunFolder.of(workspace, machine.run_id)).launches
    except StudioError:
        return False
    known = [
        Machine.from_json(launch.machine)
        for launch in launches
        if launch.machine and not launch.is_left
    ]
    lister = _lister_of(machine.target)
    return any(
        known_machine.id == machine.id and _lister_of(known_machine.target) == lister
        for known_machine in known
    )


def _lister_of(target: str) -> str:
    """Returns a target's lister of machines: a service, or a host that speaks for itself only.

    A host's options, such as its Python, don't make it another one.
    """
    try:
        creates_machines = open_target(target).creates_machines
    except StudioError:
        return target
    parts = urlsplit(target)
    is_service = creates_machines or not TARGETS[parts.scheme].is_host
    return parts.scheme if is_service else parts._replace(query="").geturl()


def _stop_run(workspace: Workspace, machine: ListedMachine) -> None:
    """Stops a machine's run without saving, so that no other machine takes its place.

    A host may list any id: only a run that is executed at this target is stopped.
    """
    from core.runs.client import request_stop

    store = Store.open(workspace)
    try:
        row = store.get_run(machine.run_id)
    finally:
        store.close()
    if row is None or row.has_ended:
        return
    is_here = str(row.remote.get("target") or "") == machine.target
    if is_here or _has_launched(workspace, machine):
        request_stop(workspace, machine.run_id, "abort")


def known_targets(workspace: Workspace) -> list[str]:
    """Lists the targets of this workspace's runs, of deleted ones too, each once."""
    store = Store.open(workspace)
    try:
        rows = store.list_runs(limit=_MOST_RUNS)
        used = store.get_setting(USED_TARGETS).split()
    finally:
        store.close()
    return sorted({*used, *(m for row in rows for m in members_of(row.remote.get("target", "")))})


def _list(target: str) -> list[ListedMachine]:
    try:
        machines = open_target(target).list_machines()
    except StudioError as error:
        return [ListedMachine(target, error=str(error))]
    except Exception as error:  # noqa: BLE001 -- the machines of the other targets are shown
        return [ListedMachine(target, error=f"{type(error).__name__}: {error}"[:500])]
    return [
        ListedMachine(
            target,
            machine.id,
            machine.run_id,
            machine.launch,
            machine.created,
            printable(machine.detail),
        )
        for machine in machines
    ]
