"""Jobs of a loopback Hub: each runs as processes on this machine, in a folder of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

TERMINAL_STAGES = ("COMPLETED", "CANCELED", "ERROR")
DEFAULT_TIMEOUT_SECONDS = 30 * 60
_POLL_SECONDS = 0.01
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class Job:
    """A job and its process.

    Attributes:
        spec: The body of the request, secrets included.
        log: Time and text of each line.
        ending: Stage and message of an end that was asked for.
    """

    owner: str
    spec: dict[str, Any]
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_at: datetime | None = None
    finished_at: datetime | None = None
    stage: str = "SCHEDULING"
    message: str | None = None
    log: list[tuple[datetime, str]] = field(default_factory=list)
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    ending: tuple[str, str | None] | None = None
    interrupted: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        return self.stage in TERMINAL_STAGES

    @property
    def text(self) -> str:
        """The log as one string."""
        return "".join(f"{line}\n" for _, line in self.log)


class JobRunner:
    """Runs jobs, one thread each, until closed.

    Attributes:
        jobs: Jobs by id.
        changed: Guards the jobs; notified at each new stage and line.
    """

    def __init__(self, extra_environment: dict[str, str], scheduling_seconds: float) -> None:
        self.extra_environment = dict(extra_environment)
        self.scheduling_seconds = scheduling_seconds
        self.jobs: dict[str, Job] = {}
        self.changed = threading.Condition(threading.RLock())
        self._threads: list[threading.Thread] = []

    def close_jobs(self) -> None:
        """Kills all jobs and waits until their processes are gone."""
        for job in list(self.jobs.values()):
            self.end(job, "CANCELED", None)
        for thread in self._threads:
            thread.join()

    def launch(self, owner: str, spec: dict[str, Any]) -> Job:
        job = Job(owner, spec)
        thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        with self.changed:
            self.jobs[job.id] = job
            self._threads.append(thread)
        thread.start()
        return job

    def end(self, job: Job, stage: str, message: str | None) -> None:
        """Kills a job's processes and ends it in the given stage, unless it has ended."""
        with self.changed:
            if job.ended or job.ending is not None:
                return
            job.ending = (stage, message)
            job.interrupted.set()
            if job.process is not None:
                _kill_processes(job)

    def kill_job(self, job_id: str, message: str = "Job failed: its machine is gone") -> None:
        """Kills all of a job's processes at once, as if its machine vanished."""
        self.end(self.jobs[job_id], "ERROR", message)

    def wait(self, job_id: str, *stages: str, timeout_seconds: float = 60) -> Job:
        """Waits until a job reaches one of the stages, by default a terminal one."""
        job, stages = self.jobs[job_id], stages or TERMINAL_STAGES
        with self.changed:
            reached = self.changed.wait_for(lambda: job.stage in stages, timeout_seconds)
        assert reached, f"job {job_id} is still {job.stage} after {timeout_seconds} seconds"
        return job

    def _run(self, job: Job) -> None:
        job.interrupted.wait(self.scheduling_seconds)
        with self.changed:
            if job.ending is None:
                self._start(job)
        if job.process is not None:
            reader = threading.Thread(target=self._read_output, args=(job,), daemon=True)
            reader.start()
            try:
                job.process.wait(job.spec.get("timeoutSeconds", DEFAULT_TIMEOUT_SECONDS))
            except subprocess.TimeoutExpired:
                self.end(job, "ERROR", "Job timeout")
            job.process.wait()
            _kill_processes(job)
            reader.join()
        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
        with self.changed:
            job.stage, job.message = job.ending or _result(job.process)
            job.finished_at = datetime.now(UTC)
            self.changed.notify_all()

    def _start(self, job: Job) -> None:
        job.folder = Path(tempfile.mkdtemp(prefix="hub-job-"))
        environment = {
            **self.extra_environment,
            **job.spec.get("environment", {}),
            **job.spec.get("secrets", {}),
            "PATH": PATH,
            "HOME": str(job.folder),
        }
        try:
            job.process = subprocess.Popen(
                [*job.spec["command"], *job.spec.get("arguments", [])],
                cwd=job.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            job.ending = ("ERROR", f"Job failed to start. Reason: {error}")
            return
        job.stage, job.started_at = "RUNNING", datetime.now(UTC)
        job.log.append((job.started_at, f"===== Job started at {job.started_at:%F %T} ====="))
        self.changed.notify_all()

    def _read_output(self, job: Job) -> None:
        assert job.process is not None and job.process.stdout is not None
        with job.process.stdout as output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                with self.changed:
                    job.log.append((datetime.now(UTC), text))
                    self.changed.notify_all()


def _kill_processes(job: Job) -> None:
    """Kills a job's process group, and the processes that left it: they kept the job's HOME."""
    assert job.process is not None
    if job.process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
    while found := [process for process in psutil.process_iter() if _belongs_to(process, job)]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_POLL_SECONDS)


def _belongs_to(process: psutil.Process, job: Job) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.environ().get("HOME") == str(job.folder)
    except (psutil.Error, OSError):
        return False


def _result(process: subprocess.Popen[bytes] | None) -> tuple[str, str | None]:
    assert process is not None
    if process.returncode == 0:
        return "COMPLETED", None
    # A container reports a signal as 128 plus its number.
    code = process.returncode if process.returncode > 0 else 128 - process.returncode
    return "ERROR", f"Job failed with exit code: {code}. Reason: Error"
