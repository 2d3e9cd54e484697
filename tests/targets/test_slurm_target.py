"""Tests of addresses, scripts and answers of Slurm; no cluster is needed."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from core.config.train import TrainConfig
from core.errors import ConfigError
from core.records.folder import RunFolder
from core.targets import machine, slurm_target
from core.targets.errors import TargetError, UnavailableError
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.slurm_target import SlurmAddress, SlurmTarget
from core.targets.target import Job

RUN = "train-20260101-000000-abcd"
WHOLE = (
    "slurm://me@login:2222?partition=gpu,big&account=lab&qos=high&gres=gpu:a100:2"
    "&time=1-04:00:00&nodes=2&cpus=8&mem=64G&constraint=a100%26nvlink&module=cuda/12.4,python/3.11"
    "&python=/opt/env/bin/python&folder=/scratch/me/studio"
)


def script(address: str, **fields: object) -> str:
    job = Job(RUN, 3, "file:///scratch/me/studio/mirror", "0" * 64, **fields)  # type: ignore[arg-type]
    return SlurmTarget(address).script(job, "/scratch/me/studio")


def options_of(text: str) -> list[str]:
    lines = text.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_every_parameter_of_an_address_reaches_the_script(tmp_path: Path) -> None:
    TrainConfig.parse({"target": WHOLE})
    text = script(WHOLE, seconds=7200.0)
    assert options_of(text) == [
        f"--job-name=studio-{RUN}-3",
        f"--output=/scratch/me/studio/launches/{RUN}-3/log",
        "--open-mode=append",
        "--ntasks-per-node=1",
        "--requeue",
        "--signal=B:USR1@120",
        "--partition=gpu,big",
        "--account=lab",
        "--qos=high",
        "--gres=gpu:a100:2",
        "--time=1-04:00:00",
        "--nodes=2",
        "--cpus-per-task=8",
        "--mem=64G",
        "--constraint=a100&nvlink",
    ]
    assert "module load cuda/12.4 python/3.11" in text
    assert "limit=7200" in text and "--seconds 7200" not in text
    assert "\nexport STUDIO_MACHINE_PYTHON=/opt/env/bin/python\n" in text
    (tmp_path / "job.sh").write_text(text)
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0


def test_each_task_of_an_array_gets_its_own_script_and_secrets_alone(tmp_path: Path) -> None:
    folders = [f"{tmp_path}/my launches/{RUN}-{number}" for number in range(12)]
    text = SlurmTarget(WHOLE)._array_script(folders)
    assert "--partition=gpu,big" in options_of(text)
    for place, folder in enumerate(folders):
        Path(folder).mkdir(parents=True)
        Path(folder, "job").write_text(f"70_{place}\n")
        Path(folder, "job.sh").write_text('env | grep -E "KEY|STUDIO_TASK"; pwd\n')
    (tmp_path / "array.sh").write_text(text)
    secrets = {f"STUDIO_TASK_{place}_KEY": f"k{place}" for place in range(12)}
    for place in (1, 11):
        task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": str(place)}
        environment = {"PATH": os.environ["PATH"], **secrets, **task}
        # Slurm writes what a task prints to the file of the option --output.
        log = tmp_path / f"my launches/array-70_{place}.log"
        with log.open("w") as output:
            command = ["bash", tmp_path / "array.sh"]
            subprocess.run(command, env=environment, check=True, cwd="/", stdout=output)
        assert Path(folders[place], "log").read_text() == f"KEY=k{place}\n/\n"
    # Another job of the launch was known before.
    Path(folders[2], "job").write_text("71\n")
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "2", "PATH": os.environ["PATH"]}
    subprocess.run(["bash", tmp_path / "array.sh"], env=task, check=True)
    assert not Path(folders[2], "log").exists()


@pytest.mark.parametrize("name", sorted(slurm_target._PARAMETERS))
@pytest.mark.parametrize(
    "value",
    [
        "",
        "x%0a%23SBATCH%20--account=other",
        "x;id",
        "$(id)",
        "x%09y",
        "x'y",
        'x"y',
        "x%60id%60",
        "-x",
    ],
)
def test_no_parameter_can_hold_another_line_or_command(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SlurmTarget(f"slurm://login?{name}={value}")
    assert caught.value.field == "target"


@pytest.mark.parametrize(
    "address",
    [
        "slurm://",
        "slurm://-oProxyCommand=x",
        "slurm://me:secret@login",
        "slurm://login/folder",
        "slurm://login?partition=a&partition=b",
        "slurm://login?pratition=a",
        "slurm://login?time=00:02:00",
        "slurm://login?time=2",
    ],
)
def test_wrong_addresses_are_refused_with_advice(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SlurmTarget(address)
    assert caught.value.fix
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("run_id", ["a b", "a\n#SBATCH --x", "../x", "$(id)", ""])
def test_no_run_of_a_strange_name_is_submitted(run_id: str) -> None:
    with pytest.raises(TargetError):
        SlurmTarget("slurm://login").script(Job(run_id, 1, "file:///m", "0" * 64), "/home/me")


def test_only_localhost_without_a_user_needs_no_ssh() -> None:
    assert SlurmAddress.parse("slurm://localhost?partition=gpu").is_here
    assert not SlurmAddress.parse("slurm://me@localhost").is_here
    assert not SlurmAddress.parse("slurm://login").is_here


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("04:00:00", 14400), ("1-12", 129600),
        ("2-00:30", 174600), ("1-01:01:01", 90061), ("infinite", None), ("", None),
    ],
)  # fmt: skip
def test_limits_of_time_are_read_as_slurm_reads_them(text: str, seconds: int | None) -> None:
    assert slurm_target._seconds_of(text) == seconds


PENDING = (
    "used=14390 room=yes code=75\nJobId=7 JobName=studio-x-1 JobState=PENDING Reason={} "
    "Dependency=(null) StartTime={} EndTime=Unknown TimeLimit=04:00:00 NodeList=(null)\n"
)
RUNNING = (
    "used= room=yes code=\nJobId=7 JobName=studio-x-1 JobState={} Reason=None TimeLimit={} "
    "StartTime=2026-11-29T23:04:31 EndTime=2026-11-30T03:04:31 NodeList=n[1-2] Command=/a b/c\n"
)


def test_states_of_a_job_tell_reason_start_and_end() -> None:
    status = slurm_target._status(PENDING.format("Priority", "2026-11-30T01:00:00"), "login")
    assert (status.state, status.seconds) == ("waiting", 14390.0)
    assert status.detail == "job 7, Priority, expected to start 2026-11-30 01:00 UTC"
    status = slurm_target._status(PENDING.format("QOSMaxJobsPerUserLimit", "Unknown"), "login")
    assert status.detail == "job 7, QOSMaxJobsPerUserLimit"
    status = slurm_target._status(RUNNING.format("RUNNING", "04:00:00"), "login")
    assert (status.state, status.seconds) == ("running", None)
    assert status.place == "job 7 on n[1-2] until 2026-11-30 03:04 UTC"
    full = RUNNING.format("RUNNING", "04:00:00").replace("room=yes", "room=no")
    assert "no room" in slurm_target._status(full, "login").place
    status = slurm_target._status(RUNNING.format("RUNNING", "UNLIMITED"), "login")
    assert status.place == "job 7 on n[1-2]"
    for word in ("TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "COMPLETED"):
        status = slurm_target._status(RUNNING.format(word, "04:00:00"), "login")
        assert (status.state, status.is_cancelled, word in status.detail) == ("ended", False, True)
    assert slurm_target._status(RUNNING.format("CANCELLED", "1"), "login").is_cancelled


def test_job_that_slurm_has_forgotten_has_ended_but_a_silent_slurm_says_nothing() -> None:
    gone = "used=20 room=yes code=75\nslurm_load_jobs error: Invalid job id specified\n"
    status = slurm_target._status(gone, "login")
    assert (status.state, status.detail) == ("ended", "exit status 75")
    assert slurm_target._status("", "login").state == "ended"
    silent = "used=20 room=no code=\nslurm_load_jobs error: Unable to contact slurm controller\n"
    with pytest.raises(UnavailableError):
        slurm_target._status(silent, "login")


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("sbatch: error: invalid partition specified: x", "choose one of: gpu, cpu"),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            "sacctmgr show associations",
        ),
        ("allocation failure: Invalid qos specification", "sacctmgr show qos"),
        ("sbatch: error: Invalid generic resource (gres) specification", "%G"),
        ("allocation failure: Invalid feature specification", "%f"),
        ("allocation failure: Requested time limit is invalid (missing or exceeds)", "%l"),
        ("allocation failure: Requested node configuration is not available", "%D"),
        ("sbatch: error: something else", "ask those who run the cluster"),
    ],
)  # fmt: skip
def test_refusals_of_slurm_come_with_advice(answer: str, advice: str) -> None:
    error = slurm_target._refused(answer, "gpu, cpu")
    assert isinstance(error, ConfigError) and error.field == "target"
    assert advice in error.fix and answer[-40:] in error.received


def test_controller_that_is_down_is_asked_again() -> None:
    answer = "sbatch: error: Unable to contact slurm controller (connect failure)"
    assert isinstance(slurm_target._refused(answer), UnavailableError)


def test_mirror_is_a_folder_of_the_cluster_or_a_bucket_that_nodes_reach() -> None:
    target = SlurmTarget("slurm://me@login?folder=/scratch/me")
    root = target.mirror_root("ssh://me@login/scratch/other")
    assert root.there == "file:///scratch/other"
    for asked in ("gs://bucket/folder", "s3://bucket", "file:///folder", "ssh://other/folder"):
        with pytest.raises(ConfigError, match="can't fetch their code"):
            target.mirror_root(asked)


def test_jobs_that_requeue_themselves_without_a_new_checkpoint_end(tmp_path: Path) -> None:
    run = RunMirror(open_store(f"file://{tmp_path}/mirror"), RUN)
    folder = RunFolder(tmp_path / RUN)
    for restart in range(3):
        options = Namespace(host=0, launch=1, restart=restart)
        assert machine._claim(run, folder, options).restart == restart
    with pytest.raises(TargetError, match="3 jobs in a row") as caught:
        machine._claim(run, folder, Namespace(host=0, launch=1, restart=3))
    assert "more time" in caught.value.fix
    # Another launch counts anew.
    assert machine._claim(run, folder, Namespace(host=0, launch=2, restart=1)).launch == 2


@pytest.mark.parametrize(
    "answer",
    [
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
        "sbatch: error: AssocMaxSubmitJobLimit",
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    ],
)
def test_account_with_all_the_jobs_that_it_may_have_waits(answer: str) -> None:
    assert isinstance(slurm_target._refused(answer, may_wait=True), UnavailableError)
    # Of an array, fewer may be allowed.
    assert isinstance(slurm_target._refused(answer), ConfigError)


def test_task_of_an_array_has_its_own_number_and_ends_alone() -> None:
    text = RUNNING.format("RUNNING", "04:00:00").replace(
        "JobId=7 ", "JobId=9 ArrayJobId=7 ArrayTaskId=2 "
    )
    assert slurm_target._status(text, "login").place.startswith("job 7_2 on n[1-2]")
    gone = "used=60 room=yes code=1\nslurm_load_jobs error: Job 7_2 not found\n"
    assert slurm_target._status(gone, "login").state == "ended"
