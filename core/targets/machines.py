"""Lists and deletes the machines that runs of a workspace have started."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

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
        found = [one for listed in pool.map(_list, targets) for one in listed]
    # Two addresses of one service or host, such as of two flavours, show the same machines.
    listers = {target: _lister_of(target) for target in targets}
    return list(
        {
            (listers[one.target] if one.id else one.target, one.id, one.run_id): one
            for one in found
        }.values()
    )


def delete_machine(workspace: Workspace, machine_id: str, target: str = "") -> ListedMachine:
    """Deletes a machine by the id that `list_machines` shows; its run stops without saving.

    Raises:
        ConfigError: No machine has this id.
        TargetError: The target refuses, or can't be reached.
    """
    listed = list_machines(workspace)
    found = [one for one in listed if one.id == machine_id and target in ("", one.target)]
    if not found:
        raise ConfigError(
            f"There is no machine {machine_id[:200]}",
            expected=", ".join(one.id for one in listed if one.id) or "a machine; there is none",
            received=machine_id[:200],
            fix="list the machines with: studio targets",
            field="id",
        )
    one = _only(found, workspace)
    machine = Machine(one.target, one.id, one.run_id, one.launch, one.created, one.detail)
    try:
        _stop_run(workspace, one)
    finally:
        open_target(one.target).cancel(machine)
    return one


def _only(found: Sequence[ListedMachine], workspace: Workspace) -> ListedMachine:
    """Returns the machine, of several with one id that of this workspace's run.

    Raises ConfigError if that isn't clear.
    """
    launched = [one for one in found if _has_launched(workspace, one)]
    chosen = launched or found
    if len(chosen) > 1:
        raise ConfigError(
            f"Several targets have a machine {chosen[0].id}",
            expected="one machine of this id",
            received=", ".join(one.target for one in chosen),
            fix="delete it in the web app (Runs, Machines), which shows the target of each",
            field="id",
        )
    return chosen[0]


def _has_launched(workspace: Workspace, machine: ListedMachine) -> bool:
    """Returns whether a run of this workspace has launched a machine, which its target names."""
    from core.records.folder import RunFolder
    from core.targets.launcher import RemoteState

    try:
        launches = RemoteState.read(RunFolder.of(workspace, machine.run_id)).launches
    except StudioError:
        return False
    known = [Machine.from_json(one.machine) for one in launches if one.machine]
    lister = _lister_of(machine.target)
    return any(one.id == machine.id and _lister_of(one.target) == lister for one in known)


def _lister_of(target: str) -> str:
    """Returns a target's lister of machines: a service, or a host that speaks for itself only.

    A host's options, such as its Python, don't make it another one.
    """
    try:
        is_service = open_target(target).creates_machines
    except StudioError:
        return target
    parts = urlsplit(target)
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
    return sorted({*used, *(str(target) for row in rows if (target := row.remote.get("target")))})


def _list(target: str) -> list[ListedMachine]:
    try:
        found = open_target(target).list_machines()
    except StudioError as error:
        return [ListedMachine(target, error=str(error))]
    except Exception as error:  # noqa: BLE001 -- the machines of the other targets are shown
        return [ListedMachine(target, error=f"{type(error).__name__}: {error}"[:500])]
    return [
        ListedMachine(target, one.id, one.run_id, one.launch, one.created, printable(one.detail))
        for one in found
    ]
