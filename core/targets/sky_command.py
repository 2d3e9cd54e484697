"""Calls the `sky` command of a SkyPilot installation, and checks what it answers.

SkyPilot's packages conflict with this project's, so the command lives in an environment of its own
(STUDIO_SKY_COMMAND; default: `sky`). It exits with the same status for everything, so that only its
words tell a refusal from a lost connection.

Source: https://docs.skypilot.co/en/latest/reference/cli.html (0.14.1)
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.errors import ConfigError
from core.targets.errors import TargetError, UnavailableError

COMMAND_VARIABLE = "STUDIO_SKY_COMMAND"
# A call takes 5 to 25 seconds, and more than a minute if it starts SkyPilot's server.
_CALL_SECONDS = 180.0
# The first launch also creates the machine of SkyPilot's controller.
_LAUNCH_SECONDS = 1800.0
_MOST_ANSWER_BYTES = 64 << 20
_LOG_LINES, _LOG_BYTES = 400, 64_000

_OVER = re.compile(r"CANCELLING|CANCELLED|SUCCEEDED|FAILED(_[A-Z]+)*")
_NO_CONTROLLER = "No in-progress managed jobs"
_UNREACHABLE = re.compile(
    r"connection|timeout|timed out|temporar|interrupted|name resolution|rate ?limit", re.IGNORECASE
)
# Exit statuses of `sky jobs logs` that tell how the job is.
_LOG_CODES = (0, 100, 101, 102, 103)
# Tokens, and what would make SkyPilot import this project's packages.
_HIDDEN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# SkyPilot puts `(name, pid=1)` or `(node, rank=0, pid=1)` before each line.
_PREFIX = re.compile(r"^\([^()]{0,200}\bpid=\d+[^()]{0,40}\) ", re.MULTILINE)


@dataclass(frozen=True)
class SkyJob:
    """A managed job, as SkyPilot lists it.

    Attributes:
        recoveries: How often SkyPilot has restarted it on another machine.
        reason: Its words on a failure.
    """

    number: int
    name: str
    status: str
    submitted: float = 0.0
    recoveries: int = 0
    resources: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, values: object) -> SkyJob | None:
        """Returns None for something that isn't a job."""
        if not isinstance(values, dict):
            return None
        number, status = values.get("job_id"), values.get("status")
        if not isinstance(number, int) or not isinstance(status, str) or number < 0:
            return None
        submitted, recoveries = values.get("submitted_at"), values.get("recovery_count")
        return cls(
            number=number,
            name=_text(values.get("job_name")),
            status=status[:50],
            submitted=float(submitted) if isinstance(submitted, int | float) else 0.0,
            recoveries=recoveries if isinstance(recoveries, int) else 0,
            resources=_text(values.get("resources")),
            reason=_text(values.get("failure_reason")),
        )

    @property
    def is_over(self) -> bool:
        return _OVER.fullmatch(self.status) is not None

    @property
    def detail(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status


class Sky:
    """The `sky` command."""

    def __init__(self) -> None:
        self._command = shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or ["sky"]

    def launch(self, name: str, file: Path, secrets: Mapping[str, str]) -> None:
        """Submits a managed job; `--secret NAME` takes the value from the call's environment."""
        names = [part for variable in secrets for part in ("--secret", variable)]
        self._call(
            ["launch", "-y", "-d", "-n", name, *names, str(file)],
            secrets=secrets,
            seconds=_LAUNCH_SECONDS,
        )

    def log(self, number: int) -> str:
        """Returns the end of a job's output, without SkyPilot's prefixes and colours."""
        arguments = ["logs", "--no-follow", "--tail", str(_LOG_LINES), str(number)]
        text = self._call(arguments, codes=_LOG_CODES, tail_bytes=_LOG_BYTES)
        return _PREFIX.sub("", _COLOURS.sub("", text))

    def cancel(self, numbers: Sequence[int]) -> None:
        """Asks for the end of jobs; SkyPilot's controller then deletes their machines."""
        self._call(["cancel", "-y", *map(str, numbers)])

    def queue(self, *options: str, must_answer: bool = False) -> list[SkyJob]:
        """Lists this user's managed jobs.

        Args:
            must_answer: Whether a refusal is an error that no later call can correct.
        """
        try:
            text = self._call(["queue", "-v", "-a", "-o", "json", *options])
        except UnavailableError:
            raise
        except TargetError as error:
            if _NO_CONTROLLER in error.received:
                return []
            if must_answer:
                raise
            raise UnavailableError.like(error) from error
        return _parse_jobs(text)

    def _call(
        self,
        arguments: Sequence[str],
        *,
        secrets: Mapping[str, str] | None = None,
        codes: Sequence[int] = (0,),
        seconds: float | None = None,
        tail_bytes: int = 0,
    ) -> str:
        """Runs `sky jobs …` and returns its output.

        Args:
            secrets: Variables of its environment.
            codes: Expected exit statuses.
            seconds: Time limit; None: that of a short call.
            tail_bytes: Return the end of the output only; 0: all of it.

        Raises:
            ConfigError: There is no such command.
            UnavailableError: Nothing is known: no answer in time, or no connection.
            TargetError: It refuses.
        """
        # Files, because a process that the command leaves behind would keep a pipe open.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            limit = seconds or _CALL_SECONDS
            code = self._wait(
                [*self._command, "jobs", *arguments], secrets or {}, output, errors, limit
            )
            if code in codes:
                return _read(output, tail_bytes)
            message = _last_words(_read(errors, _LOG_BYTES)) or _last_words(
                _read(output, _LOG_BYTES)
            )
        kind = UnavailableError if _UNREACHABLE.search(message) else TargetError
        raise kind(
            f"SkyPilot has refused: sky jobs {arguments[0]}",
            expected="exit status 0",
            received=message or f"exit status {code}",
            fix="correct the cause; `sky check` shows which clouds it can use",
        )

    def _wait(
        self,
        command: list[str],
        secrets: Mapping[str, str],
        output: BinaryIO,
        errors: BinaryIO,
        seconds: float,
    ) -> int:
        try:
            process = subprocess.Popen(
                command,
                env={**_environment(), **secrets},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                "There is no SkyPilot on this computer",
                expected=f"the command {command[0]}",
                received=error.strerror or str(error),
                fix="install SkyPilot 0.14 in an environment of its own, and set "
                f"{COMMAND_VARIABLE} to the path of its sky command",
                field="target",
            ) from error
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                "SkyPilot doesn't answer",
                expected=f"an answer within {seconds:.0f} seconds",
                fix="see whether its server works: sky api status; it is tried again",
            ) from None
        finally:
            # Also if this process is asked to end meanwhile.
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _parse_jobs(text: str) -> list[SkyJob]:
    """Parses the list, which follows the lines of a call that has started SkyPilot's server."""
    begin = re.search(r"^\[(?=$|\])", text, re.MULTILINE)
    try:
        values = json.loads(text[begin.start() :]) if begin else None
    except (ValueError, RecursionError):
        values = None
    jobs = [SkyJob.parse(value) for value in values] if isinstance(values, list) else [None]
    known = [job for job in jobs if job]
    if len(known) < len(jobs):
        raise UnavailableError(
            "SkyPilot's answer can't be used",
            expected="a list of managed jobs, as version 0.14 writes it",
            received=ascii(text[:200]),
            fix="look at the output of: sky jobs queue -o json",
        )
    return known


def _environment() -> dict[str, str]:
    """Selects variables for a call, which may start SkyPilot's server: that would keep them."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name not in _HIDDEN and not name.startswith("STUDIO_")
    }
    return {**passed, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PYTHONUTF8": "1"}


def _read(file: BinaryIO, tail_bytes: int) -> str:
    size = file.seek(0, os.SEEK_END)
    if size > _MOST_ANSWER_BYTES and not tail_bytes:
        raise UnavailableError(
            "SkyPilot's answer is too long",
            expected=f"at most {_MOST_ANSWER_BYTES:,} bytes",
            received=f"{size:,} bytes",
            fix="look at the output of: sky jobs queue -o json",
        )
    file.seek(max(0, size - tail_bytes) if tail_bytes else 0)
    return file.read().decode("utf-8", "replace")


def _last_words(text: str) -> str:
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-600:]


def _text(value: object) -> str:
    return value[:500] if isinstance(value, str) else ""
