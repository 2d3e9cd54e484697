"""The worker: one process per workspace that starts queued runs and updates the database.

`python -m core.runs.worker --workspace DIR`. It holds `worker.lock`; a second worker exits at once.
Runs are separate processes: if the worker dies, they continue, and the next worker reads the events
that they have written meanwhile. The worker exits after being idle for a while.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from core.config.targets import members_of, place_of_target
from core.errors import RunError, StudioError
from core.messages.redaction import hide_secrets_in_output
from core.network.outbound import distrust_callers
from core.records.annotations import checked, read_annotations
from core.records.events import StopMode, read_attempts, read_events, read_last_events, read_stop
from core.records.folder import EXIT_UNUSABLE, RunFolder, RunRecord, log_tail_line
from core.runs.disk_usage import delete_artifact
from core.runs.execute import ADVICE
from core.runs.pools import choose_member
from core.runs.slots import default_slots, get_slots, set_slots
from core.runs.start import start_in_own_session, worker_lock
from core.stages.registry import STAGES, load_further_stages, parse_stage_config
from core.store import ACTIVE_STATES, USED_TARGETS, RequestRow, RunRow, Store
from core.workspace.places import (
    WorkspaceMovedError,
    check_not_moved,
    guarding_workspaces,
    private_files,
)
from core.workspace.workspace import Workspace

POLL_SECONDS = 0.2
# Fields of a `remote` event.
REMOTE_FIELDS = ("phase", "since", "incarnation", "launch", "hours", "price_per_hour", "cost")
IDLE_SECONDS = 60.0
STARTING_GRACE_SECONDS = 20.0
EXIT_MOVED = 0
_KEPT_WARNINGS = 20
_MOST_METRICS = 1_000
# Limits for one run in one round.
_INGESTING_SECONDS = 1.0
_INGESTED_BYTES = 256 << 10
# The reason of a run of a rebuilt database until its events are read.
_REBUILT = "rebuilt"
_LOCK_PATIENCE_SECONDS = 0.5
_LOCK_POLL_SECONDS = 0.02
# A supervisor or follower ends within this time after it has written the run's exit.
_ENDING_SECONDS = 10.0
_RETRY_SECONDS = 1.0
# A member of a pool that can't be used gets no run for so long. It refuses until a run is done
# there, or it isn't asked for some time; a run that all members refuse fails.
_SKIPPED_SECONDS = 60.0
_ASKED_AGAIN_SECONDS = 900.0
_MOST_REFUSING_SECONDS = 3600.0
# Libraries may print a long stack trace after their message.
_SIGN_LINES = 40


class Worker:
    """Handles requests, ingests events, and starts and ends runs."""

    def __init__(self, workspace: Workspace, slots: int = 1) -> None:
        self.workspace = workspace
        self.slots = slots
        self.store = Store.open(workspace)
        self._unreadable: set[str] = set()
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        # Members of pools that could not be used, by their addresses.
        self._refusals: dict[str, _Refusal] = {}

    def work(self) -> bool:
        """Does one round; returns whether any run is active or queued."""
        for request in self.store.pending_requests():
            check_not_moved(self.workspace.root)
            self._handle(request)
        # Polling reaps supervisors that have ended.
        for supervisor in self._supervisors.values():
            supervisor.poll()
        self._look({})
        self._start_queued()
        return bool(self.store.list_runs(states=(*ACTIVE_STATES, "queued"), limit=1))

    def _handle(self, request: RequestRow) -> None:
        handlers = {
            "submit": self._submit,
            "register": self._register,
            "stop": self._stop,
            "resume": self._resume,
            "delete": self._delete,
            "annotate": self._annotate,
            "delete_artifact": self._delete_artifact,
            "set_slots": self._set_slots,
            "look": self._look,
        }
        try:
            handlers[request.kind](request.payload)
        except WorkspaceMovedError:
            raise
        except StudioError as error:
            self.store.finish_request(request.id, json.dumps(error.to_dict()))
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the worker
            traceback.print_exc()
            unforeseen = StudioError(f"The worker failed with {type(error).__name__}: {error}")
            self.store.finish_request(request.id, json.dumps(unforeseen.to_dict()))
        else:
            self.store.finish_request(request.id)

    def _submit(self, payload: dict[str, Any]) -> None:
        record = RunRecord(**payload)
        folder = RunFolder.of(self.workspace, record.id)
        folder.write_record(record)
        row = _row_of(record, "queued")
        # A run that was taken over has the events of earlier machines.
        row.attempt_number = max(
            (event["n"] for event in read_last_events(folder.events)), default=0
        )
        self._add(row)

    def _register(self, payload: dict[str, Any]) -> None:
        """Adds a script's run, or any to rebuild the database."""
        folder = RunFolder.of(self.workspace, payload["run"])
        record = folder.read_record()
        is_known = not payload.get("is_rebuilt")
        row = _row_of(record, "running" if folder.was_started() else "queued")
        if row.state == "queued" and (folder.stop_file.exists() or not is_known):
            row.state, row.reason, row.ended = "stopped", "cancelled", record.created
        if row.state == "running":
            row.reason = "" if is_known or folder.is_running() else _REBUILT
            row.started = record.created
            row.attempt = folder.count_attempts()
            row.attempt_number = _attempt_number(folder)
        for name, value in read_annotations(folder).items():
            setattr(row, name, value)
        self._add(row)

    def _annotate(self, payload: dict[str, Any]) -> None:
        row = self.store.find_run(payload["run"])
        values = checked(payload)
        self.store.update_run(row.id, **values)
        folder = RunFolder.of(self.workspace, row.id)
        if folder.is_there():  # Rebuilding the database reads them again.
            folder.write_notes({"title": row.title, "tags": row.tags, "notes": row.notes, **values})

    def _add(self, row: RunRow) -> None:
        self.store.add_run(row)
        # Its machines are listed even if the run is deleted.
        if target := row.remote.get("target"):
            used = {*self.store.get_setting(USED_TARGETS).split(), str(target)}
            self.store.set_setting(USED_TARGETS, " ".join(sorted(used)))

    def _stop(self, payload: dict[str, Any]) -> None:
        row = self.store.find_run(payload["run"])
        if row.state == "queued":
            folder = RunFolder.of(self.workspace, row.id)
            if folder.is_there():
                folder.request_stop("abort")
            members = members_of(str(row.config.get("target") or ""))
            if len(members) > 1 and row.remote.get("launch"):
                # A follower ends what members that the run has left still do for it.
                is_own = row.remote["target"] in members
                row.remote = row.remote if is_own else {**row.remote, "target": members[0]}
                if self._start(row):
                    self.store.update_run(row.id, state="stopping")
                return
            self.store.update_run(row.id, state="stopped", reason="cancelled", ended=time.time())
        elif row.state in ACTIVE_STATES:
            mode: StopMode = "abort" if payload.get("mode") == "abort" else "save"
            RunFolder.of(self.workspace, row.id).request_stop(mode)
            self.store.update_run(row.id, state="stopping")

    def _resume(self, payload: dict[str, Any]) -> None:
        row = self.store.find_run(payload["run"])
        folder = RunFolder.of(self.workspace, row.id)
        if not row.has_ended or _is_still_running(row, folder):
            raise RunError(
                f"The run {row.id} can't be resumed",
                expected="a run that has ended",
                received=f"a run that is {row.state}"
                + (" with a live process" if folder.is_running() else ""),
                fix="stop it first, or wait for its end",
            )
        record = folder.read_record()
        changes = payload.get("changes", {})
        config = {**record.config, **changes}
        folder.archive_attempt(row.attempt)
        record = replace(record, config=config)
        folder.write_record(record)
        # Otherwise the run would be shown as done.
        total = changes.get("num_train_steps") or row.total
        # A run that was taken over is executed here from now on.
        places = _remote_of(record)
        remote = {**row.remote, **places} if places else {}
        self.store.requeue(row.id, reason="resumed", config=config, total=total, remote=remote)

    def _delete(self, payload: dict[str, Any]) -> None:
        row = self.store.find_run(payload["run"])
        if not row.has_ended:
            raise StudioError(
                f"The run {row.id} can't be deleted",
                expected="a run that has ended",
                received=f"a run that is {row.state}",
                fix="stop it first",
            )
        shutil.rmtree(RunFolder.of(self.workspace, row.id).path, ignore_errors=True)
        self.store.remove_run(row.id)

    def _delete_artifact(self, payload: dict[str, Any]) -> None:
        artifact = self.workspace.find_own(payload["kind"], payload["name"])
        delete_artifact(self.workspace, self.store, artifact)

    def _set_slots(self, payload: dict[str, Any]) -> None:
        set_slots(self.store, int(payload["slots"]))

    def _look(self, _: dict[str, Any]) -> None:
        """Ingests events; also a request, for which clients can wait."""
        for row in self.store.list_runs(states=ACTIVE_STATES, limit=1000):
            with self._apart(row):
                self._follow(row)

    @contextmanager
    def _apart(self, row: RunRow) -> Iterator[None]:
        """Keeps errors in one run's folder from ending the worker."""
        try:
            yield
        except (OSError, OperationalError, WorkspaceMovedError):
            raise
        except Exception as error:  # noqa: BLE001 -- the others go on
            if row.id not in self._unreadable:
                self._unreadable.add(row.id)
                traceback.print_exc()
            if not RunFolder.of(self.workspace, row.id).is_running():
                self._fail(row, "error", _unreadable(error))

    def _follow(self, row: RunRow) -> None:
        folder = RunFolder.of(self.workspace, row.id)
        # In this order: a run that starts in between hasn't ended.
        started = _was_started(row, folder)
        running, exited = folder.is_running(), folder.read_exit()
        # After the liveness check, to include events written just before death.
        finished, is_complete = self._ingest(row, folder)
        if not is_complete:
            return
        if row.reason == _REBUILT:
            self._end_rebuilt(row, folder, finished, exited)
        elif exited is None and not running and row.remote:
            self._follow_again(row, folder)
        elif exited is not None or not running:
            self._end(row, folder, finished, exited, started=started)

    def _follow_again(self, row: RunRow, folder: RunFolder) -> None:
        process = self._supervisors.get(row.id)
        if process is not None and process.poll() == EXIT_UNUSABLE:
            del self._supervisors[row.id]
            # A stop is left to another follower.
            if read_stop(folder.stop_file) is None:
                self._skip_member(row, folder)
                return
        if not self._is_starting_or_failed(row, folder.follower_log):
            self._supervisors[row.id] = _start_process(folder, is_remote=True)

    def _skip_member(self, row: RunRow, folder: RunFolder) -> None:
        """Requeues a run whose member of a pool can't be used; fails one that all refuse."""
        record = folder.read_record()
        now, words = time.monotonic(), log_tail_line(folder.follower_log)
        before = self._refusals.get(record.target)
        since = before.since if before and before.is_recent(now) else now
        self._refusals[record.target] = _Refusal(since, now, words)
        members = members_of(str(row.config["target"]))
        refusals = [self._refusals.get(member) for member in members]
        if all(refusal and refusal.is_lasting(now) for refusal in refusals):
            self._fail(row, "target", _refused_by_all(members, words))
            return
        record = replace(record, machine="")
        remote = {**row.remote, **_remote_of(record)}
        self.store.update_run(row.id, state="queued", started=None, remote=remote)
        folder.write_record(record)

    def _ingest(self, row: RunRow, folder: RunFolder) -> tuple[dict[str, Any] | None, bool]:
        """Ingests new events; returns the last one if it ends the run, and whether none is left.

        A flood of events is ingested in rounds, between which requests are handled.
        """
        finished, deadline = None, time.monotonic() + _INGESTING_SECONDS
        while time.monotonic() < deadline:
            events, offset = read_events(folder.events, row.event_offset, _INGESTED_BYTES)
            if offset == row.event_offset:
                return finished, True
            intake = _Ingestion(row)
            for event in events:
                if event["n"] > row.event_number:
                    intake.add(event)
            last = int(events[-1]["n"]) if events else 0
            values = {"event_number": max(row.event_number, last), "event_offset": offset}
            row.metric_counts = self.store.ingest(
                row.id,
                intake.metrics,
                intake.artifacts,
                {**intake.values, **values},
                rewound_to=intake.rewound_to,
            )
            for name, value in {**values, **intake.kept}.items():
                setattr(row, name, value)
            finished = intake.finished or finished
        return finished, False

    def _end_rebuilt(
        self,
        row: RunRow,
        folder: RunFolder,
        finished: dict[str, Any] | None,
        exited: dict[str, Any] | None,
    ) -> None:
        """Ends a run whose folder was only found: rebuilding the database starts nothing."""
        finished = finished or _finished_event(folder, row.attempt_number)
        values = _ending(finished, exited, folder)
        if _was_preempted(finished, exited):
            values |= {"state": "stopped", "reason": "preempted", "error": None}
        ended = _last_heard(row, folder)
        self.store.update_run(row.id, ended=ended, eta_seconds=None, **values)

    def _end(
        self,
        row: RunRow,
        folder: RunFolder,
        finished: dict[str, Any] | None,
        exited: dict[str, Any] | None,
        *,
        started: bool,
    ) -> None:
        finished = finished or _finished_event(folder, row.attempt_number)
        if exited is None and finished is None and not started:
            self._start_again(row, folder)
            return
        asked = read_stop(folder.stop_file)
        if asked is None and _was_preempted(finished, exited):
            folder.archive_attempt(row.attempt)
            self.store.requeue(row.id, reason="preempted")
            return
        values = _ending(finished, exited, folder)
        if values["state"] == "done":
            self._refusals.pop(str(row.remote.get("target")), None)
        ended = (exited or finished or {}).get("time") or (finished or {}).get("t")
        ended = ended or _last_heard(row, folder)
        self.store.update_run(row.id, ended=ended, eta_seconds=None, **values)

    def _start_again(self, row: RunRow, folder: RunFolder) -> None:
        """Requeues a run that a dead worker marked but didn't start."""
        if self._is_starting_or_failed(row, folder.log):
            return
        if time.time() - (row.started or 0) > STARTING_GRACE_SECONDS:
            self.store.update_run(row.id, state="queued", started=None)

    def _is_starting_or_failed(self, row: RunRow, log: Path) -> bool:
        """Returns whether the process is starting, or has failed the run."""
        process = self._supervisors.get(row.id)
        code = None if process is None else process.poll()
        if code is not None and code > 0:
            # It would fail again; a signal may be a shutdown.
            words = log_tail_line(log)
            is_launched = bool(row.remote.get("target"))
            error = _not_followed(code, words) if is_launched else _not_started(code, words)
            self._fail(row, "error", error)
            return True
        return process is not None and code is None

    def _start_queued(self) -> None:
        queued = sorted(self.store.list_runs(states=("queued",), limit=10_000), key=_by_position)
        active = self.store.list_runs(states=ACTIVE_STATES, limit=1000)
        # Remote runs take no slot.
        free = get_slots(self.store, self.slots) - sum(not row.remote for row in active)
        for row in queued:
            with self._apart(row):
                free -= self._start_if_due(row, active, free) and not row.remote

    def _start_if_due(self, row: RunRow, active: list[RunRow], free: int) -> bool:
        """Starts a queued run if nothing holds it back; returns whether it was started."""
        awaited = [self.store.get_run(run_id) for run_id in row.after]
        failed = [
            awaited_row
            for awaited_row in awaited
            if awaited_row is None or (awaited_row.has_ended and awaited_row.state != "done")
        ]
        if failed:
            self._fail_dependent(row, failed[0])
            return False
        return (
            all(awaited_row and awaited_row.state == "done" for awaited_row in awaited)
            and bool(free > 0 or row.remote or (free == 0 and self._skips_queue(row)))
            and self._has_machine(row, active)
            and self._start(row)
        )

    def _has_machine(self, row: RunRow, active: list[RunRow]) -> bool:
        """Returns False for a run that waits for a pool; gives one that does not its member."""
        target = str(row.config.get("target") or "")
        if len(members_of(target)) < 2 or not row.remote.get("target"):
            return True
        now = time.monotonic()
        skipped = {
            member: refusal.words
            for member, refusal in self._refusals.items()
            if now - refusal.last < _SKIPPED_SECONDS
        }
        member, users = choose_member(row, active, skipped)
        if member:
            row.remote = {**row.remote, "target": member}
            active.append(row)
        elif not row.note.endswith(f": {users}"):
            note = f"waiting for a free machine{self._of_pool(target)}: {users}"
            self.store.update_run(row.id, note=note)
        return bool(member)

    def _of_pool(self, target: str) -> str:
        from core.targets.saved import machine_at

        with suppress(StudioError):  # The name is only for people.
            if pool := machine_at(self.workspace, target):
                return f" of {pool.name}"
        return ""

    def _skips_queue(self, row: RunRow) -> bool:
        """Returns whether a run may start beside those in slots; one at a time does."""
        stage = STAGES.get(row.stage)
        if stage is None or not stage.queue_skipper:
            return False
        try:
            return stage.skips_queue(parse_stage_config(row.stage, row.config), self.workspace)
        except (StudioError, OSError, ValueError):
            return False  # Its own start reports the error.

    def _fail_dependent(self, row: RunRow, awaited: RunRow | None) -> None:
        state = awaited.state if awaited else "deleted"
        name = awaited.id if awaited else "a deleted run"
        error = RunError(
            "A run that this run depends on did not succeed",
            expected=f"{name} to be done",
            received=f"{name} is {state}",
            fix="read the error of that run, then start both again",
        )
        self._fail(row, "dependency", error)

    def _fail(self, row: RunRow, reason: str, error: StudioError) -> None:
        self.store.update_run(
            row.id, state="failed", reason=reason, ended=time.time(), error=error.to_dict()
        )

    def _start(self, row: RunRow) -> bool:
        folder = RunFolder.of(self.workspace, row.id)
        if not folder.is_there():
            self._fail(row, "data_missing", _folder_gone())
            return False
        try:
            record = folder.read_record()
        except RunError as error:
            self._fail(row, "data_missing", error)
            return False
        if (machine := str(row.remote.get("target", ""))) != record.target:
            folder.write_record(replace(record, machine=machine))
        # A marked run that isn't running is requeued; an unmarked one would start twice.
        self.store.update_run(
            row.id, state="running", reason="", note="", started=time.time(), remote=row.remote
        )
        self._supervisors[row.id] = _start_process(folder, is_remote=bool(row.remote))
        return True


@dataclass(frozen=True)
class _Refusal:
    """A member of a pool that could not be used, in seconds of the monotonic clock."""

    since: float
    last: float
    words: str

    def is_recent(self, now: float) -> bool:
        return now - self.last < _ASKED_AGAIN_SECONDS

    def is_lasting(self, now: float) -> bool:
        return self.is_recent(now) and now - self.since > _MOST_REFUSING_SECONDS


class _Ingestion:
    """Collects the changes that a run's new events make to the database."""

    def __init__(self, row: RunRow) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.values: dict[str, Any] = {}
        self.finished: dict[str, Any] | None = None
        self.rewound_to: int | None = None
        self.remote = dict(row.remote)
        self._warnings = list(row.warnings)
        self._names = set(row.metric_counts)

    @property
    def kept(self) -> dict[str, Any]:
        """Fields of the row that the next events change further."""
        return {"remote": self.remote, "warnings": self._warnings[-_KEPT_WARNINGS:]}

    def add(self, event: dict[str, Any]) -> None:
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler:
            handler(event)

    def _on_started(self, event: dict[str, Any]) -> None:
        self.values["pid"] = event["process"]["pid"]
        self.values["started"] = event["t"]

    def _on_progress(self, event: dict[str, Any]) -> None:
        numbers = [event.get(name) for name in ("done", "total", "eta_seconds")]
        if not all(number is None or math.isfinite(number) for number in numbers):
            return
        for name in ("done", "total", "unit", "note"):
            self.values[name] = event.get(name)
        self.values["eta_seconds"] = event.get("eta_seconds")

    def _on_resumed(self, event: dict[str, Any]) -> None:
        step = int(event["step"])
        # The earliest step applies to stored metrics.
        self.rewound_to = step if self.rewound_to is None else min(step, self.rewound_to)
        self.metrics = [row for row in self.metrics if row["step"] <= step]

    def _on_metrics(self, event: dict[str, Any]) -> None:
        for name, value in _without_infinities(event["values"]).items():
            if name not in self._names and len(self._names) >= _MOST_METRICS:
                self._warn_of_metrics(event)
                continue
            self._names.add(name)
            self.metrics.append(
                {
                    "number": event["n"],
                    "step": event["step"],
                    "name": name,
                    "value": float(value),
                    "time": event["t"],
                }
            )

    def _on_resolved(self, event: dict[str, Any]) -> None:
        tokens = event.get("tokens_per_step")
        if isinstance(tokens, int) and 0 < tokens < 1 << 53:
            self.values["tokens_per_step"] = float(tokens)

    def _warn_of_metrics(self, event: dict[str, Any]) -> None:
        message = f"Only the first {_MOST_METRICS:,} metrics are shown; the run reports more"
        if all(warning["message"] != message for warning in self._warnings):
            self._on_warning({**event, "message": message})

    def _on_warning(self, event: dict[str, Any]) -> None:
        alert, number = event.get("alert", ""), event["n"]
        self._warnings.append(
            {"time": event["t"], "message": event["message"], "alert": alert, "number": number}
        )
        self.values["warnings"] = self._warnings[-_KEPT_WARNINGS:]

    def _on_artifact(self, event: dict[str, Any]) -> None:
        # An evaluation reports another run's artifact.
        made = event.get("made", True)
        self.artifacts += [_without_infinities(event["artifact"])] if made else []
        self.values["artifact"] = event["artifact"]["path"]
        self.values["name"] = event["artifact"]["name"]

    def _on_remote(self, event: dict[str, Any]) -> None:
        if not self.remote:
            return  # Copied with the events of a run that was taken over.
        known = {name: event[name] for name in REMOTE_FIELDS if name in event}
        self.remote = {**self.remote, **known}
        self.values["remote"] = self.remote
        self.values["note"] = event.get("phase")

    def _on_finished(self, event: dict[str, Any]) -> None:
        self.finished = event
        self.values["results"] = _without_infinities(event.get("results") or {})


def _without_infinities(values: dict[str, Any]) -> dict[str, Any]:
    """Drops infinite and NaN values, which PostgreSQL's JSON rejects."""
    return {
        name: _without_infinities(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if not isinstance(value, float) or math.isfinite(value)
    }


def run_worker(workspace: Workspace, *, slots: int, idle_seconds: float) -> None:
    """Works until idle; returns early if another worker runs."""
    patience = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        with worker_lock(workspace) as held:
            if held:
                worker = Worker(workspace, slots)
                _work_until_idle(worker, idle_seconds)
        # A client that asked before the unlock relies on this worker.
        if held and not worker.store.pending_requests():
            worker.store.close()
            return
        # `is_worker_running` holds the lock for an instant.
        if not held and time.monotonic() > patience:
            return
        time.sleep(_LOCK_POLL_SECONDS)


def _work_until_idle(worker: Worker, idle_seconds: float) -> None:
    last_busy = time.monotonic()
    last_problem = ""
    while time.monotonic() - last_busy < idle_seconds:
        try:
            busy, problem = worker.work(), ""
        except (OSError, OperationalError) as error:
            busy, problem = True, f"{type(error).__name__}: {error}"
        if problem and problem != last_problem:
            with suppress(OSError):
                print(f"retrying after: {problem}", file=sys.stderr, flush=True)
        last_problem = problem
        if busy:
            last_busy = time.monotonic()
        time.sleep(_RETRY_SECONDS if problem else POLL_SECONDS)


def _row_of(record: RunRecord, state: str) -> RunRow:
    return RunRow(
        id=record.id,
        stage=record.stage,
        name=str(record.config.get("name", "")),
        state=state,
        config=record.config,
        after=record.after,
        created=record.created,
        warnings=[],
        results={},
        remote=_remote_of(record),
    )


def _remote_of(record: RunRecord) -> dict[str, Any]:
    """Returns the place of a run on another machine; {} for one of this machine."""
    places = {"mirror": record.follows, "target": record.target}
    return {name: place for name, place in places.items() if place}


def _is_still_running(row: RunRow, folder: RunFolder) -> bool:
    """Returns whether the run is alive, after waiting for a process that is about to end."""
    # A script, which has no supervisor, goes on after its run.
    ends = folder.read_exit() and (row.remote or folder.read_process("supervisor"))
    deadline = time.monotonic() + (_ENDING_SECONDS if ends else 0)
    while (is_running := folder.is_running()) and time.monotonic() < deadline:
        time.sleep(_LOCK_POLL_SECONDS)
    return is_running


def _was_preempted(finished: dict[str, Any] | None, exited: dict[str, Any] | None) -> bool:
    """Returns whether SIGTERM ended the run, saved or not."""
    if finished:
        return finished.get("reason") == "preempted"
    return exited is not None and exited["signal"] == signal.SIGTERM


def _last_heard(row: RunRow, folder: RunFolder) -> float:
    """Returns a lost run's last event time, as loss is noticed late."""
    _, last = next(reversed(read_attempts(folder.events)), (0.0, 0.0))
    return last if last >= (row.started or 0.0) and last else time.time()


def _ending(
    finished: dict[str, Any] | None, exited: dict[str, Any] | None, folder: RunFolder
) -> dict[str, Any]:
    code = exited["code"] if exited else None
    number = exited["signal"] if exited else None
    process = {"exit_code": code, "signal": number}
    if finished:
        state = str(finished["state"])
        return {
            **process,
            "state": state,
            "reason": finished.get("reason", ""),
            "error": finished.get("error"),
        }
    if exited is None:
        return {**process, "state": "lost", "reason": "", "error": _lost().to_dict()}
    if number in _ENDINGS_OF_A_STOP.get(read_stop(folder.stop_file) or "", ()):
        return {**process, "state": "stopped", "reason": "aborted", "error": None}
    words = log_tail_line(folder.log)
    reason, advice = _known_cause(number, folder.log_tail(_SIGN_LINES))
    error = RunError(
        "The run's process ended without reporting a result",
        expected="a report of success or failure",
        received=_how_it_ended(code, number, words),
        fix=advice,
    )
    return {**process, "state": "failed", "reason": reason, "error": error.to_dict()}


def _known_cause(number: int | None, log: str) -> tuple[str, str]:
    for signs, reason in _SIGNS.items():
        if any(sign in log for sign in signs):
            return reason, ADVICE[reason]
    return _SIGNALS.get(number or 0, ("error", "read the end of the log"))


def _how_it_ended(code: int | None, number: int | None, words: str) -> str:
    end = f"signal {number} ({_signal_name(number)})" if number else f"exit code {code}"
    return f"{end}; the log ends: {words}" if words else end


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


# Signals without a report: the supervisor's after an abort, or a shutdown's.
_ENDINGS_OF_A_STOP: dict[str, tuple[int, ...]] = {
    "abort": (signal.SIGKILL, signal.SIGTERM),
    "save": (signal.SIGTERM,),
}

# Messages of libraries that exit without an exception.
_SIGNS = {
    ("MemoryError", "memory allocation of", "bad_alloc", "RESOURCE_EXHAUSTED"): "out_of_memory",
    ("No space left on device", "Disk quota exceeded"): "disk_full",
    # Gloo (JAX's all-reduce) finds a lost process's data missing.
    (
        "another task died",
        "JAX distributed service detected fatal errors",
        "gloo::",
    ): "process_lost",
}

# From the out-of-memory killer; ours only after an abort.
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "killed",
        "if nobody killed the process, the machine ran out of memory: use a smaller batch or model",
    ),
    signal.SIGABRT: ("aborted", "a library aborted: read the end of the log"),
    signal.SIGSEGV: ("crashed", "a library crashed: read the end of the log"),
    signal.SIGBUS: (
        "data_missing",
        "a file was truncated or can't be read from disk: restore the shards, then resume the run",
    ),
}


def _lost() -> RunError:
    return RunError(
        "The run's process has ended, and its result is unknown",
        expected="a live process, or a record of its end",
        received="neither (the machine may have been switched off)",
        fix="start the run again",
    )


def _refused_by_all(members: list[str], words: str) -> RunError:
    return RunError(
        "No machine of the pool can be used",
        expected=f"one of {place_of_target(' '.join(members))} that is ready within "
        f"{_MOST_REFUSING_SECONDS / 60:.0f} minutes",
        received=words or "an error in the log",
        fix="read the log, correct the cause, then resume the run",
    )


def _folder_gone() -> RunError:
    return RunError(
        "The run's folder is missing",
        expected="the file run.json with the run's settings",
        received="no such file: it was removed, or is still in the old workspace",
        fix="move the folder back to runs/, then resume the run; otherwise start a new run",
    )


def _not_started(code: int, words: str) -> RunError:
    return RunError(
        "The run's process couldn't be started",
        expected="a supervisor process that starts it and waits for its end",
        received=_how_it_ended(code, None, words),
        fix="read the end of the log; if the program was updated, restart the app, then the run",
    )


def _not_followed(code: int, words: str) -> RunError:
    return RunError(
        "The process that follows the run's machine has failed",
        expected="a follower that waits for the run's end",
        received=_how_it_ended(code, None, words),
        fix="see whether a machine is left: studio targets; correct the problem and resume the "
        "run, which finds its machine again",
    )


def _unreadable(error: Exception) -> StudioError:
    return StudioError(
        "The run's event log can't be read",
        expected="valid events",
        received=f"{type(error).__name__}: {error}",
        fix="read the end of the log, then delete this run and start it again",
    )


def _by_position(row: RunRow) -> int:
    return row.position


def _was_started(row: RunRow, folder: RunFolder) -> bool:
    # A script's run has no supervisor.
    return row.event_number > row.attempt_number or folder.read_process("run") is not None


def _finished_event(folder: RunFolder, after: int) -> dict[str, Any] | None:
    """Rereads the log tail, as an earlier round may have ingested it."""
    events = read_last_events(folder.events)
    ends = [event for event in events if event["kind"] == "finished" and event["n"] > after]
    return ends[-1] if ends else None


def _attempt_number(folder: RunFolder) -> int:
    events, _ = read_events(folder.events)
    starts = [int(event["n"]) for event in events if event["kind"] == "started"]
    return starts[-1] - 1 if starts else 0


def _start_process(folder: RunFolder, *, is_remote: bool) -> subprocess.Popen[bytes]:
    module, log = "core.runs.supervisor", folder.log
    if is_remote:
        module, log = "core.targets.follower", folder.follower_log
    return start_in_own_session([module, str(folder.path)], log)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.runs.worker", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--slots", type=int, default=default_slots())
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    options = parser.parse_args(arguments)
    load_further_stages()
    distrust_callers()
    with guarding_workspaces():
        workspace = Workspace(options.workspace)
        if not workspace.root.is_dir():
            # The process that started this worker made the folder, so it was moved since.
            print(f"worker stopped: there is no workspace {workspace.root}", file=sys.stderr)
            return EXIT_MOVED
        with private_files(workspace.root):
            try:
                run_worker(workspace, slots=options.slots, idle_seconds=options.idle_seconds)
            except WorkspaceMovedError as error:
                print(f"worker stopped: {error}", file=sys.stderr, flush=True)
                # Closing the database would look for its old path.
                os._exit(EXIT_MOVED)
    return 0


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
