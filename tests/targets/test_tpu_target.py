"""The target of Cloud TPU, against a server that really runs the startup script."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from core.config.topologies import TOPOLOGIES, accelerator_type, runtime_version
from core.errors import ConfigError, StudioError
from core.targets.errors import TargetError, UnavailableError
from core.targets.target import Job, Machine, open_target
from core.targets.tpu import TpuAddress, TpuTarget, log_name, resource_id, startup_script
from tests.core.runs.support import wait_for
from tests.targets.tpu_server import USER_TOKEN, TpuServer
from tests.targets.tpu_support import PROJECT, ZONE, sign_in

pytestmark = pytest.mark.long

PARENT = f"projects/{PROJECT}/locations/{ZONE}"
ADDRESS = f"tpu://v5litepod-8?zone={ZONE}&project={PROJECT}"
RUN = "train-20260102-030405-abcd"
ID = f"studio-{RUN}-1"
LOG = f"x/runs/{RUN}/launches/000001-0.log"
HASH = "0" * 64


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuServer]:
    with TpuServer({"STUDIO_MACHINE_PYTHON": sys.executable}) as server:
        server.extra_environment["STORAGE_EMULATOR_HOST"] = server.url
        server.extra_environment["STUDIO_MACHINE_HOME"] = "machine"
        sign_in(server, tmp_path, monkeypatch)
        yield server
    assert server.unknown_requests == []


@pytest.fixture
def target(server: TpuServer) -> TpuTarget:
    return TpuTarget(ADDRESS)


def job(launch: int = 1, **values: Any) -> Job:
    return Job(
        **{"run_id": RUN, "launch": launch, "mirror": "gs://bucket/x", "code": HASH, **values}
    )


def refusal(action: Any) -> StudioError:
    with pytest.raises(StudioError) as caught:
        action()
    return caught.value


# Addresses.


def test_address_has_defaults_for_spot_and_runtime() -> None:
    found = TpuAddress.parse(f"tpu://v5litepod-16?zone={ZONE}")
    assert found == TpuAddress("v5litepod-16", ZONE, "", True, "v2-alpha-tpuv5-lite")
    found = TpuAddress.parse(
        f"tpu://v4-64?zone={ZONE}&spot=0&project=p-1234&runtime=other&network=net"
        "&subnetwork=sub&service_account=me@p-1234.iam.gserviceaccount.com"
    )
    account = "me@p-1234.iam.gserviceaccount.com"
    assert found == TpuAddress("v4-64", ZONE, "p-1234", False, "other", "net", "sub", account)
    assert open_target(ADDRESS).address == ADDRESS


def test_common_names_and_larger_slices_are_known() -> None:
    assert accelerator_type("v5e-8") == "v5litepod-8"
    assert accelerator_type("v5e-256") == "v5litepod-256"
    assert accelerator_type("v6e-256") == "v6e-256"
    for topology in TOPOLOGIES.values():
        assert runtime_version(topology.accelerator_type)


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("tpu://v5litepod-8", "tpu://v5litepod-8"),
        (f"tpu://v5litepod-8?zone={ZONE}&color=red", "the parameter color"),
        (f"tpu://v5litepod-8?zone={ZONE}&spot=maybe", "spot=maybe"),
        (f"tpu://v5litepod-8?zone={ZONE}&zone={ZONE}", "a parameter twice"),
        ("tpu://v5litepod-8?zone=../../x", "zone=../../x"),
        (f"tpu://v5litepod-8?zone={ZONE}&project=a/b", "project=a/b"),
        (f"tpu://v5litepod-8/more?zone={ZONE}", "tpu://v5litepod-8/more"),
        (f"tpu://v9-8?zone={ZONE}", "v9-8"),
        (f"tpu://v4?zone={ZONE}", "v4"),
        (f"tpu://v4-8;x?zone={ZONE}", "v4-8;x"),
    ],
)
def test_invalid_address_is_refused(address: str, part: str) -> None:
    error = refusal(lambda: TpuTarget(address))
    assert isinstance(error, ConfigError) and error.field == "target" and error.fix
    assert part in error.received


def test_resource_ids_are_valid_and_distinct() -> None:
    names = [RUN, "Train-1", "train-1", "a" * 64, "a" * 63, "x_y", "x-y", "-"]
    ids = [resource_id(name, launch) for name in names for launch in (1, 999_999)]
    assert ids[0] == ID and len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", one) for one in ids)


def test_mirror_must_be_a_bucket(target: TpuTarget) -> None:
    root = target.mirror_root("gs://bucket/x/")
    assert (root.here, root.there) == ("gs://bucket/x", "gs://bucket/x")
    for wrong in ("", "s3://bucket/x", "ssh://host/x", "gs://", "gs://UPPER/x"):
        error = refusal(lambda wrong=wrong: target.mirror_root(wrong))
        assert error.field == "mirror" and "--mirror gs://bucket/folder" in error.fix


# Checks.


def test_check_names_what_is_asked_for(target: TpuTarget, server: TpuServer) -> None:
    assert target.check() == (
        f"v5litepod-8 (chips: 8, hosts: 1), spot, in {ZONE} of project {PROJECT}"
    )
    assert target.creates_machines and not target.carries_secrets
    assert target.price_per_hour() is None
    assert server.created == []


def test_check_refuses_what_the_zone_does_not_offer(server: TpuServer) -> None:
    error = refusal(TpuTarget(f"tpu://v6e-256?zone={ZONE}").check)
    assert "doesn't offer this type of TPU" in error.problem and error.received == "v6e-256"
    error = refusal(TpuTarget(f"tpu://v6e-8?zone={ZONE}").check)
    assert "doesn't offer this runtime version" in error.problem
    assert error.received == "v2-alpha-tpuv6e"


def test_project_comes_from_the_credentials(
    server: TpuServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROJECT in TpuTarget(f"tpu://v4-8?zone={ZONE}").check()
    key = json.loads((tmp_path / "key.json").read_text("utf-8"))
    del key["project_id"]
    (tmp_path / "key.json").write_text(json.dumps(key), "utf-8")
    error = refusal(TpuTarget(f"tpu://v4-8?zone={ZONE}").check)
    assert "project" in error.problem and "&project=PROJECT" in error.fix


def test_missing_and_refused_credentials_get_advice(
    server: TpuServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in ("{}", "no JSON", None):
        path = tmp_path / "key.json"
        path.unlink() if content is None else path.write_text(content, "utf-8")
        error = refusal(TpuTarget(ADDRESS).check)
        assert type(error) is TargetError
        assert "gcloud auth application-default login" in error.fix


@pytest.mark.parametrize(
    ("kind", "words", "advice"),
    [
        ("quota", "Quota limit", "ask for quota"),
        ("quota later", "Quota limit", "ask for quota"),
        ("forbidden", "Permission 'tpu.queuedresources.create' denied", "TPU Admin"),
    ],
)
def test_refusals_have_googles_words_and_advice(
    target: TpuTarget, server: TpuServer, kind: str, words: str, advice: str
) -> None:
    server.fail_next(kind, method="POST")
    error = refusal(lambda: target.launch(job()))
    assert type(error) is not UnavailableError and isinstance(error, TargetError)
    assert words in error.received and advice in error.fix
    assert server.created == []


def test_failing_service_is_unavailable(target: TpuTarget, server: TpuServer) -> None:
    for kind in ("internal", "unavailable"):
        server.fail_next(kind)
        assert isinstance(refusal(target.check), UnavailableError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_TPU_ENDPOINT", "http://127.0.0.1:1")
        assert isinstance(refusal(TpuTarget(ADDRESS).check), UnavailableError)
        patch.setenv("STUDIO_TPU_ENDPOINT", f"{server.url}/elsewhere")
        assert isinstance(refusal(TpuTarget(ADDRESS).check), StudioError)
    server.unknown_requests.clear()


# The life of a resource.


def test_machine_is_launched_found_listed_and_deleted(target: TpuTarget, server: TpuServer) -> None:
    server.delay("WAITING_FOR_RESOURCES", math.inf)
    server.delay("DELETING", math.inf)
    assert target.find(RUN, 1) is None
    machine = target.launch(job(secrets={"HF_TOKEN": "hf_secret"}, seconds=3600))
    assert (machine.id, machine.run_id, machine.launch) == (ID, RUN, 1)
    assert abs(machine.created - time.time()) < 60
    server.wait(ID, "WAITING_FOR_RESOURCES")
    status = target.state(machine)
    assert (status.state, status.detail) == ("waiting", "WAITING_FOR_RESOURCES")
    assert target.find(RUN, 1) == target.list_machines()[0]
    assert target.launch(job()).id == ID and server.created == [ID]
    assert target.log(machine) == ""

    created = server.describe_resource(ID)
    assert created["spot"] == {} and "hf_secret" not in json.dumps(created)
    node = created["tpu"]["nodeSpec"][0]["node"]
    assert node["labels"] == {"studio": "pretrain-studio", "run": RUN, "launch": "1"}
    assert node["networkConfig"] == {"enableExternalIps": True}

    target.cancel(machine)
    assert target.state(machine).state == "ended"
    target.cancel(machine)
    server.delay("DELETING", 0)
    server.wait(ID, None)
    target.cancel(machine)
    assert target.state(machine).detail == "deleted"
    assert target.list_machines() == [] and server.deleted == {ID: USER_TOKEN}


def test_launch_on_demand_has_no_tier_and_uses_the_network(server: TpuServer) -> None:
    server.delay("CREATING", math.inf)
    account = "me@p-1234.iam.gserviceaccount.com"
    target = TpuTarget(f"{ADDRESS}&spot=0&network=net&service_account={account}")
    target.launch(job())
    created = server.describe_resource(ID)
    assert not {"spot", "guaranteed"} & created.keys()
    node = created["tpu"]["nodeSpec"][0]["node"]
    assert node["networkConfig"] == {"network": "net", "enableExternalIps": True}
    assert node["serviceAccount"]["email"] == account


def test_lost_answer_is_found_again(target: TpuTarget, server: TpuServer) -> None:
    server.delay("CREATING", math.inf)
    server.fail_next("lost answer", method="POST")
    assert isinstance(refusal(lambda: target.launch(job())), UnavailableError)
    found = target.find(RUN, 1)
    assert found and found.id == ID and server.created == [ID]


def test_failed_and_preempted_resources_have_ended(target: TpuTarget, server: TpuServer) -> None:
    server.fail_next("no capacity")
    machine = target.launch(job())
    server.wait(ID, "FAILED")
    status = target.state(machine)
    assert status.state == "ended" and status.detail.startswith("FAILED: There is no more capacity")
    second = target.launch(job(2))
    server.wait(second.id, "ACTIVE")
    server.preempt(second.id)
    server.wait(second.id, "SUSPENDED")
    assert target.state(second).state == "ended"
    assert {one.launch for one in target.list_machines()} == {1, 2}
    for one in (machine, second):
        target.cancel(one)
        server.wait(one.id, None)


def test_others_resources_are_left_alone(target: TpuTarget, server: TpuServer) -> None:
    server.delay("CREATING", math.inf)
    for id, labels in (("mine", {}), ("studio-x-1", {"studio": "a-film"})):
        create(server, "true", id, labels=labels)
    assert target.list_machines() == []
    error = refusal(lambda: target.cancel(Machine(ADDRESS, "mine", RUN, 1)))
    assert isinstance(error, ConfigError) and server.deleted == {}


# The startup script.


def create(server: TpuServer, script: str, id: str = ID, **node: Any) -> None:
    """Creates a resource as the target does, with this startup script."""
    described = {
        "acceleratorType": "v5litepod-8",
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "metadata": {"startup-script": script},
        **node,
    }
    spec = {"parent": PARENT, "nodeId": id, "node": described}
    answer = requests.post(
        f"{server.url}/v2/{PARENT}/queuedResources",
        params={"queuedResourceId": id},
        headers={"Authorization": f"Bearer {USER_TOKEN}"},
        json={"tpu": {"nodeSpec": [spec]}, "spot": {}},
    )
    assert answer.ok, answer.text


def start(
    server: TpuServer,
    bootstrap: str,
    *,
    seconds: float | None = None,
    hosts: int = 1,
    **options: Any,
) -> None:
    """Creates a resource that runs a bootstrap script of this test's."""
    resource = f"{server.url}/v2/{PARENT}/queuedResources/{ID}"
    options = {"round_seconds": 1, "grace_seconds": 2, "silent_seconds": 3, **options}
    script = startup_script(job(seconds=seconds), resource, bootstrap, **options)
    create(server, script, acceleratorType={1: "v5litepod-8", 2: "v4-16"}[hosts])
    server.wait(ID, "ACTIVE")


def log_of(server: TpuServer, host: int = 0) -> str:
    return server.files.get(f"x/{log_name(RUN, 1, host)}", b"").decode()


@pytest.mark.slow(10)
def test_machine_runs_the_bootstrap_script_and_deletes_itself(
    target: TpuTarget, server: TpuServer
) -> None:
    target.mirror_root("gs://bucket/x")
    server.delay("DELETING", 1)
    start(server, 'import sys; print("it\'s", *sys.argv[1:]); sys.exit(3)', seconds=60)
    server.wait(ID, None)
    assert server.deleted[ID] == server.hosts(ID)[0].token
    said = target.log(Machine(ADDRESS, ID, RUN, 1))
    given = f"--mirror gs://bucket/x --run {RUN} --launch 1 --code {HASH} --seconds 60 --seconds "
    assert f"it's {given}" in said
    assert "studio: ended with exit status 3" in said
    assert "token" not in said


@pytest.mark.slow(10)
def test_machine_without_python_deletes_itself(server: TpuServer) -> None:
    server.extra_environment["STUDIO_MACHINE_PYTHON"] = "/no/python"
    hide = 'command() { [ "$2" != /no/python ] || return 1; builtin command "$@"; }\n'
    resource = f"{server.url}/v2/{PARENT}/queuedResources/{ID}"
    create(server, startup_script(job(), resource, "").replace("set -u\n", f"set -u\n{hide}"))
    server.wait(ID, None)
    assert "failed: this machine has no python3" in log_of(server)


@pytest.mark.slow(10)
def test_machine_that_hangs_is_deleted_at_the_limit(server: TpuServer) -> None:
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    start(server, ignore, seconds=1)
    server.wait(ID, None)
    assert "killed at the limit" in log_of(server)


@pytest.mark.slow(10)
def test_killed_script_is_replaced_by_its_guard(server: TpuServer) -> None:
    start(server, "import time; print('up', flush=True); time.sleep(600)")
    wait_for(lambda: "up" in log_of(server))
    (host,) = server.hosts(ID)
    script = next(one for one in host.processes() if one.ppid() == os.getpid())
    script.send_signal(signal.SIGKILL)
    server.wait(ID, None)
    assert "the startup script was killed" in log_of(server)


@pytest.mark.slow(10)
def test_preemption_notice_reaches_the_run(server: TpuServer) -> None:
    bootstrap = (
        "import signal, sys, time\n"
        "def save(*_): print('saved', flush=True); sys.exit(75)\n"
        "signal.signal(15, save); print('up', flush=True); time.sleep(600)"
    )
    start(server, bootstrap)
    wait_for(lambda: "up" in log_of(server))
    (host,) = server.hosts(ID)
    script = next(one for one in host.processes() if one.ppid() == os.getpid())
    script.send_signal(signal.SIGTERM)
    server.wait(ID, None)
    assert "saved\nstudio: ended with exit status 75" in log_of(server)


@pytest.mark.slow(15)
def test_script_runs_once_at_a_time_and_not_again_after_the_end(server: TpuServer) -> None:
    server.delay("DELETING", math.inf)
    start(server, "import time; print('up', flush=True); time.sleep(2)")
    (host,) = server.hosts(ID)
    again = ["bash", str(host.folder / "startup-script")]
    environment = {
        **server.extra_environment, "PATH": os.environ["PATH"], "GCE_METADATA_HOST": host.address,
    }  # fmt: skip
    wait_for(lambda: "up" in log_of(server))
    began = time.monotonic()
    subprocess.run(again, cwd=host.home, env=environment, check=True)
    assert time.monotonic() - began < 1.5
    server.wait(ID, "DELETING")
    wait_for(lambda: host.exit_code == 0)
    # A reboot: the deletion is asked for again, and refused since it is under way. Without a real
    # one, the first start may still hold the lock, and the next ends at once.
    process = None
    deadline = time.monotonic() + 300
    while "can't be deleted" not in log_of(server):
        assert time.monotonic() < deadline
        if process is None or process.poll() is not None:
            process = subprocess.Popen(again, cwd=host.home, env=environment)
        time.sleep(0.1)
    assert process is not None
    server.delay("DELETING", 0)
    server.wait(ID, None)
    process.kill()
    process.wait()
    assert log_of(server).count("up\n") == 1


@pytest.mark.slow(10)
def test_deletion_is_tried_until_it_succeeds(server: TpuServer) -> None:
    server.fail_next("forbidden", method="DELETE")
    server.fail_next("unavailable", method="DELETE")
    start(server, "")
    server.wait(ID, None)
    said = log_of(server)
    assert said.count("the machine can't be deleted") == 2
    assert "Permission" in said and "unavailable" in said


@pytest.mark.slow(10)
def test_hosts_of_a_slice_get_their_rank_and_the_first_deletes_it(server: TpuServer) -> None:
    bootstrap = (
        "import sys, time; print('got', sys.argv[9:], flush=True); "
        "time.sleep(0 if sys.argv[10] == '1' else 5)"
    )
    start(server, bootstrap, hosts=2)
    server.wait(ID, None)
    first, second = server.hosts(ID)
    address = first.values["instance/network-interfaces/0/ip"]
    for host in range(2):
        peers = ["--host", str(host), "--hosts", "2", "--coordinator", f"{address}:8476"]
        assert f"got {peers}" in log_of(server, host)
    assert server.deleted[ID] == first.token != second.token
    assert "host 0 is silent" not in log_of(server, 1)


@pytest.mark.slow(15)
def test_other_host_deletes_the_slice_if_the_first_is_gone(server: TpuServer) -> None:
    bootstrap = "import sys, time; time.sleep(2 if sys.argv[10] == '1' else 600)"
    start(server, bootstrap, hosts=2)
    wait_for(lambda: f"x/{log_name(RUN, 1, 0)}" in server.files)
    first, second = server.hosts(ID)
    for one in first.processes():
        one.kill()
    server.wait(ID, None)
    assert server.deleted[ID] == second.token
    assert "host 0 is silent" in log_of(server, 1)
