"""A container's CPU quota limits the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.processes import cores
from core.processes.cores import allowed_cores, thread_settings, usable_cores
from tests.engines import OFTEN

_COUNT_THREADS = """
import os
import keras
keras.ops.matmul(keras.ops.ones((512, 512)), keras.ops.ones((512, 512)))
print(len(os.listdir("/proc/self/task")))
"""

QUOTAS = {
    "no limit": ({}, 16),
    "no limit, said": ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
    "two cores": ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    "a part of one": ({"sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
    "more than there are": ({"sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 16),
    "its own group": ({"sys/fs/cgroup/box/one/cpu.max": "350000 100000\n"}, 4),
    "the group around": (
        {
            "sys/fs/cgroup/box/one/cpu.max": "max 100000\n",
            "sys/fs/cgroup/box/cpu.max": "300000 100000\n",
        },
        3,
    ),
    "version 1": (
        {
            "sys/fs/cgroup/cpu/box/one/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu/box/one/cpu.cfs_period_us": "50000\n",
        },
        5,
    ),
    "version 1, no limit": (
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        16,
    ),
    "not to be read": ({"sys/fs/cgroup/cpu.max": "?\n"}, 16),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cpu_quota_of_a_container_limits_the_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    files, expected = QUOTAS[case]
    groups = {"proc/self/cgroup": "3:cpuset:/\n1:cpu,cpuacct:/box/one\n0::/box/one\n"}
    for name, content in {**groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(cores, "allowed_cores", lambda: 16)
    assert usable_cores(tmp_path) == expected
    said = set(thread_settings(tmp_path).values())
    assert said == (set() if expected == 16 else {str(expected)})


def test_all_cores_are_usable_without_a_quota(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == allowed_cores() > 0
    assert thread_settings(tmp_path) == {}


def test_what_others_take_only_for_a_moment_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = iter([0.9, 0.5, 0.8])
    monkeypatch.setattr(cores.OtherPrograms, "share", lambda _: next(shares))
    cores._free_share.cache_clear()
    # Ten seconds may end between two calls of `free_share`.
    assert cores._free_share(0) == pytest.approx(1 / 1.5)
    assert cores._free_share(0) == pytest.approx(1 / 1.5)
    cores._free_share.cache_clear()


def test_share_of_other_programs_leaves_out_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([(100.0, 50.0, 20.0), (110.0, 65.0, 30.0)])
    monkeypatch.setattr(cores, "_times", lambda: next(moments))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    # In 10 seconds, two cores worked for 15, and 10 of these were for this program.
    assert cores.OtherPrograms().share() == pytest.approx(0.25)


@pytest.mark.slow(2)
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("engine", OFTEN)
@pytest.mark.long
def test_backends_use_the_requested_number_of_threads(engine: str) -> None:
    found = []
    for threads in (2, 40):
        engines = {"TF_NUM_INTRAOP_THREADS", "NPROC"}
        settings = {n: str(threads if n in engines else 1) for n in cores._VARIABLES}
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_THREADS],
            env={**os.environ, **settings, "KERAS_BACKEND": engine},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(int(done.stdout.split()[-1]))
    assert found[1] >= found[0] + 20
