"""How many cores there are to use: a container may have fewer than its machine.

Libraries count the machine's. With sixteen threads on what two cores may do, each waits until all
others have been stopped for the rest of a period.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
# What tells numpy, tokenizers, TensorFlow and JAX how many threads to have.
_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")


def usable_cores(root: Path = _ROOT) -> int:
    """Returns the cores that this process may use at once, at least 1.

    Args:
        root: Where /proc and /sys lie.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, `cpu.max`, and
        https://docs.kernel.org/scheduler/sched-bwc.html for version 1.
    """
    return max(1, min([allowed_cores(), *map(math.ceil, _quotas(root))]))


def thread_settings(root: Path = _ROOT) -> dict[str, str]:
    """Returns environment variables for a process with threads, empty where libraries count right.

    Args:
        root: Where /proc and /sys lie.
    """
    usable = usable_cores(root)
    return {} if usable == allowed_cores() else dict.fromkeys(_VARIABLES, str(usable))


def allowed_cores() -> int:
    """Returns the cores of the machine that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yields how many cores' time each of the groups may take that this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # No Linux.
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
    """Yields the limits of a group and of those that it lies in; within a container some are."""
    inside = PurePosixPath(name.lstrip("/"))
    for group in (inside, *inside.parents):
        try:
            said = " ".join((mount / group / file).read_text() for file in files).split()
            quota, period = float(said[0]), float(said[1])
        except (OSError, ValueError, IndexError):  # Not here, or "max".
            continue
        if quota > 0 and period > 0:
            yield quota / period
