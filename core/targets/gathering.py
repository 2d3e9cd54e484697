"""Launches jobs together that several processes ask for at the same time.

The processes of a workspace meet at a socket. The first one leads: it waits until nobody has come
for a while, launches all jobs as one, and answers the others. Secrets stay in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from core.errors import ConfigError
from core.foreign_files import parse_bounded_json
from core.targets.errors import TargetError, UnavailableError
from core.targets.target import Job, Machine, Target
from core.workspace.atomic import write_atomically
from core.workspace.locks import file_lock

# Trials that a sweep starts together ask one after another, as their inputs are uploaded.
_QUIET_SECONDS = 5.0
_MOST_SECONDS = 60.0
_MOST_JOBS = 64
_MOST_BYTES = 1 << 20
_ANSWER_SECONDS = 600.0
_POLL_SECONDS = 0.1
_TAKEN = b"taken\n"


@runtime_checkable
class ArrayTarget(Target, Protocol):
    """A target that launches several jobs as one."""

    def launch_all(self, jobs: list[Job]) -> list[Machine]:
        """Starts jobs, in order; raises TargetError or ConfigError only if none has started."""


def launch_with_others(target: Target, job: Job, folder: Path) -> Machine:
    """Launches a job, together with those of other processes if the target can do that.

    Args:
        folder: The place at which the processes of the workspace meet.

    Raises:
        UnavailableError: Whether the job was started is unknown.
        TargetError, ConfigError: The target refuses.
    """
    if not isinstance(target, ArrayTarget):
        return target.launch(job)
    address_file = folder / sha256(target.address.encode()).hexdigest()[:16]
    while True:
        with file_lock(address_file.with_suffix(".lock"), wait=False) as leads:
            others = _gather(address_file) if leads else []
        if leads:
            return _lead(target, job, others)
        if (answer := _ask(address_file, job)) is not None:
            return Machine.from_json(answer) if answer else target.launch(job)
        time.sleep(_POLL_SECONDS)


def _gather(address_file: Path) -> list[tuple[Job, socket.socket]]:
    """Returns the jobs of the processes that come, with the connections that wait for answers."""
    gathered: list[tuple[Job, socket.socket]] = []
    folder = ""
    # Without a socket, each launches its own.
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as listener:
        # Paths of sockets are short.
        folder = tempfile.mkdtemp(prefix="studio-")
        listener.bind(f"{folder}/s")
        listener.listen(_MOST_JOBS)
        listener.settimeout(_QUIET_SECONDS)
        write_atomically(address_file, f"{folder}/s")
        deadline = time.monotonic() + _MOST_SECONDS
        while time.monotonic() < deadline and len(gathered) + 1 < _MOST_JOBS:
            connection, _ = listener.accept()
            with suppress(OSError, ValueError, TypeError):
                connection.settimeout(_QUIET_SECONDS)
                with connection.makefile("rb") as lines:
                    job = Job(**parse_bounded_json(lines.readline(_MOST_BYTES)))
                connection.sendall(_TAKEN)
                gathered.append((job, connection))
    address_file.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return gathered


def _lead(target: ArrayTarget, job: Job, others: list[tuple[Job, socket.socket]]) -> Machine:
    """Launches all jobs and answers; each launches its own if they can't be launched together."""
    machines: list[Machine] = []
    try:
        if others:
            machines = target.launch_all([job, *(other for other, _ in others)])
            print(f"launched together with {len(others)} other runs", flush=True)
    except UnavailableError:
        for _, connection in others:
            connection.close()
        raise
    except (TargetError, ConfigError) as error:
        print(f"not launched together: {error}", flush=True)
    answers = [machine.to_json() for machine in machines[1:]] or [{}] * len(others)
    for (_, connection), answer in zip(others, answers, strict=True):
        # Its process has ended, and will find the job.
        with suppress(OSError), closing(connection):
            connection.sendall(json.dumps(answer).encode() + b"\n")
    return machines[0] if machines else target.launch(job)


def _ask(address_file: Path, job: Job) -> dict[str, Any] | None:
    """Gives a job to the process that leads.

    Returns:
        The machine; {} if the job is to be launched alone; None if nobody has taken it.
    """
    connection = socket.socket(socket.AF_UNIX)
    with closing(connection), connection.makefile("rb") as lines:
        try:
            connection.connect(os.fsdecode(address_file.read_bytes()))
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(json.dumps(asdict(job)).encode() + b"\n")
            if lines.readline(_MOST_BYTES) != _TAKEN:
                return None
        except OSError:
            return None
        try:
            return dict(parse_bounded_json(lines.readline(_MOST_BYTES)))
        except (OSError, ValueError) as error:
            raise UnavailableError(
                "The process that launches several runs has ended",
                expected="an answer about this run's job",
                received=f"{type(error).__name__}: {error}",
                fix="it is looked for, and launched again if it isn't there",
            ) from error
