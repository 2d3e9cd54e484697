"""The server that plays Cloud TPU: stock Google clients against it, and real processes on it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest
import requests

from tests.targets.tpu_server import TpuServer

pytestmark = pytest.mark.long

PARENT = "projects/project/locations/us-central1-a"
SLEEP = "echo started; setsid sleep 600 & (cd /; exec env -i nohup sleep 601) & sleep 602"
READ_METADATA = """
root=http://$GCE_METADATA_HOST/computeMetadata/v1
metadata() { curl -sS -f -H 'Metadata-Flavor: Google' "$root/$1"; }
echo "worker $(metadata instance/attributes/agent-worker-number) of $(metadata instance/name)"
echo "endpoints $(metadata instance/attributes/worker-network-endpoints)"
echo "zone $(metadata instance/zone), run $(metadata instance/attributes/run)"
"""
DELETE_ITSELF = """
token=$(curl -sS -H 'Metadata-Flavor: Google' \
  "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/service-accounts/default/token" \
  | sed 's/.*"access_token": "\\([^"]*\\)".*/\\1/')
curl -sS -X DELETE -H "Authorization: Bearer $token" "$API/queuedResources/run-1?force=true"
sleep 600
"""


@pytest.fixture
def server() -> Iterator[TpuServer]:
    with TpuServer() as server:
        yield server
    assert server.unknown_requests == []


@pytest.fixture
def session(server: TpuServer) -> Iterator[requests.Session]:
    transport = pytest.importorskip(
        "google.auth.transport.requests",
        reason="google-auth is missing: pip install -r requirements-cloud.txt",
    )
    from google.oauth2.credentials import Credentials

    with transport.AuthorizedSession(Credentials(token="token-of-the-user")) as session:
        yield session


@pytest.fixture
def filesystem(server: TpuServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # The detection of zonal buckets goes past the emulator, to Google.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    gcsfs = pytest.importorskip(
        "gcsfs", reason="gcsfs is missing: pip install -r requirements-cloud.txt"
    )
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield gcsfs.GCSFileSystem(token="anon", use_listings_cache=False)
    gcsfs.GCSFileSystem.clear_instance_cache()


def body(script: str = "true", accelerator: str = "v5litepod-8", **node: Any) -> dict[str, Any]:
    """Returns a request to create a resource with one node."""
    metadata = {"startup-script": script, "run": "small"}
    described = {
        "acceleratorType": accelerator,
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "metadata": metadata,
        **node,
    }
    spec = {"parent": PARENT, "nodeId": "run-1", "node": described}
    return {"tpu": {"nodeSpec": [spec]}, "spot": {}}


def url(server: TpuServer, name: str = "queuedResources/run-1") -> str:
    return f"{server.url}/v2/{PARENT}/{name}"


def create(
    server: TpuServer, session: requests.Session, request: dict[str, Any], id: str = "run-1"
) -> requests.Response:
    parameters = {"queuedResourceId": id} if id else {}
    return session.post(url(server, "queuedResources"), params=parameters, json=request)


def wait_for_output(server: TpuServer, text: str, worker: int = 0) -> str:
    host = server.hosts("run-1")[worker]
    deadline = time.monotonic() + 30
    while text not in host.output:
        assert time.monotonic() < deadline, host.output
        time.sleep(0.02)
    return host.output


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Lists the processes that still run; nobody may have waited for the others."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def error(response: requests.Response) -> tuple[int, str]:
    described = response.json()["error"]
    assert described["code"] == response.status_code and described["message"]
    return described["code"], described["status"]


def test_a_resource_goes_through_its_states(server: TpuServer, session: requests.Session) -> None:
    states = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
    for state in states:
        server.delay(state, math.inf)
    operation = create(server, session, body()).json()
    assert not operation["done"]
    assert operation["metadata"]["target"] == f"{PARENT}/queuedResources/run-1"
    for state in states:
        server.wait("run-1", state)
        assert session.get(url(server)).json()["state"]["state"] == state
        server.delay(state, 0)
    server.wait("run-1", "ACTIVE")
    resource = session.get(url(server)).json()
    assert resource["state"] == {"state": "ACTIVE", "activeData": {}}
    assert resource["tpu"] == body()["tpu"]
    operation = session.get(f"{server.url}/v2/{operation['name']}").json()
    assert operation["done"] and operation["response"]["name"] == resource["name"]
    node = session.get(url(server, "nodes/run-1")).json()
    assert node["state"] == "READY" and node["queuedResource"] == resource["name"]
    assert server.created == ["run-1"]


def test_the_script_runs_on_both_hosts(server: TpuServer, session: requests.Session) -> None:
    server.extra_environment["GREETING"] = "hello"
    script = f"{READ_METADATA}\necho done $GREETING; env | cut -d= -f1 | sort | tr '\\n' ' '; pwd"
    create(server, session, body(script, "v4-16"))
    server.wait("run-1", "ACTIVE")
    hosts = server.hosts("run-1")
    assert len(hosts) == 2
    for worker, host in enumerate(hosts):
        output = wait_for_output(server, str(host.home), worker)
        assert f"worker {worker} of t1v-n-" in output and f"-w-{worker}\n" in output
        assert "zone projects/123456789012/zones/us-central1-a, run small\n" in output
        assert "done hello\n" in output
        names = set(output.splitlines()[-1].split()[:-1])
        assert names - {"_", "PWD", "SHLVL"} == {"GCE_METADATA_HOST", "GREETING", "HOME", "PATH"}
    endpoints = {host.output.split("endpoints ")[1].splitlines()[0] for host in hosts}
    assert len(endpoints) == 1 and endpoints.pop().count("unknown:unknown:127.") == 2


def test_the_metadata_server_gives_credentials(
    server: TpuServer, session: requests.Session
) -> None:
    create(server, session, body(SLEEP))
    server.wait("run-1", "ACTIVE")
    (host,) = server.hosts("run-1")
    address = f"http://{host.address}/computeMetadata/v1/instance"
    assert requests.get(f"{address}/name").status_code == 403
    headers = {"Metadata-Flavor": "Google"}
    account = f"{address}/service-accounts/default"
    token = requests.get(f"{account}/token", headers=headers)
    assert token.headers["Metadata-Flavor"] == "Google"
    assert token.json()["access_token"] == host.token
    email = requests.get(f"{account}/?recursive=true", headers=headers).json()["email"]
    assert email == requests.get(f"{account}/email", headers=headers).text
    assert requests.get(f"{address}/attributes/none", headers=headers).status_code == 404


def test_googles_client_finds_the_credentials_of_a_machine(
    server: TpuServer, session: requests.Session
) -> None:
    server.extra_environment["GCE_METADATA_IP"] = "{metadata_host}"
    code = """
import google.auth, google.auth.transport.requests as transport
credentials, project = google.auth.default()
credentials.refresh(transport.Request())
print(project, credentials.service_account_email, credentials.token)"""
    create(server, session, body(f"exec {sys.executable} -c '{code}'"))
    server.wait("run-1", "ACTIVE")
    (host,) = server.hosts("run-1")
    expected = f"project machine@example.com {host.token}\n"
    assert wait_for_output(server, expected) == expected


def test_a_preemption_kills_all_processes(server: TpuServer, session: requests.Session) -> None:
    create(server, session, body(SLEEP, "v4-16"))
    server.wait("run-1", "ACTIVE")
    for worker in range(2):
        wait_for_output(server, "started", worker)
    deadline = time.monotonic() + 30
    while len(processes := [one for host in server.hosts("run-1") for one in host.processes()]) < 8:
        assert time.monotonic() < deadline, processes
    server.delay("SUSPENDING", math.inf)
    server.preempt("run-1")
    assert alive(processes) == []
    state = session.get(url(server)).json()["state"]
    assert state == {"state": "SUSPENDING", "suspendingData": {}, "stateInitiator": "SERVICE"}
    server.delay("SUSPENDING", 0)
    server.wait("run-1", "SUSPENDED")
    assert session.get(url(server, "nodes")).json() == {}
    assert server.hosts("run-1")[0].exit_code == -9
    assert session.delete(url(server)).status_code == 200
    server.wait("run-1", None)


def test_a_machine_deletes_itself(server: TpuServer, session: requests.Session) -> None:
    server.extra_environment["API"] = f"{server.url}/v2/{PARENT}"
    server.delay("DELETING", math.inf)
    create(server, session, body(DELETE_ITSELF))
    server.wait("run-1", "DELETING")
    wait_for_output(server, '"verb": "delete"')
    (host,) = server.hosts("run-1")
    processes = host.processes()
    assert processes and server.deleted == {"run-1": host.token}
    assert error(session.delete(url(server), params={"force": "true"})) == (409, "ABORTED")
    server.delay("DELETING", 0)
    server.wait("run-1", None)
    assert alive(processes) == []
    assert error(session.get(url(server))) == (404, "NOT_FOUND")
    assert server.resources() == {}


def test_deleting_a_resource_with_a_node_needs_force(
    server: TpuServer, session: requests.Session
) -> None:
    create(server, session, body(SLEEP))
    server.wait("run-1", "ACTIVE")
    assert error(session.delete(url(server))) == (400, "FAILED_PRECONDITION")
    operation = session.delete(url(server), params={"force": "true"}).json()
    server.wait("run-1", None)
    operation = session.get(f"{server.url}/v2/{operation['name']}").json()
    assert operation["done"] and operation["response"]
    assert server.hosts("run-1")[0].processes() == []


def test_bad_requests_are_refused(server: TpuServer, session: requests.Session) -> None:
    server.delay("CREATING", math.inf)
    assert create(server, session, body()).status_code == 200
    assert error(create(server, session, body())) == (409, "ALREADY_EXISTS")
    assert error(requests.get(url(server))) == (401, "UNAUTHENTICATED")
    assert error(session.get(url(server, "queuedResources/none"))) == (404, "NOT_FOUND")
    bad = [
        create(server, session, body(), ""),
        create(server, session, body() | {"spots": {}}, "run-2"),
        create(server, session, body(machineType="large"), "run-2"),
        create(server, session, body(runtimeVersion=""), "run-2"),
        create(server, session, body(metadata={"count": 1}), "run-2"),
        create(server, session, body(labels={"run": "Upper"}), "run-2"),
        create(server, session, body(accelerator="v5e-8"), "run-2"),
        create(server, session, {"spot": {}}, "run-2"),
        session.get(url(server), params={"unknown": "1"}),
    ]
    assert [error(one) for one in bad] == [(400, "INVALID_ARGUMENT")] * len(bad)
    assert "tpu.node_spec[0].node" in bad[2].json()["error"]["message"]
    assert server.created == ["run-1"]


def test_requested_failures_happen_once(server: TpuServer, session: requests.Session) -> None:
    server.fail_next("quota")
    server.fail_next("unavailable", method="GET")
    assert error(create(server, session, body())) == (429, "RESOURCE_EXHAUSTED")
    assert error(session.get(url(server))) == (503, "UNAVAILABLE")
    server.fail_next("no capacity")
    assert create(server, session, body()).status_code == 200
    server.wait("run-1", "FAILED")
    assert session.get(url(server)).json()["state"]["failedData"]["error"]["code"] == 8
    server.fail_next("lost answer")
    with pytest.raises(requests.ConnectionError):
        create(server, session, body(), "run-2")
    server.wait("run-2", "ACTIVE")


def test_resources_are_listed_in_pages(server: TpuServer, session: requests.Session) -> None:
    server.delay("CREATING", math.inf)
    ids = [f"run-{number}" for number in range(5)]
    for id in ids:
        create(server, session, body(), id)
    found: list[str] = []
    parameters = {"pageSize": "2"}
    while True:
        page = session.get(url(server, "queuedResources"), params=parameters).json()
        found += [one["name"].rpartition("/")[2] for one in page["queuedResources"]]
        if "nextPageToken" not in page:
            break
        parameters["pageToken"] = page["nextPageToken"]
    assert found == ids


def test_one_of_six_creates_an_object(server: TpuServer, filesystem: Any) -> None:
    def claim(number: int) -> bool:
        try:
            filesystem.pipe_file("bucket/claims/000002.json", b"%d" % number, mode="create")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(claim, range(6)))
    assert won.count(True) == 1
    assert filesystem.cat_file("bucket/claims/000002.json") == b"%d" % won.index(True)


def test_objects_have_generations_and_times(server: TpuServer, filesystem: Any) -> None:
    began = time.time()
    path = "bucket/folder/heartbeat"
    generations = []
    for number in range(3):
        filesystem.pipe_file(path, b"%d" % number)
        generations.append(int(filesystem.info(path)["generation"]))
    assert generations == sorted(set(generations))
    assert abs(filesystem.modified(path).timestamp() - began) < 60
    with pytest.raises(FileExistsError), filesystem.open(path, "xb") as file:
        file.write(bytes(6 << 20))
    assert filesystem.cat_file(path, start=0, end=1) == b"2"
    filesystem.rm_file(path)
    filesystem.pipe_file(path, b"again", mode="create")
    assert int(filesystem.info(path)["generation"]) > generations[-1]


def test_objects_are_listed_in_pages(server: TpuServer, filesystem: Any) -> None:
    keys = [f"events/{number:06}.jsonl" for number in range(2100)]
    for key in [*keys, "exit.json"]:
        server.files[key] = b"{}"
    server.requests.clear()
    assert filesystem.ls("bucket/events", detail=False) == [f"bucket/{key}" for key in keys]
    assert server.requests.count("GET /storage/v1/b/bucket/o") == 3
    assert filesystem.ls("bucket", detail=False) == ["bucket/events", "bucket/exit.json"]


def test_a_large_object_is_uploaded_in_parts(server: TpuServer, filesystem: Any) -> None:
    content = bytes(range(256)) * (40 << 10)
    with filesystem.open("bucket/large", "wb", block_size=5 << 20) as file:
        file.write(content)
    assert server.uploads and server.files["large"] == content


def test_a_script_uploads_with_curl(
    server: TpuServer, session: requests.Session, filesystem: Any
) -> None:
    server.extra_environment["STORAGE"] = server.url
    script = """echo text > file
    for _ in 1 2; do
      curl -sS -o /dev/null -w '%{http_code}\\n' --data-binary @file \
        "$STORAGE/upload/storage/v1/b/bucket/o?uploadType=media&name=a%2Fb&ifGenerationMatch=0"
    done; echo end"""
    create(server, session, body(script))
    server.wait("run-1", "ACTIVE")
    assert wait_for_output(server, "end").split() == ["200", "412", "end"]
    assert filesystem.cat_file("bucket/a/b") == b"text\n"


def test_closing_kills_everything(session: requests.Session) -> None:
    with TpuServer() as server:
        create(server, session, body(SLEEP))
        server.wait("run-1", "ACTIVE")
        (host,) = server.hosts("run-1")
        processes = host.processes()
        assert processes
    assert alive(processes) == []
    assert not host.folder.exists()
