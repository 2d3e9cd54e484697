"""Identifies processes reliably, as pids are reused."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told apart from others with its pid.

    Attributes:
        started: Clock ticks since boot on Linux, else unix seconds.
    """

    pid: int
    started: float
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        started = _start_time(pid)
        return None if started is None else cls(pid, started, _boot_id())

    @classmethod
    def of_this(cls) -> ProcessIdentity:
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @classmethod
    def from_json(cls, values: Any) -> ProcessIdentity | None:
        try:
            return cls(int(values["pid"]), float(values["started"]), str(values["boot_id"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


def _start_time(pid: int) -> float | None:
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _start_time_elsewhere(pid)
    try:
        # The command's name may hold spaces and brackets.
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return None if state in ("Z", "X") else float(started)


def _start_time_elsewhere(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))
