"""Failures of a soak. Each is undone when its function returns."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.soak.work import Work
from core.errors import StudioError
from core.runs.client import request_stop


def kill(processes: list[psutil.Process], sent: int = signal.SIGKILL) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(sent)


def kill_trials(work: Work) -> None:
    for trial in work.trials():
        kill(work.processes("core.runs.execute", trial.run))


def stop_runs(work: Work) -> None:
    """Stops both runs as a user does."""
    for ids in work.runs.values():
        with suppress(StudioError):
            request_stop(work.home, ids[-1])


def freeze_machine(work: Work) -> None:
    frozen = work.machine_processes()
    kill(frozen, signal.SIGSTOP)
    work.wait(work.random.uniform(20, 150))
    kill(frozen, signal.SIGCONT)


def freeze_home(work: Work) -> None:
    """Freezes all processes of the workspace but the app, whose open page the user would miss."""
    frozen = [one for one in work.processes(str(work.home.root)) if "app.py" not in one.cmdline()]
    kill(frozen, signal.SIGSTOP)
    time.sleep(work.random.uniform(10, 60))
    kill(frozen, signal.SIGCONT)


def cut_network(work: Work) -> None:
    with work.relay.cut():
        work.wait(work.random.uniform(10, 120))


def stall_network(work: Work) -> None:
    with work.relay.stalled():
        work.wait(work.random.uniform(10, 120))


def fill_disk(work: Work, folder: Path) -> None:
    """Fills a disk for a time, with what is freed in between."""
    filler, end = folder / "filler", time.monotonic() + work.random.uniform(15, 60)
    with filler.open("wb", buffering=0) as file:
        while time.monotonic() < end:
            with suppress(OSError):
                while True:
                    file.write(bytes(4096))
            work.tend()
    filler.unlink()


FAULTS: dict[str, Callable[[Work], None]] = {
    "kill_run": lambda work: kill(work.processes("core.runs.execute", work.runs["local"][-1])),
    "kill_run_and_supervisor": lambda work: kill(
        [*work.processes("core.runs.supervisor", work.runs["local"][-1]),
         *work.processes("core.runs.execute", work.runs["local"][-1])]
    ),
    "terminate_run": lambda work: kill(
        work.processes("core.runs.execute", work.runs["local"][-1]), signal.SIGTERM
    ),
    "kill_worker": lambda work: kill(work.processes("core.runs.worker", str(work.home.root))),
    "kill_follower": lambda work: kill(
        work.processes("core.targets.follower", str(work.home.root))
    ),
    # Worker, follower and command.
    "kill_watcher": lambda work: kill(work.processes(str(work.watcher.root))),
    "kill_driver": lambda work: kill(work.processes("core.sweeps.driver", str(work.home.root))),
    "kill_trials": kill_trials,
    "kill_remote_run": lambda work: kill(work.processes("core.runs.execute", str(work.machine))),
    "kill_machine": lambda work: kill(work.machine_processes()),
    "stop_runs": stop_runs,
    "freeze_machine": freeze_machine,
    "freeze_home": freeze_home,
    "cut_network": cut_network,
    "stall_network": stall_network,
    "fill_home": lambda work: fill_disk(work, work.home.root),
    "fill_machine": lambda work: fill_disk(work, work.machine),
    "fill_watcher": lambda work: fill_disk(work, work.watcher.root),
}  # fmt: skip
