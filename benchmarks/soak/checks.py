"""Checks of a soak: events, values, leftovers and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from statistics import median

import psutil

from benchmarks.soak.work import LOGGING_STEPS, SAVE_STEPS, Work, get_run, holds_within, say
from core.errors import StudioError
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import request_stop
from core.store import ACTIVE_STATES, Store
from core.sweeps.client import stop_sweep
from core.sweeps.folder import SweepFolder
from core.targets.machines import list_machines
from core.workspace.workspace import Workspace
from tests.core.runs.support import metrics_in_events, metrics_in_table

# A process that lived shorter tells nothing about its memory.
_LEAST_MINUTES = 10.0
_MOST_GROWTH, _MOST_GROWTH_MEGABYTES, _MOST_NEW_FILES = 0.2, 20.0, 8


def check_events(work: Work) -> None:
    for workspace, name in ((work.home, "local"), (work.home, "remote"),
                            (work.watcher, "remote")):  # fmt: skip
        for run_id in work.runs[name]:
            if RunFolder.of(workspace, run_id).events.exists():
                for problem in problems_of_events(workspace, run_id):
                    work.violate(f"{workspace.root.name}/{run_id}: {problem}")


def end_work(work: Work) -> None:
    """Stops everything and checks that nothing is lost, left over or grown."""
    say("stopping everything")
    with suppress(StudioError):
        stop_sweep(work.home, f"sweep-{work.sweeps}")
    for name, ids in work.runs.items():
        with suppress(StudioError):
            request_stop(work.home, ids[-1])
        holds_within(300, lambda name=name: (row := work.row_of(name)) and row.has_ended)
        row = work.row_of(name)
        if row and (row.state, row.reason) != ("stopped", "saved") and row.state != "done":
            work.violate(f"{name} was stopped, and is {row.state}/{row.reason}: {row.error}")
    _check_stopped(work)
    _check_leftovers(work)
    check_events(work)
    _check_values(work)
    _check_memory(work)


def _check_stopped(work: Work) -> None:
    folder = SweepFolder.of(work.home, f"sweep-{work.sweeps}")
    if not holds_within(120, lambda: not folder.is_driven()):
        work.violate("the sweep's driver goes on after a stop")
    for workspace in (work.home, work.watcher):
        if not holds_within(120, lambda workspace=workspace: not _open_work(workspace)):
            work.violate(f"{workspace.root.name} still has {_open_work(workspace)}")
    if machines := list_machines(work.home):
        work.violate(f"machines are left over: {machines}")


def _open_work(workspace: Workspace) -> list[str]:
    """Returns the runs that go on or wait, and the requests that nobody has answered."""
    store = Store.open(workspace)
    rows = store.list_runs(states=(*ACTIVE_STATES, "queued"))
    found = [*(row.id for row in rows), *(one.kind for one in store.pending_requests())]
    store.close()
    return found


def _check_leftovers(work: Work) -> None:
    """Waits for all processes but the app, the server and this one."""

    def left() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = [*process.cmdline(), *process.environ().values()]
                ours = any(str(work.folder) in word for word in words)
                kept = {os.getpid(), work.server.process.pid}
                if ours and process.pid not in kept and "app.py" not in words:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        return found

    if not holds_within(150, lambda: not left()):
        work.violate(f"processes are left over: {left()}")


def _check_values(work: Work) -> None:
    """Compares events, databases and workspaces; the same step has the same loss everywhere."""
    losses: dict[int, float] = {}
    for name, ids in work.runs.items():
        for run_id in ids:
            events = metrics_in_events(work.home, run_id)
            if events != metrics_in_table(work.home, run_id):
                work.violate(f"{run_id}: the database differs from the events")
            followed = name == "remote" and get_run(work.watcher, run_id) is not None
            if followed and metrics_in_events(work.watcher, run_id) != events:
                work.violate(f"{run_id}: the follower's events differ")
            if followed and metrics_in_table(work.watcher, run_id) != events:
                work.violate(f"{run_id}: the follower's database differs")
            for metric, step, value in events:
                if metric == "loss":
                    first = losses.setdefault(step, value)
                    if abs(value - first) > 1e-3 * first:
                        work.violate(f"{run_id}: loss {value} at step {step}, not {first}")
            row = get_run(work.home, run_id)
            model = work.home.folder("model") / f"{name}-{ids.index(run_id) + 1}"
            if row and row.state == "done" and not (model / "manifest.json").exists():
                work.violate(f"{run_id} is done without a model")


def _check_memory(work: Work) -> None:
    """Prints memory and open files of each role's longest-lived process; they must be flat."""
    longest = {role: max((key for key in work.samples if key[0] == role),
                         key=lambda key: len(work.samples[key]))
               for role, _ in work.samples}  # fmt: skip
    print(f"{'process':32} minutes   MB: first third, last third   files")
    for role, key in longest.items():
        samples = work.samples[key]
        minutes = (samples[-1][0] - samples[0][0]) / 60
        third = max(1, len(samples) // 3)
        first, last = (
            (median(one[1] for one in part), median(one[2] for one in part))
            for part in (samples[:third], samples[-third:])
        )
        print(f"{role:32} {minutes:7.1f} {first[0]:17.1f} {last[0]:11.1f} "
              f"{first[1]:9.0f} {last[1]:4.0f}")  # fmt: skip
        limit = max(first[0] * (1 + _MOST_GROWTH), first[0] + _MOST_GROWTH_MEGABYTES)
        if minutes >= _LEAST_MINUTES and last[0] > limit:
            work.violate(f"{role} has grown from {first[0]:.0f} to {last[0]:.0f} MB")
        if minutes >= _LEAST_MINUTES and last[1] > first[1] + _MOST_NEW_FILES:
            work.violate(f"{role} had {first[1]:.0f} open files, and has {last[1]:.0f}")


def problems_of_events(workspace: Workspace, run_id: str) -> Iterator[str]:
    """Yields gaps, repeated or missing steps, and resumptions without a checkpoint."""
    events = read_events(RunFolder.of(workspace, run_id).events)[0]
    if [event["n"] for event in events] != list(range(1, len(events) + 1)):
        yield "events are missing or repeated"
    saved, last = {0}, 0
    for event in events:
        if event["kind"] == "checkpoint":
            saved.add(event["step"])
        elif event["kind"] == "resumed":
            step = max(event["step"], 0)
            # A machine's newest checkpoint may not have reached the mirror.
            if step not in saved or step < max(saved) - 2 * SAVE_STEPS:
                yield f"resumed at step {step} with checkpoints up to {max(saved)}"
            last = step // LOGGING_STEPS * LOGGING_STEPS
            saved = {one for one in saved if one <= step}
        elif "loss" in event.get("values", ()):
            if event["step"] != last + LOGGING_STEPS:
                yield f"the loss at step {event['step']} follows that at {last}"
            last = event["step"]
