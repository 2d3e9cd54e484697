"""Counts the CPU cores usable within affinity and cgroup quotas.

Libraries count the machine's cores; too many threads are throttled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
# Read by numpy, tokenizers, TensorFlow and JAX.
_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")


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
