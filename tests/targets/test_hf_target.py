"""Tests of Hugging Face Jobs as a place for runs, against the loopback server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from core.errors import ConfigError
from core.targets import hf
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError, UnavailableError
from core.targets.hf import JobsTarget
from core.targets.target import Job, Machine, open_target
from tests.targets.hub_jobs_server import JobServer

pytestmark = pytest.mark.long

TOKEN = "hf_of_ada"
# Jobs look for this code in a bucket that doesn't exist: they run for some seconds, and fail.
JOB = Job("run-1", 1, "hf://buckets/ada/pretrain-studio", "0" * 64, secrets={"HF_TOKEN": TOKEN})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobServer]:
    with JobServer() as server:
        server.add_user("ada", TOKEN)
        server.add_user("ada", "hf_read", role="read")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("STUDIO_ALLOWED_HOSTS", "127.0.0.1")
        yield server
        assert server.unknown_requests == []


@pytest.fixture
def target(server: JobServer) -> JobsTarget:
    return JobsTarget("hf://cpu-basic")


def test_check_describes_the_machine_and_its_price(server: JobServer) -> None:
    said = open_target("hf://l4x1").check()
    assert said == "l4x1 (1x Nvidia L4, 8 vCPU, 30 GB), $0.80 per hour, namespace ada"
    assert JobsTarget("hf://h200x8").price_per_hour() == pytest.approx(40, abs=0.01)
    assert JobsTarget("hf://cpu-basic").price_per_hour() == pytest.approx(0.01, abs=0.001)
    assert server.jobs == {}


def test_unknown_flavour_is_refused_with_those_that_exist(server: JobServer) -> None:
    target = JobsTarget("hf://tpu-v5e")
    words = r"cpu-basic \(\$0.01 per hour\), .*h200x8 \(\$40.00 per hour\)"
    for action in (target.check, target.price_per_hour):
        with pytest.raises(ConfigError, match=words) as caught:
            action()
        assert caught.value.field == "target"


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "not signed in|no token and no login"),
        ("hf_wrong", "401: Invalid"),
        ("hf_read", "may only read"),
    ],
)
def test_login_that_may_not_start_jobs_is_refused(
    server: JobServer, monkeypatch: pytest.MonkeyPatch, token: str, words: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    if not token:
        monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(TargetError, match=words) as caught:
        JobsTarget("hf://cpu-basic").check()
    assert not isinstance(caught.value, UnavailableError)


def test_namespace_of_others_is_refused(server: JobServer) -> None:
    with pytest.raises(ConfigError, match=r"Expected: your own namespace.*ada.*Received: acme"):
        JobsTarget("hf://cpu-basic?namespace=acme").check()


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://buckets/ada/runs",
        "hf://cpu-basic/x",
        "hf://cpu-basic?color=red",
        "hf://cpu-basic?namespace=../x",
        "hf://cpu-basic?namespace=",
        "hf://cpu-basic?image=a%20b",
        "hf://ada:secret@cpu-basic",
        "hf://-x",
    ],
)
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_target(address)
    assert caught.value.field == "target"


def test_mirror_is_a_private_bucket_of_the_namespace(target: JobsTarget) -> None:
    roots = target.mirror_root("")
    assert roots.here == roots.there == "hf://buckets/ada/pretrain-studio"
    assert target.mirror_root("hf://buckets/ada/x/y").there == "hf://buckets/ada/x/y"
    acme = JobsTarget("hf://cpu-basic?namespace=acme").mirror_root("")
    assert acme.there == "hf://buckets/acme/pretrain-studio"
    for address in ("file:///tmp/x", "gs://bucket", "ssh://host/x", "hf://datasets/ada/x"):
        with pytest.raises(ConfigError) as caught:
            target.mirror_root(address)
        assert caught.value.field == "mirror"


def test_job_runs_the_bootstrap_script_with_the_token_as_its_secret(
    server: JobServer, target: JobsTarget
) -> None:
    machine = target.launch(JOB)
    assert (machine.run_id, machine.launch, machine.target) == ("run-1", 1, "hf://cpu-basic")
    assert abs(machine.created - time.time()) < 60
    [job] = server.jobs.values()
    assert machine.id == job.id
    assert job.spec["command"] == ["python3", "-c", bootstrap_source(), *JOB.arguments]
    assert job.spec["secrets"] == {"HF_TOKEN": TOKEN}
    assert job.spec["environment"] == {"HF_ENDPOINT": server.url}
    assert job.spec["dockerImage"] == "python:3.12"
    assert job.spec["timeoutSeconds"] == 24 * 3600
    assert job.spec["attempts"] == 1
    labels = {"studio": "pretrain-studio", "run": "run-1", "launch": "1", "name": "run-1-1"}
    assert job.spec["labels"] == labels
    assert TOKEN not in str({**job.spec, "secrets": None})
    server.wait(job.id, "RUNNING", "ERROR")
    deadline = time.monotonic() + 20
    while "studio: fetching the code" not in target.log(machine):
        assert time.monotonic() < deadline, job.text
    assert target.state(machine).state == "running"


def test_image_limit_and_gpu_settings_are_passed_on(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "_HUB", server.url)
    image = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel"
    target = JobsTarget(f"hf://a100-large?image={image}")
    target.launch(Job("run-1", 2, JOB.mirror, JOB.code, seconds=3600))
    [job] = server.jobs.values()
    assert (job.spec["dockerImage"], job.spec["flavor"]) == (image, "a100-large")
    assert 3600 + 300 <= job.spec["timeoutSeconds"] <= 3600 + 600
    assert job.spec["command"][-2:] == ["--seconds", "3600"]
    # The default endpoint is not passed on.
    assert job.spec["environment"] == {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert job.spec["secrets"] == {"HF_TOKEN": TOKEN}


def test_states_are_those_of_the_hub(server: JobServer, target: JobsTarget) -> None:
    server.scheduling_seconds = 60
    waiting = target.launch(JOB)
    assert (target.state(waiting).state, target.log(waiting)) == ("waiting", "")
    server.scheduling_seconds = 0
    running = target.launch(Job("run-1", 2, JOB.mirror, JOB.code))
    server.wait(running.id, "RUNNING")
    assert target.state(running).state == "running"
    listed = {(one.id, one.run_id, one.launch) for one in target.list_machines()}
    assert listed == {(waiting.id, "run-1", 1), (running.id, "run-1", 2)}

    server.kill_job(running.id)
    server.wait(running.id)
    assert target.state(running).detail == "error: Job failed: its machine is gone"
    # Somebody cancels the other one elsewhere.
    server.end(server.jobs[waiting.id], "CANCELED", None)
    server.wait(waiting.id)
    assert (target.state(waiting).state, target.state(waiting).detail) == ("ended", "canceled")
    assert target.list_machines() == []
    del server.jobs[running.id]
    assert target.state(running).state == "ended"
    server.jobs[waiting.id].stage = "PAUSED"
    assert target.state(waiting).state == "unknown"
    server.jobs[waiting.id].stage = "DELETED"
    assert target.state(waiting).state == "ended"


def test_job_ends_at_its_time_limit(
    server: JobServer, target: JobsTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "GRACE_SECONDS", -60)
    machine = target.launch(Job("run-1", 1, JOB.mirror, JOB.code, seconds=1))
    server.wait(machine.id)
    assert (target.state(machine).state, target.state(machine).detail) == (
        "ended",
        "error: Job timeout",
    )


def test_cancelling_twice_is_harmless(server: JobServer, target: JobsTarget) -> None:
    machine = target.launch(JOB)
    target.cancel(machine)
    assert server.wait(machine.id).stage == "CANCELED"
    target.cancel(machine)
    assert server.count("/cancel$") == 1
    del server.jobs[machine.id]
    target.cancel(machine)
    # It ends while it is being cancelled.
    other = target.launch(Job("run-1", 2, JOB.mirror, JOB.code))
    server.lose_reply("/cancel$")
    with pytest.raises(UnavailableError):
        target.cancel(other)
    target.cancel(other)
    assert server.jobs[other.id].stage in ("CANCELED", "RUNNING")
    assert server.wait(other.id).stage == "CANCELED"


def test_launch_without_an_answer_is_found_and_not_repeated(
    server: JobServer, target: JobsTarget
) -> None:
    assert target.find("run-1", 1) is None
    server.lose_reply("POST /api/jobs/ada$")
    machine = target.launch(JOB)
    assert [machine.id] == list(server.jobs)
    found = target.find("run-1", 1)
    assert found is not None and found.id == machine.id
    assert target.find("run-1", 2) is None
    assert target.find("run-2", 1) is None
    assert Machine.from_json(found.to_json()) == found


def test_refused_launch_is_explained_and_starts_nothing(
    server: JobServer, target: JobsTarget
) -> None:
    server.refuse_next_launch(402, "Pre-paid credit balance is insufficient")
    with pytest.raises(TargetError, match=r"credit balance is insufficient.*billing") as caught:
        target.launch(JOB)
    assert not isinstance(caught.value, UnavailableError)
    server.refuse_next_launch(403, "Your plan has no jobs")
    with pytest.raises(TargetError, match="403: Your plan has no jobs"):
        target.launch(JOB)
    assert server.jobs == {}


def test_launch_that_the_server_drops_can_be_tried_again(
    server: JobServer, target: JobsTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "_FIND_AFTER_SECONDS", (0.0, 0.1))
    server.refuse_next_launch(503, "busy now")
    with pytest.raises(UnavailableError, match="503: busy now"):
        target.launch(JOB)
    assert target.find("run-1", 1) is None
    target.launch(JOB)
    assert len(server.jobs) == 1


@pytest.mark.slow(30)
def test_closed_server_is_unavailable(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with JobServer() as other:
        monkeypatch.setenv("HF_ENDPOINT", other.url)
    target = JobsTarget("hf://cpu-basic?namespace=ada")
    machine = Machine(target.address, "0" * 24, "run-1", 1)
    monkeypatch.setattr(hf, "_FIND_AFTER_SECONDS", ())
    for action in (
        lambda: target.state(machine),
        lambda: target.log(machine),
        lambda: target.cancel(machine),
        lambda: target.launch(JOB),
        target.check,
        target.price_per_hour,
        target.list_machines,
    ):
        with pytest.raises(UnavailableError, match=r"Connection refused.*tried again"):
            action()


def test_answers_of_the_hub_are_not_trusted(server: JobServer, target: JobsTarget) -> None:
    machine = target.launch(JOB)
    [job] = server.jobs.values()
    job.spec["labels"] = {"studio": "pretrain-studio", "run": "../x", "launch": "9" * 50}
    [listed] = target.list_machines()
    assert (listed.id, listed.run_id, listed.launch) == (machine.id, "", 0)
    with pytest.raises(TargetError, match="job's id"):
        target.state(Machine("hf://cpu-basic", "../../whoami-v2", "run-1", 1))


def test_long_log_is_cut(server: JobServer, target: JobsTarget) -> None:
    machine = target.launch(JOB)
    [job] = server.jobs.values()
    server.wait(machine.id, "RUNNING")
    when = job.created_at
    with server.changed:
        job.log += [(when, f"{number} " + "x" * 5_000) for number in range(2_000)]
        job.log.append((when, f"the token is {TOKEN}"))
    text = target.log(machine)
    assert len(text) < 500_000
    assert text.splitlines()[0].startswith("160")
    assert TOKEN not in text
