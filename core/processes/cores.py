"""Counts the CPU cores usable within affinity and cgroup quotas.

Libraries count the machine's cores; too many threads are throttled.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_ROOT = Path("/")
# Read by numpy, tokenizers, TensorFlow and JAX.
_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")

_MOMENTS, _MOMENT_SECONDS = 3, 0.05
_MEASURED_AGAIN_SECONDS = 10


def usable_cores(root: Path = _ROOT) -> int:
    """Returns the number of usable cores, at least 1.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, `cpu.max`.
    """
    return max(1, min([allowed_cores(), *map(math.ceil, _quotas(root))]))


def thread_settings(root: Path = _ROOT) -> dict[str, str]:
    """Returns thread-count variables for child processes under a quota."""
    usable = usable_cores(root)
    return {} if usable == allowed_cores() else dict.fromkeys(_VARIABLES, str(usable))


def allowed_cores() -> int:
    """Returns the number of cores in the affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_share() -> float:
    """Estimates the share of its speed that a program on all cores has beside what runs now."""
    return _free_share(int(time.monotonic() / _MEASURED_AGAIN_SECONDS))


@functools.lru_cache(maxsize=1)
def _free_share(_: int) -> float:
    shares = []
    for _moment in range(_MOMENTS):
        others = OtherPrograms()
        time.sleep(_MOMENT_SECONDS)
        shares.append(others.share())
    # A program that works for a moment doesn't count.
    return 1 / (1 + min(shares))


class OtherPrograms:
    """Measures how much of the machine's cores other programs take from now on."""

    def __init__(self) -> None:
        self._began = _times()

    def share(self) -> float:
        """Returns their share so far, from 0 to 1."""
        seconds, busy, own = (now - began for now, began in zip(_times(), self._began, strict=True))
        return min(1.0, max(0.0, busy - own) / max(1e-6, seconds * (os.cpu_count() or 1)))


def _times() -> tuple[float, float, float]:
    """Returns seconds: of a clock, of all cores at work, and of this process on them."""
    cores = psutil.cpu_times()
    idle = cores.idle + getattr(cores, "iowait", 0.0)
    # Linux counts guests among users, too.
    guests = getattr(cores, "guest", 0.0) + getattr(cores, "guest_nice", 0.0)
    own = os.times()
    return time.perf_counter(), sum(cores) - idle - guests, sum(own[:4])


def _quotas(root: Path) -> Iterator[float]:
    """Yields the CPU quotas of this process, in cores."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # Not Linux.
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            yield from _limits_of(root / "sys/fs/cgroup", name, "cpu.max")
        elif "cpu" in controllers.split(","):
            yield from _limits_of(
                root / "sys/fs/cgroup/cpu", name, "cpu.cfs_quota_us", "cpu.cfs_period_us"
            )


def _limits_of(mount: Path, name: str, *files: str) -> Iterator[float]:
    inside = PurePosixPath(name.lstrip("/"))
    for group in (inside, *inside.parents):
        try:
            limits = " ".join((mount / group / file).read_text() for file in files).split()
            quota, period = float(limits[0]), float(limits[1])
        except (OSError, ValueError, IndexError):  # Not mounted, or "max".
            continue
        if quota > 0 and period > 0:
            yield quota / period
