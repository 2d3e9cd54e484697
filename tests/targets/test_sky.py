"""Runs through SkyPilot's command, with a double that executes jobs as processes here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig
from core.errors import ConfigError
from core.targets import sky as sky_module
from core.targets import sky_command
from core.targets.code import pack_code
from core.targets.errors import TargetError, UnavailableError
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.schema import RunSpec
from core.targets.sky import SkyAddress, SkyTarget
from core.targets.sky_command import COMMAND_VARIABLE
from core.targets.target import Job, Machine, open_target
from tests.core.runs.support import wait_for
from tests.targets import fake_sky

pytestmark = pytest.mark.long

RUN = "train-20260101-000000-abcd"
NAME = f"studio-{RUN}-1"
SECRET = "hf_never_to_be_shown"
ADDRESS = "sky://A100:1?use_spot=1&cloud=gcp"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state of the double, whose jobs are killed at the end."""
    folder = tmp_path / "sky"
    folder.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("FAKE_SKY", str(folder))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv(COMMAND_VARIABLE, f"{sys.executable} {fake_sky.__file__}")
    monkeypatch.setattr(fake_sky, "FOLDER", folder)
    yield folder
    for path in folder.glob("*/pid"):
        fake_sky.kill(int(path.parent.name))


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a script in the bootstrap script's place that runs until a file `end` is there."""
    source = (
        "import json, os, sys, time\n"
        "print('studio: training', sys.argv[1:], flush=True)\n"
        "print('HF_TOKEN has', len(os.environ.get('HF_TOKEN', '')), 'letters', flush=True)\n"
        "print('once:', os.environ.get('STUDIO_MACHINE_ONCE'), flush=True)\n"
        "end = os.path.join(os.environ['FAKE_SKY'], 'end')\n"
        "while not os.path.exists(end):\n"
        "    time.sleep(0.02)\n"
        "sys.exit(int(open(end).read()))\n"
    )
    monkeypatch.setattr(sky_module, "bootstrap_source", lambda: source)


def job(**values: Any) -> Job:
    return Job(**{"run_id": RUN, "launch": 1, "mirror": "gs://b", "code": "0" * 64, **values})


def behave(folder: Path, **values: Any) -> None:
    (folder / "behaviour.json").write_text(json.dumps(values))


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def finish(folder: Path, code: int = 0) -> None:
    (folder / "draft").write_text(str(code))
    (folder / "draft").rename(folder / "end")


def wait_for_state(target: SkyTarget, machine: Machine, state: str) -> None:
    wait_for(lambda: target.state(machine).state == state, 20)


def log_with(target: SkyTarget, machine: Machine, text: str) -> str:
    wait_for(lambda: text in target.log(machine), 20)
    return target.log(machine)


@pytest.mark.usefixtures("bootstrap")
def test_job_runs_the_bootstrap_script_and_ends(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    asked = job(seconds=60.0)
    machine = target.launch(asked)
    assert (machine.id, machine.target, machine.run_id, machine.launch) == (NAME, ADDRESS, RUN, 1)
    wait_for_state(target, machine, "running")
    lines = log_with(target, machine, "once:").splitlines()
    # The prefixes and colours of SkyPilot would hide the phases from the follower.
    assert lines[0] == f"studio: training {asked.arguments}"
    assert lines[2] == "once: 1"
    finish(folder)
    wait_for_state(target, machine, "ended")
    assert target.state(machine).detail == "SUCCEEDED"


@pytest.mark.usefixtures("bootstrap")
def test_failure_of_the_machine_ends_the_job(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    machine = target.launch(job())
    finish(folder, 75)
    wait_for_state(target, machine, "ended")
    assert target.state(machine).detail == "FAILED"


@pytest.mark.usefixtures("bootstrap")
def test_secret_reaches_the_machine_and_nothing_else(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    machine = target.launch(job(secrets={"HF_TOKEN": SECRET}))
    assert f"HF_TOKEN has {len(SECRET)} letters" in log_with(target, machine, "letters")
    assert SECRET not in json.dumps(calls(folder))
    assert SECRET not in (folder / "1" / "task.yaml").read_text()
    assert SECRET not in json.dumps(machine.to_json())


@pytest.mark.usefixtures("bootstrap")
def test_other_calls_have_no_secrets_of_this_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = folder / "sky"
    script.write_text(f"#!/bin/sh\nenv > {folder}/seen\necho '[]'\n")
    script.chmod(0o755)
    monkeypatch.setenv(COMMAND_VARIABLE, str(script))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("STUDIO_DATABASE_URL", "postgresql://me:password@host/db")
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://127.0.0.1:1")
    SkyTarget(ADDRESS).check()
    seen = (folder / "seen").read_text()
    assert SECRET not in seen and "STUDIO_" not in seen
    assert "SKYPILOT_API_SERVER_ENDPOINT" in seen and "SKYPILOT_DISABLE_USAGE_COLLECTION=1" in seen


@pytest.mark.usefixtures("bootstrap")
def test_job_whose_answer_was_lost_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = SkyTarget(ADDRESS)
    assert target.find(RUN, 1) is None
    behave(folder, hang={"launch": 60.0})
    monkeypatch.setattr(sky_command, "_LAUNCH_SECONDS", 1.5)
    with pytest.raises(UnavailableError, match="doesn't answer"):
        target.launch(job())
    found = target.find(RUN, 1)
    assert found is not None and (found.id, found.run_id, found.launch) == (NAME, RUN, 1)
    assert found.created > 0 and "job 1" in found.detail
    assert target.find(RUN, 2) is None
    wait_for_state(target, found, "running")


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", "waiting"),
        ("STARTING", "waiting"),
        ("RUNNING", "running"),
        ("RECOVERING", "ended"),
        ("CANCELLING", "ended"),
        ("CANCELLED", "ended"),
        ("SUCCEEDED", "ended"),
        ("FAILED", "ended"),
        ("FAILED_SETUP", "ended"),
        ("FAILED_NO_RESOURCE", "ended"),
        ("FAILED_CONTROLLER", "ended"),
        ("A_NEW_ONE", "unknown"),
    ],
)
def test_state_of_each_status(folder: Path, status: str, state: str) -> None:
    target = SkyTarget(ADDRESS)
    behave(folder, status=status)
    machine = target.launch(job())
    found = target.state(machine)
    assert (found.state, found.detail) == (state, status)


def test_resources_that_no_cloud_has_are_an_error_with_the_reason(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    behave(folder, status="FAILED_PRECHECKS")
    machine = target.launch(job())
    with fake_sky.changing_jobs() as jobs:
        jobs[0]["failure_reason"] = "No launchable resource found for GCP({'A100': 99})"
    with pytest.raises(TargetError, match="No launchable resource") as caught:
        target.state(machine)
    assert not isinstance(caught.value, UnavailableError)
    target.cancel(machine)
    assert not [one for one in calls(folder) if one[1] == "cancel"]


@pytest.mark.usefixtures("bootstrap")
def test_job_that_skypilot_restarts_counts_as_ended_and_is_cancelled(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    machine = target.launch(job())
    wait_for_state(target, machine, "running")
    fake_sky.lose_machine(1)
    assert target.state(machine).state == "ended"
    fake_sky.recover(1)
    wait_for(lambda: "RUNNING" in (folder / "jobs.json").read_text(), 20)
    assert target.state(machine).state == "ended"
    assert [one.id for one in target.list_machines()] == [NAME]
    target.cancel(machine)
    assert target.list_machines() == []
    assert json.loads((folder / "jobs.json").read_text())[0]["status"] == "CANCELLED"


@pytest.mark.usefixtures("bootstrap")
def test_cancelled_job_ends_its_processes_and_a_second_call_does_nothing(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    machine = target.launch(job())
    wait_for_state(target, machine, "running")
    log_with(target, machine, "once:")
    group = int((folder / "1" / "pid").read_text())
    target.cancel(machine)
    wait_for(lambda: not _is_alive(group), 10)
    assert target.state(machine).state == "ended"
    before = len(calls(folder))
    target.cancel(machine)
    assert [one[1] for one in calls(folder)[before:]] == ["queue"]


@pytest.mark.usefixtures("bootstrap")
def test_job_that_was_launched_twice_is_cancelled_twice(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    machine = target.launch(job())
    target.launch(job())
    target.cancel(machine)
    assert calls(folder)[-1] == ["jobs", "cancel", "-y", "2", "1"]
    assert target.list_machines() == []


def test_list_has_this_programs_jobs_only(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    behave(folder, status="RUNNING")
    target.launch(job())
    target.launch(job(launch=12))
    target.launch(job(launch=3))
    with fake_sky.changing_jobs() as jobs:
        jobs.append({**jobs[0], "job_id": 4, "job_name": "somebody-elses-1"})
        jobs.append({**jobs[0], "job_id": 5, "job_name": None})
        jobs[2]["status"] = "SUCCEEDED"
    found = sorted((one.run_id, one.launch) for one in target.list_machines())
    assert found == [(RUN, 1), (RUN, 12)]


def test_stopped_controller_means_that_there_are_no_jobs(folder: Path) -> None:
    behave(folder, no_controller=True)
    target = SkyTarget(ADDRESS)
    assert target.list_machines() == [] and target.find(RUN, 1) is None
    assert "0 jobs" in target.check()
    machine = Machine(ADDRESS, NAME, RUN, 1)
    assert target.state(machine).state == "ended"
    assert target.log(machine) == ""
    target.cancel(machine)


def test_line_about_the_servers_start_does_not_disturb(folder: Path) -> None:
    behave(folder, noise=True, status="RUNNING")
    target = SkyTarget(ADDRESS)
    assert target.list_machines() == []
    target.launch(job())
    assert [one.id for one in target.list_machines()] == [NAME]


@pytest.mark.usefixtures("bootstrap")
def test_nodes_know_their_rank_and_the_first_ones_address(folder: Path) -> None:
    target = SkyTarget("sky://L4:1?nodes=2")
    machine = target.launch(job())
    lines = [
        *log_with(target, machine, "'--host', '0'").splitlines(),
        *log_with(target, machine, "'--host', '1'").splitlines(),
    ]
    for rank in ("0", "1"):
        several = f"'--host', '{rank}', '--hosts', '2', '--coordinator', '10.0.0.0:8476']"
        assert any(one.startswith("studio: ") and one.endswith(several) for one in lines)
    finish(folder)


# Errors.


def test_missing_command_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_VARIABLE, "/nowhere/sky")
    with pytest.raises(ConfigError, match="STUDIO_SKY_COMMAND") as caught:
        SkyTarget(ADDRESS).check()
    assert caught.value.field == "target"


def test_refused_launch_is_an_error_with_skypilots_words(folder: Path) -> None:
    words = "sky.exceptions.ResourcesUnavailableError: Catalog has no A100:99"
    behave(folder, fail={"launch": words})
    with pytest.raises(TargetError, match="Catalog has no A100:99") as caught:
        SkyTarget(ADDRESS).launch(job())
    assert not isinstance(caught.value, UnavailableError)


def test_lost_network_is_no_refusal(folder: Path) -> None:
    behave(folder, fail={"launch": "CloudError: requests error (ConnectionError): no route"})
    with pytest.raises(UnavailableError):
        SkyTarget(ADDRESS).launch(job())


def test_refused_list_is_an_error_of_the_check_and_later_unknown(folder: Path) -> None:
    target = SkyTarget(ADDRESS)
    behave(folder, fail={"queue": "PermissionDeniedError: log in again"})
    with pytest.raises(TargetError, match="log in again") as caught:
        target.check()
    assert not isinstance(caught.value, UnavailableError)
    with pytest.raises(UnavailableError, match="log in again"):
        target.state(Machine(ADDRESS, NAME, RUN, 1))


@pytest.mark.parametrize(
    "garbage",
    [
        "oops",
        "{}",
        "[1]",
        '[\n{"job_id": "1", "status": "RUNNING"}]',
        '[\n{"job_id": 1, "status": null}]',
        '[\n{"job_id": 1',
        "[\n" * 5000,
    ],
)
def test_answer_of_another_shape_tells_nothing(folder: Path, garbage: str) -> None:
    behave(folder, garbage=garbage)
    with pytest.raises(UnavailableError, match="can't be used"):
        SkyTarget(ADDRESS).list_machines()


def test_command_that_hangs_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(folder, hang={"queue": 60.0})
    monkeypatch.setattr(sky_command, "_CALL_SECONDS", 1.0)
    with pytest.raises(UnavailableError, match="within 1 seconds"):
        SkyTarget(ADDRESS).list_machines()
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert not [one for one in listed.stdout.splitlines() if f"{fake_sky.__file__} jobs" in one]


@pytest.mark.parametrize("launch", [0, -1])
def test_machine_of_a_strange_name_is_refused(folder: Path, launch: int) -> None:
    with pytest.raises(TargetError, match="can't be a launch"):
        SkyTarget(ADDRESS).state(Machine(ADDRESS, NAME, RUN, launch))
    with pytest.raises(TargetError, match="can't be a launch"):
        SkyTarget(ADDRESS).cancel(Machine(ADDRESS, NAME, "-a; rm", 1))


# Addresses.


def test_address_becomes_skypilots_resources() -> None:
    address = "sky://A100:8?cloud=gcp&region=us-central1&cpus=8+&disk_size=200"
    assert SkyAddress.parse(address).resources == {
        "cpus": "8+",
        "infra": "gcp/us-central1/*",
        "accelerators": "A100:8",
        "disk_size": 200,
        "use_spot": False,
        "job_recovery": {"max_restarts_on_errors": 0},
    }


def test_tpu_is_at_google_with_the_runtime_of_its_generation() -> None:
    resources = SkyAddress.parse("sky://tpu-v5litepod-8?zone=us-west4-a&use_spot=1").resources
    assert resources["infra"] == "gcp/*/us-west4-a" and resources["use_spot"] is True
    assert resources["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert "accelerator_args" not in SkyAddress.parse("sky://tpu-v6e-8").resources
    chosen = SkyAddress.parse("sky://tpu-v6e-8?runtime_version=v2-alpha-tpuv6e").resources
    assert chosen["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv6e"}


def test_cpu_machine_has_no_accelerators() -> None:
    assert "accelerators" not in SkyAddress.parse("sky://cpu?cpus=4").resources


@pytest.mark.parametrize(
    "address",
    [
        "sky://",
        "sky://A100:many",
        "sky://A100:1/folder",
        "sky://A100:1?spot=1",
        "sky://A100:1?use_spot=perhaps",
        "sky://A100:1?cloud=gcp&cloud=aws",
        "sky://A100:1?region=$(id)",
        "sky://A100:1?python=python;id",
        "sky://A100:1?nodes=0",
        "sky://-n:1",
    ],
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="sky://") as caught:
        open_target(address)
    assert caught.value.field == "target"


@pytest.mark.parametrize(
    ("address", "mirror"),
    [
        (ADDRESS, "gs://my-bucket/studio"),
        ("sky://tpu-v6e-8", "gs://my-bucket"),
        ("sky://A100:1", "hf://buckets/ada/runs"),
    ],
)
def test_mirror_that_the_machine_reaches_is_used(address: str, mirror: str) -> None:
    roots = SkyTarget(address).mirror_root(f"{mirror}/")
    assert (roots.here, roots.there) == (mirror, mirror)


@pytest.mark.parametrize(
    ("address", "mirror"),
    [
        (ADDRESS, ""),
        (ADDRESS, "file:///tmp/mirror"),
        (ADDRESS, "ssh://host/folder"),
        (ADDRESS, "s3://bucket/folder"),
        ("sky://A100:1?cloud=aws", "gs://my-bucket"),
        ("sky://A100:1", "gs://my-bucket"),
    ],
)
def test_mirror_that_the_machine_cannot_read_is_refused(address: str, mirror: str) -> None:
    with pytest.raises(ConfigError, match="hf://buckets") as caught:
        SkyTarget(address).mirror_root(mirror)
    assert caught.value.field == "mirror"


# The real bootstrap script.


@pytest.mark.slow(20)
def test_restarted_job_gives_up_after_its_launch_has_claimed(folder: Path, tmp_path: Path) -> None:
    root = f"file://{tmp_path}/mirror"
    store = open_store(root)
    code = pack_code()
    store.write(f"blobs/{code.sha256}", code.data)
    mirror = RunMirror(store, RUN)
    config = TrainConfig(shards="rows").model_dump(mode="json")
    mirror.write_spec(RunSpec(id=RUN, stage="train", config=config, created=1.0))
    mirror.claim(None, launch=1)
    target = SkyTarget(f"sky://cpu?python={sys.executable}")
    machine = target.launch(job(mirror=root, code=code.sha256, seconds=300.0))
    wait_for_state(target, machine, "ended")
    lines = target.log(machine).splitlines()
    phases = [one for one in lines if one.startswith("studio: ")]
    assert phases[0] == "studio: fetching the code" and "studio: starting the program" in phases
    assert "studio: training" not in phases
    assert any("a claim of launch 1; this is launch 1" in one for one in lines)
    assert mirror.look().newest == 1


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
