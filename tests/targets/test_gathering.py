"""Tests of jobs that several processes launch at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.errors import StudioError
from core.targets import gathering
from core.targets.errors import TargetError, UnavailableError
from core.targets.gathering import launch_with_others
from core.targets.target import Job, Machine
from tests.targets.fake_target import FakeTarget

ADVICE = {"expected": "a", "received": "b", "fix": "c"}


class Cluster(FakeTarget):
    """A target that launches jobs one by one or together.

    Args:
        error: Raised instead of launching jobs together.
    """

    def __init__(self, error: StudioError | None = None) -> None:
        super().__init__("slurm://login")
        self.error = error
        self.launched: list[list[Job]] = []
        self.adding = threading.Lock()

    def launch(self, job: Job) -> Machine:
        return self._add([job])[0]

    def launch_all(self, jobs: list[Job]) -> list[Machine]:
        if self.error:
            raise self.error
        return self._add(jobs)

    def _add(self, jobs: list[Job]) -> list[Machine]:
        with self.adding:
            self.launched.append(jobs)
        return [Machine(self.address, job.name, job.run_id, job.launch) for job in jobs]


def jobs(number: int) -> list[Job]:
    return [
        Job(f"run-{place}", 1, "file:///m", "0" * 64, seconds=60.0, secrets={"KEY": f"k{place}"})
        for place in range(number)
    ]


def launch_at_once(cluster: Cluster, folder: Path, number: int) -> list[Machine | StudioError]:
    def launch(job: Job) -> Machine | StudioError:
        try:
            return launch_with_others(cluster, job, folder)
        except StudioError as error:
            return error

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(launch, jobs(number)))


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_QUIET_SECONDS", 0.5)


def test_jobs_asked_for_at_once_are_launched_together_and_each_gets_its_own(tmp_path: Path) -> None:
    cluster = Cluster()
    machines = launch_at_once(cluster, tmp_path, 9)
    assert [machine.id for machine in machines if isinstance(machine, Machine)] == [
        job.name for job in jobs(9)
    ]
    launched = [job for together in cluster.launched for job in together]
    assert sorted(launched, key=lambda job: job.run_id) == jobs(9)
    assert max(map(len, cluster.launched)) > 1
    assert list(tmp_path.glob("*")) == list(tmp_path.glob("*.lock")), "no address is left"
    assert not any(b"k1" in path.read_bytes() for path in tmp_path.iterdir()), (
        "secrets reach no disk"
    )


def test_job_without_company_is_launched_as_ever(tmp_path: Path) -> None:
    cluster = Cluster(TargetError("not asked", **ADVICE))
    assert launch_at_once(cluster, tmp_path, 1)
    assert cluster.launched == [jobs(1)]


def test_jobs_that_cannot_be_launched_together_are_launched_alone(tmp_path: Path) -> None:
    cluster = Cluster(TargetError("no arrays here", **ADVICE))
    machines = launch_at_once(cluster, tmp_path, 4)
    assert all(isinstance(machine, Machine) for machine in machines)
    assert [len(together) for together in cluster.launched] == [1] * 4


def test_unknown_end_of_a_launch_is_unknown_to_all_that_were_gathered(tmp_path: Path) -> None:
    cluster = Cluster(UnavailableError("the connection was lost", **ADVICE))
    answers = launch_at_once(cluster, tmp_path, 4)
    alone = [answer for answer in answers if isinstance(answer, Machine)]
    assert len(alone) == len(cluster.launched) < 3
    assert all(isinstance(answer, Machine | UnavailableError) for answer in answers)


def test_address_that_a_killed_process_has_left_keeps_nobody_waiting(tmp_path: Path) -> None:
    cluster = Cluster()
    launch_at_once(cluster, tmp_path, 1)
    [lock] = tmp_path.glob("*.lock")
    lock.with_suffix("").write_text(str(tmp_path / "gone"))
    assert launch_at_once(cluster, tmp_path, 1)
    assert len(cluster.launched) == 2
