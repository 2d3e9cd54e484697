"""Requests and queries about runs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from core.config.base import StageConfig
from core.errors import ConfigError, RunError, StudioError
from core.messages.redaction import has_password, redact_forms
from core.records.annotations import checked
from core.records.events import StopMode
from core.records.folder import (
    RunFolder,
    RunRecord,
    carried_environment,
    log_tail_line,
    new_run_id,
)
from core.reporting.start import start_reporters
from core.runs.start import is_worker_running, start_worker, worker_log
from core.stages.registry import artifact_kind_of, find_stage, parse_stage_config
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace.names import check_name
from core.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

_HANDLED_WITHIN_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0


def submit(workspace: Workspace, stage: str, config: StageConfig, after: Sequence[str] = ()) -> str:
    """Queues a run; raises ConfigError for a taken name, or an option without effect."""
    check_name_is_free(workspace, stage, config)
    find_stage(stage).check_config(config)
    return queue_run(workspace, stage, config, after)


def queue_run(
    workspace: Workspace,
    stage: str,
    config: StageConfig,
    after: Sequence[str] = (),
    **known: Any,
) -> str:
    """Queues a run whose name was checked; returns its id.

    Args:
        **known: Fields of the RunRecord, such as the id of a run that may be queued already.
    """
    if target := getattr(config, "target", ""):
        _check_addresses(target)
    if target or getattr(config, "mirror", ""):
        _check_no_secrets(config)
    fields: dict[str, Any] = {
        "id": new_run_id(stage),
        "cwd": os.getcwd(),
        "environment": carried_environment(os.environ),
        **known,
    }
    record = RunRecord(
        stage=stage,
        config=config.without_secrets().model_dump(mode="json"),
        after=list(after),
        created=time.time(),
        **fields,
    )
    _ask(workspace, "submit", vars(record))
    start_reporters(workspace, record.id, config)
    return record.id


def _check_no_secrets(config: StageConfig) -> None:
    """Raises ConfigError for a secret in a setting, which the mirror would hold."""
    for name, value in config.model_dump(mode="json").items():
        if isinstance(value, str) and has_password(value):
            raise ConfigError(
                f"{name} holds a password or a token",
                expected="settings without secrets: the mirror and the machine keep them",
                received=redact_forms(value)[:200],
                fix="log in instead (hf auth login, gcloud auth, ~/.aws/credentials), and leave "
                "the secret out",
                field=name,
            )


def follow_run(workspace: Workspace, address: str) -> str:
    """Shows another machine's run here; returns its id.

    Args:
        address: `ROOT/runs/ID` of its mirror.

    Raises:
        ConfigError: The address is invalid.
        MirrorError: The run is missing or its description invalid.
        RunError: It is this workspace's own, or has ended.
    """
    from core.targets.mirror import RunMirror
    from core.targets.received import parse_received

    mirror = RunMirror.open(address)
    spec = mirror.read_spec()
    config = parse_received(spec)
    store = Store.open(workspace)
    known = store.get_run(spec.id)
    store.close()
    if known is None:
        record = RunRecord(
            id=spec.id,
            stage=spec.stage,
            config=config.model_dump(mode="json"),
            created=spec.created,
            follows=address.rstrip("/"),
        )
        _ask(workspace, "submit", vars(record))
    elif not known.remote:
        raise RunError(
            f"The run {spec.id} is this workspace's own",
            expected="a run of another machine, or another workspace",
            received="one that is executed here",
            fix=f"see it with: runs show {spec.id}",
        )
    elif known.has_ended:
        if mirror.look().newest <= int(known.remote.get("incarnation") or 0):
            raise RunError(
                f"The run {spec.id} has ended",
                expected="a run that goes on",
                received=f"one that is {known.state}",
                fix="resume it on the machine that trained it, then follow it again",
            )
        _ask(workspace, "resume", {"run": spec.id, "changes": {}})
    return spec.id


def request_stop(workspace: Workspace, run_id: str, mode: StopMode = "save") -> str:
    """Stops a run; raises RunError if it has ended."""
    row = _open_and_find(workspace, run_id)
    if row.has_ended:
        raise RunError(
            f"The run {row.id} can't be stopped",
            expected="a run that is queued or running",
            received=f"a run that is {row.state}",
            fix="no action is needed",
        )
    _ask(workspace, "stop", {"run": row.id, "mode": mode})
    return row.id


def resume_run(
    workspace: Workspace,
    run_id: str,
    *,
    num_train_steps: int | None = None,
    max_hours: float | None = None,
    max_cost: float | None = None,
    price_per_hour: float | None = None,
    target: str | None = None,
    adopt: bool = False,
    as_stranger: bool = False,
) -> str:
    """Requeues an ended run, which goes on from its last checkpoint. Returns its id.

    Args:
        run_id: May be abbreviated, or the address of a run in a mirror, to execute it here.
        num_train_steps: The new total, to extend the run.
        max_hours, max_cost: New limits of a run with a target, its earlier machines included.
        price_per_hour: The next machine's, in US dollars.
        target: Another target of a run with one, whose machines reach the same mirror.
        adopt: Whether an unsigned mirror, of an earlier version, is the user's own.
        as_stranger: Executes a copy of any mirror's run, with nothing but what the mirror brought.

    Raises:
        ForeignMirrorError: The mirror isn't this workspace's own.
        RunError: The run is missing, active, or has no steps left.
        ConfigError: The target's address is invalid.
    """
    given = {
        "num_train_steps": num_train_steps,
        "max_hours": max_hours,
        "max_cost": max_cost,
        "price_per_hour": price_per_hour,
        "target": target,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "://" in run_id:
        if target is not None:
            raise _no_target(run_id)
        if as_stranger:
            return _copy_as_stranger(workspace, run_id, changes)
        return _take_over(workspace, run_id, changes, adopt=adopt)
    if adopt or as_stranger:
        raise ConfigError(
            "Only the run of a mirror can be adopted or copied",
            expected="the address of a run: the mirror's, /runs/ and the run's id",
            received=run_id[:200],
            fix="leave adopt and as_stranger away",
        )
    row = _open_and_find(workspace, run_id)
    if target is not None:
        changes = {"price_per_hour": None, **changes}
        _check_new_target(row, target)
    if row.remote and not row.remote.get("target"):
        raise RunError(
            f"The run {row.id} is executed on another machine",
            expected="a run of this machine",
            received=f"one that is followed at {row.remote.get('mirror')}",
            fix="resume it there, or here with its address: runs resume ADDRESS",
        )
    is_extendable = row.stage == "train"
    if num_train_steps is not None and not is_extendable:
        raise RunError(
            f"The run {row.id} can't be extended",
            expected="a training run",
            received=f"a run of the stage {row.stage}",
            fix="start a new run",
        )
    if row.state == "done" and num_train_steps is None:
        raise RunError(
            f"The run {row.id} is done and can't be resumed",
            expected="an unfinished run, or more steps than planned",
            fix="extend it with ⟬--num-train-steps⟭, or start a new run"
            if is_extendable
            else "start a new run",
        )
    if changes:
        parse_stage_config(row.stage, {**row.config, **changes})
    if num_train_steps is not None:
        _check_more_steps(row, num_train_steps)
    _ask(workspace, "resume", {"run": row.id, "changes": changes})
    if config := config_of(row):
        start_reporters(workspace, row.id, config)
    return row.id


def _check_addresses(target: str) -> None:
    from core.targets.target import open_targets

    open_targets(target)


def _check_new_target(row: RunRow, target: str) -> None:
    if not row.config.get("target"):
        raise _no_target(row.id)
    _check_addresses(target)


def _no_target(run: str) -> RunError:
    return RunError(
        f"The run {run} can't be resumed on a target",
        expected="a run that was launched on a target",
        received="one that is executed on this machine",
        fix="leave target away, or start a new run with a target",
    )


def _copy_as_stranger(workspace: Workspace, address: str, changes: dict[str, Any]) -> str:
    from core.targets.takeover import take_over_as_stranger

    record = take_over_as_stranger(workspace, address, changes)
    _ask(workspace, "submit", vars(record))
    return record.id


def _take_over(workspace: Workspace, address: str, changes: dict[str, Any], *, adopt: bool) -> str:
    from core.targets.mirror import RunMirror
    from core.targets.takeover import take_over

    run_id = RunMirror.open(address).run_id
    store = Store.open(workspace)
    known = store.get_run(run_id)
    store.close()
    if known and not known.has_ended:
        raise RunError(
            f"The run {run_id} is {known.state} in this workspace",
            expected="a run that has ended",
            received="one that is followed or executed here",
            fix=f"stop it first: runs stop {run_id}, with --abort if its machine is gone",
        )
    record = take_over(workspace, address, changes, adopt=adopt)
    if known:
        _ask(workspace, "resume", {"run": run_id, "changes": record.config})
    else:
        _ask(workspace, "submit", vars(record))
    return run_id


def annotate_run(
    workspace: Workspace,
    run_id: str,
    *,
    title: str | None = None,
    tags: Sequence[str] | None = None,
    notes: str | None = None,
) -> str:
    """Changes a run's title, tags or notes; None keeps them. Returns the run's id.

    Raises:
        ConfigError: They are too long.
        RunError: The run is missing.
    """
    row = _open_and_find(workspace, run_id)
    given = {"title": title, "tags": None if tags is None else list(tags), "notes": notes}
    _ask(workspace, "annotate", {"run": row.id, **checked(given)})
    return row.id


def delete_run(workspace: Workspace, run_id: str) -> str:
    """Deletes an ended run, but not its artifact."""
    row = _open_and_find(workspace, run_id)
    _ask(workspace, "delete", {"run": row.id})
    return row.id


def delete_artifact(workspace: Workspace, kind: str, name: str) -> None:
    """Deletes an artifact; raises RunError if a run needs it."""
    workspace.find_own(kind, name)
    _ask(workspace, "delete_artifact", {"kind": kind, "name": name})


def choose_slots(workspace: Workspace, slots: int) -> None:
    """Sets the number of concurrent runs, 1 to 64."""
    _ask(workspace, "set_slots", {"slots": slots})


def rebuild_database(workspace: Workspace) -> int:
    """Registers unknown run folders, and starts none of them; returns their number."""
    store = Store.open(workspace)
    folders = [RunFolder(path.parent) for path in workspace.runs.glob("*/run.json")]
    records = sorted(filter(None, map(_readable_record, folders)), key=_by_creation)
    unknown = [record.id for record in records if store.get_run(record.id) is None]
    for run_id in unknown[:-1]:
        store.add_request("register", {"run": run_id, "is_rebuilt": True})
    store.close()
    if unknown:
        _ask(workspace, "register", {"run": unknown[-1], "is_rebuilt": True})
    return len(unknown)


def ensure_worker(workspace: Workspace) -> subprocess.Popen[bytes] | None:
    """Starts the worker if none runs; raises ConfigError."""
    return None if is_worker_running(workspace) else start_worker(workspace)


class WorkerKeeper:
    """Restarts a workspace's worker while a caller waits."""

    def __init__(self, workspace: Workspace, every_seconds: float) -> None:
        self._workspace = workspace
        self._every_seconds = every_seconds
        self._started: subprocess.Popen[bytes] | None = None
        self._next_look = time.monotonic() + every_seconds

    def look(self, *, at_once: bool = False) -> None:
        """Starts a missing worker if due; raises RunError."""
        code = self._started.poll() if self._started else 0
        if code and code > 0:
            raise _no_worker(self._workspace)
        now = time.monotonic()
        if at_once or (code is not None and now > self._next_look):
            self._next_look = now + self._every_seconds
            self._started = ensure_worker(self._workspace)


def refresh(workspace: Workspace) -> None:
    """Brings the database up to date, logging failures."""
    try:
        catch_up(workspace)
    except StudioError as error:
        logger.warning("%s", error)


def catch_up(workspace: Workspace) -> None:
    """Has the worker update the database; raises RunError."""
    store = Store.open(workspace)
    is_asked = bool(store.pending_requests())
    is_work = store.list_runs(states=(*ACTIVE_STATES, "queued"), limit=1)
    store.close()
    if is_asked or (is_work and not is_worker_running(workspace)):
        _ask(workspace, "look", {})


def read_log_tail(workspace: Workspace, run_id: str, lines: int = 200) -> str:
    return RunFolder.of(workspace, run_id).log_tail(lines)


def config_of(row: RunRow) -> StageConfig | None:
    """Returns a run's config; None if not parseable."""
    try:
        return parse_stage_config(row.stage, row.config)
    except StudioError:
        return None


def _readable_record(folder: RunFolder) -> RunRecord | None:
    try:
        return folder.read_record()
    except StudioError as error:
        logger.warning("%s", error)
        return None


def _by_creation(record: RunRecord) -> float:
    return record.created


def _open_and_find(workspace: Workspace, run_id: str) -> RunRow:
    refresh(workspace)
    store = Store.open(workspace)
    try:
        return store.find_run(run_id)
    finally:
        store.close()


def _ask(workspace: Workspace, kind: str, payload: dict[str, Any]) -> None:
    keeper = WorkerKeeper(workspace, _LOOK_SECONDS)
    keeper.look(at_once=True)
    store = Store.open(workspace)
    try:
        number = store.add_request(kind, payload)
        _wait_until_handled(workspace, store, number, keeper)
        request = store.get_request(number)
    finally:
        store.close()
    if request and request.error:
        raise RunError(**json.loads(request.error))


def _wait_until_handled(
    workspace: Workspace, store: Store, number: int, keeper: WorkerKeeper
) -> None:
    deadline = time.monotonic() + _HANDLED_WITHIN_SECONDS
    while not _is_handled(store, number):
        if time.monotonic() > deadline:
            raise _slow_worker(workspace)
        time.sleep(_POLL_SECONDS)
        try:
            keeper.look()
        except StudioError as error:
            # A later worker must not execute it.
            store.finish_request(number, json.dumps(error.to_dict()))
            raise


def _is_handled(store: Store, number: int) -> bool:
    request = store.get_request(number)
    return request is not None and request.handled is not None


def _no_worker(workspace: Workspace) -> RunError:
    log = worker_log(workspace)
    return RunError(
        "The worker of this workspace, which starts runs, can't be started",
        expected="a background process that keeps running",
        received=f"a process that ended at once; its log ends: {log_tail_line(log)}",
        fix=f"read {log}, correct the problem, and try again",
    )


def _slow_worker(workspace: Workspace) -> RunError:
    return RunError(
        "The worker of this workspace, which starts runs, doesn't answer",
        expected=f"an answer within {_HANDLED_WITHIN_SECONDS:.0f} seconds",
        received="no answer yet; the request stays queued",
        fix=f"check later with runs list; the worker's log is {worker_log(workspace)}",
    )


def _check_more_steps(row: RunRow, num_train_steps: int) -> None:
    planned = int(row.total or 0) if row.unit == "steps" else 0
    least = planned + 1 if row.state == "done" else planned
    if num_train_steps < least:
        raise RunError(
            "A run can be extended, but not shortened",
            expected=f"{least:,} steps in all, or more",
            received=f"{num_train_steps:,}",
            fix="choose a larger number; to end a run early, stop it: its best checkpoint is kept",
            field="num_train_steps",
        )


def check_name_is_free(workspace: Workspace, stage: str, config: StageConfig) -> None:
    """Raises ConfigError for a taken or reserved artifact name."""
    name = getattr(config, "name", "")
    if not name:
        return
    check_name(name)
    kind = artifact_kind_of(stage)
    workspace.check_new_name(kind, name)
    store = Store.open(workspace)
    for row in store.list_runs(states=("queued", *ACTIVE_STATES), limit=1000):
        if artifact_kind_of(row.stage) == kind and row.config.get("name") == name:
            raise ConfigError(
                f"The name {name!r} is taken",
                expected=f"a new name for the {kind}",
                received=f"{name}, which is reserved by the run {row.id}",
                fix="choose another name",
                field="name",
            )
    store.close()
