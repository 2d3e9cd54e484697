"""The loopback server for jobs and buckets, against the stock clients."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    BadRequestError,
    BucketNotFoundError,
    HfHubHTTPError,
    JobNotFoundError,
)

from tests.targets.hub_jobs_server import JobServer

pytestmark = pytest.mark.long
TOKEN = "hf_of_ada"
BYTES = 3_000_000

# Compressible and random halves: hf_xet would compress the first.
UPLOAD = """
import os, sys
from pathlib import Path
import hf_xet
from huggingface_hub import HfApi

api = HfApi(token=os.environ["HF_TOKEN"])
assert api.create_bucket("ada/runs", private=True).bucket_id == "ada/runs"
api.create_bucket("ada/runs", private=True, exist_ok=True)
big = Path("big.bin")
big.write_bytes(b"some text, " * 136_000 + os.urandom(3_000_000 - 11 * 136_000))
add = [(b"hello", "a/hello.txt"), (big, "a/b/big.bin"), (b"", "empty"), (b"hello", "again.txt")]
api.batch_bucket_files("ada/runs", add=add)

files = {file.path: file for file in api.list_bucket_tree("ada/runs", recursive=True)}
assert sorted(files) == ["a/b/big.bin", "a/hello.txt", "again.txt", "empty"], files
assert files["a/b/big.bin"].size == 3_000_000 and files["empty"].size == 0
assert files["a/b/big.bin"].xet_hash == hf_xet.hash_files([str(big)])[0].hash
assert files["a/hello.txt"].mtime and files["a/hello.txt"].uploaded_at
assert [one.path for one in api.list_bucket_tree("ada/runs")] == ["a", "again.txt", "empty"]
assert [one.path for one in api.list_bucket_tree("ada/runs", "a/")] == ["a/b", "a/hello.txt"]
assert not list(api.list_bucket_tree("ada/runs", "missing/"))
info = api.bucket_info("ada/runs")
assert (info.private, info.total_files, info.size) == (True, 4, 3_000_010)
[found] = api.get_bucket_paths_info("ada/runs", ["a/hello.txt", "missing"])
assert found.size == 5

wanted = [("a/b/big.bin", "copy.bin"), ("a/hello.txt", "copy.txt"), ("empty", "copy.empty")]
api.download_bucket_files("ada/runs", wanted)
assert Path("copy.bin").read_bytes() == big.read_bytes()
assert Path("copy.txt").read_bytes() == b"hello" and Path("copy.empty").read_bytes() == b""

api.batch_bucket_files("ada/runs", add=[(b"hello, all", "a/hello.txt")], delete=["again.txt"])
api.download_bucket_files("ada/runs", [("a/hello.txt", "copy.txt")])
assert Path("copy.txt").read_bytes() == b"hello, all"
"""

SAVE = """
import os
from huggingface_hub import HfApi

with open("note.txt", "w") as file:
    file.write("from the job")
HfApi(token=os.environ["HF_TOKEN"]).batch_bucket_files("ada/runs", add=[("note.txt", "note.txt")])
print("saved")
"""


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier test may have restricted this process to public hosts."""
    monkeypatch.setenv("STUDIO_ALLOWED_HOSTS", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[JobServer]:
    with JobServer() as server:
        server.add_user("ada", TOKEN)
        server.add_user("ada", "hf_read", role="read")
        server.add_user("other", "hf_of_other")
        yield server
        assert server.unknown_requests == []


@pytest.fixture
def api(server: JobServer) -> HfApi:
    return HfApi(endpoint=server.url, token=TOKEN)


def run(api: HfApi, script: str, **options: object) -> str:
    """Launches a job that runs a shell script; returns its id."""
    settings = {"image": "python:3.12", "timeout": 60, "namespace": "ada", **options}
    return api.run_job(command=["/bin/sh", "-c", script], **settings).id


def run_client(server: JobServer, code: str, folder: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HF_TOKEN": TOKEN,
        **server.client_environment(folder / "hf"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_files_are_uploaded_listed_downloaded_and_deleted(
    server: JobServer, tmp_path: Path
) -> None:
    run_client(server, UPLOAD, tmp_path)
    files = server.files("ada/runs")
    assert files["a/b/big.bin"] == (tmp_path / "big.bin").read_bytes()
    assert sorted(files) == ["a/b/big.bin", "a/hello.txt", "empty"]
    assert server.count("POST /v1/xorbs/") and server.count("GET /xorb-storage/")


def test_files_are_read_by_plain_http_with_ranges(server: JobServer, tmp_path: Path) -> None:
    run_client(server, UPLOAD, tmp_path)
    url = f"{server.url}/buckets/ada/runs/resolve/a/b/big.bin"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    content = (tmp_path / "big.bin").read_bytes()
    assert httpx.get(url, headers=headers).content == content
    part = httpx.get(url, headers={**headers, "Range": "bytes=1000000-1000009"})
    assert part.status_code == 206
    assert part.content == content[1_000_000:1_000_010]
    assert part.headers["Content-Range"] == f"bytes 1000000-1000009/{BYTES}"
    assert httpx.get(url, headers={**headers, "Range": f"bytes={BYTES}-"}).status_code == 416
    missing = httpx.get(f"{url}.missing", headers=headers)
    assert missing.headers["X-Error-Code"] == "EntryNotFound"


def test_any_range_of_a_file_is_reconstructed(server: JobServer, tmp_path: Path) -> None:
    run_client(server, UPLOAD, tmp_path)
    content = (tmp_path / "big.bin").read_bytes()
    file = server.buckets["ada/runs"].files["a/b/big.bin"].xet_hash
    for wanted in (range(10), range(70_000, 2_000_001), range(BYTES - 3, BYTES)):
        plan = server.store.reconstruct(file, wanted, "{hash}")
        start = wanted.start - plan["offset_into_first_range"]
        stop = start + sum(term["unpacked_length"] for term in plan["terms"])
        assert 0 <= start <= wanted.start < wanted.stop <= stop <= BYTES
        stored = b""
        for term in plan["terms"]:
            [fetch] = [
                one for one in plan["fetch_info"][term["hash"]] if one["range"] == term["range"]
            ]
            place = fetch["url_range"]
            stored += server.store.xorb(term["hash"])[place["start"] : place["end"] + 1]
        headers = sum(term["range"]["end"] - term["range"]["start"] for term in plan["terms"]) * 8
        assert len(stored) == stop - start + headers
        assert content[wanted.start : wanted.start + 5] in stored


def test_a_private_bucket_is_invisible_to_others(server: JobServer, api: HfApi) -> None:
    api.create_bucket("ada/secret", private=True)
    with pytest.raises(BucketNotFoundError):
        api.bucket_info("ada/secret", token="hf_of_other")
    with pytest.raises(BucketNotFoundError):
        api.bucket_info("ada/secret", token=False)
    with pytest.raises(BucketNotFoundError):
        api.bucket_info("ada/missing")
    url = f"{server.url}/buckets/ada/secret/resolve/file"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer hf_of_other"}).status_code == 404


def test_only_the_owner_writes(server: JobServer, api: HfApi) -> None:
    api.create_bucket("ada/open", private=False)
    assert not api.bucket_info("ada/open", token=False).private
    route = f"{server.url}/api/buckets/ada/open/xet-write-token"
    for token, status in (("hf_of_other", 403), ("hf_read", 403), ("wrong", 401), (TOKEN, 200)):
        answer = httpx.get(route, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status, token
    assert httpx.get(route).status_code == 401
    assert httpx.post(f"{server.url}/v1/shards", content=b"").status_code == 401
    with pytest.raises(HfHubHTTPError, match="403"):
        api.create_bucket("other/bucket")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_bucket("ada/open")
    assert api.create_bucket("mine").bucket_id == "ada/mine"


def test_jobs_need_the_token_of_their_owner(server: JobServer, api: HfApi) -> None:
    assert api.whoami()["name"] == "ada"
    job = run(api, "true")
    for token, status in (("wrong", 401), ("hf_of_other", 403)):
        for call in (api.inspect_job, api.cancel_job):
            with pytest.raises(HfHubHTTPError) as caught:
                call(job_id=job, namespace="ada", token=token)
            assert caught.value.response.status_code == status
    with pytest.raises(HfHubHTTPError, match="403"):
        run(api, "true", token="hf_read")
    with pytest.raises(JobNotFoundError):
        api.inspect_job(job_id="0" * 24, namespace="ada")
    assert all("hf_of" not in str(request.headers) for request in server.requests)


def test_a_job_runs_with_its_own_variables_and_a_secret(server: JobServer, api: HfApi) -> None:
    server.extra_environment["EXTRA"] = "given"
    job = run(
        api,
        'echo "$GREETING, $EXTRA $SECRET"; pwd; echo "$HOME"; env | cut -d= -f1 | sort',
        env={"GREETING": "good day"},
        secrets={"SECRET": "hush"},
    )
    done = api.wait_for_job(job, namespace="ada", poll_interval=0.05)
    assert done.status.stage == "COMPLETED"
    assert done.started_at and done.finished_at and done.durations
    assert "hush" not in str(done)
    log = list(api.fetch_job_logs(job_id=job, namespace="ada"))
    assert log[0] == "good day, given hush"
    assert log[1] == log[2] and not Path(log[1]).exists()
    assert set(log[3:]) <= {"EXTRA", "GREETING", "HOME", "PATH", "PWD", "SECRET", "SHLVL", "_"}
    assert list(api.fetch_job_logs(job_id=job, namespace="ada", tail=1)) == log[-1:]


def test_a_log_is_followed_while_the_job_runs(server: JobServer, api: HfApi) -> None:
    job = run(api, "for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert list(api.fetch_job_logs(job_id=job, namespace="ada", follow=True)) == ["1", "2", "3"]


def test_a_job_saves_into_the_bucket(server: JobServer, api: HfApi, tmp_path: Path) -> None:
    server.extra_environment = server.client_environment(tmp_path / "hf")
    api.create_bucket("ada/runs", private=True)
    command = [sys.executable, "-c", SAVE]
    job = api.run_job(
        image="python:3.12", command=command, namespace="ada", secrets={"HF_TOKEN": TOKEN}
    )
    assert server.wait(job.id).stage == "COMPLETED", server.jobs[job.id].text
    assert server.files("ada/runs") == {"note.txt": b"from the job"}


def test_failure_and_timeout_end_a_job_as_error(server: JobServer, api: HfApi) -> None:
    failed = server.wait(run(api, "echo oh; exit 3"))
    assert (failed.stage, failed.message) == (
        "ERROR",
        "Job failed with exit code: 3. Reason: Error",
    )
    job = run(api, "sleep 60 & echo $!; setsid sleep 60", timeout="1s")
    late = server.wait(job)
    status = api.inspect_job(job_id=job, namespace="ada").status
    assert (status.stage, status.message) == ("ERROR", "Job timeout")
    assert not psutil.pid_exists(int(late.log[1][1])) or late.log[1][1] in zombies()
    missing = api.run_job(image="x", command=["/no/such/program"], namespace="ada").id
    assert "/no/such/program" in str(server.wait(missing).message)


def zombies() -> set[str]:
    found = psutil.process_iter(["status"])
    return {str(one.pid) for one in found if one.info["status"] == psutil.STATUS_ZOMBIE}


def test_cancel_kills_a_job_that_runs_or_waits(server: JobServer, api: HfApi) -> None:
    running = run(api, "trap '' TERM; sleep 60")
    server.wait(running, "RUNNING")
    api.cancel_job(job_id=running, namespace="ada")
    assert server.wait(running).stage == "CANCELED"
    server.scheduling_seconds = 60
    waiting = run(api, "echo never")
    assert api.inspect_job(job_id=waiting, namespace="ada").status.stage == "SCHEDULING"
    api.cancel_job(job_id=waiting, namespace="ada")
    assert server.wait(waiting).stage == "CANCELED"
    assert server.jobs[waiting].log == []


def test_jobs_are_listed_by_stage_and_label(server: JobServer, api: HfApi) -> None:
    first = run(api, "true", labels={"run": "run-1", "app": "studio"})
    second = run(api, "sleep 60", labels={"run": "run_2", "app": "studio"})
    server.wait(first)
    server.wait(second, "RUNNING")

    def listed(**filters: object) -> list[str]:
        return [job.id for job in api.list_jobs(namespace="ada", **filters)]

    assert listed() == [second, first]
    assert listed(labels={"app": "studio", "run": "run-1"}) == [first]
    assert listed(labels={"app": "other"}) == []
    assert listed(status=["RUNNING", "SCHEDULING"]) == [second]
    assert listed(status="COMPLETED", labels={"app": "studio"}) == [first]


def test_a_job_with_a_bad_specification_is_refused(api: HfApi) -> None:
    bad = [
        {"flavor": "tpu-v5e"},
        {"labels": {"run": "a/b"}},
        {"labels": {"é": "x"}},
        {"attempts": 2},
    ]
    for options in bad:
        with pytest.raises(BadRequestError):
            run(api, "true", **options)


def test_hardware_lists_prices(api: HfApi) -> None:
    hardware = {one.name: one for one in api.list_jobs_hardware()}
    assert hardware["cpu-basic"].accelerator is None
    gpu = hardware["l4x1"]
    assert gpu.accelerator is not None and gpu.accelerator.model == "L4"
    assert gpu.unit_label == "minute" and round(gpu.unit_cost_usd * 60, 2) == 0.80


def test_failures_are_injected(server: JobServer, api: HfApi) -> None:
    server.refuse_next_launch(402, "Pre-paid credit balance is insufficient")
    with pytest.raises(HfHubHTTPError, match="credit balance") as caught:
        run(api, "true")
    assert caught.value.response.status_code == 402
    job = run(api, "sleep 60 & sleep 60")
    server.wait(job, "RUNNING")
    server.kill_job(job)
    gone = server.wait(job)
    assert (gone.stage, gone.process and gone.process.returncode) == ("ERROR", -9)
    server.lose_reply("POST /api/jobs/ada$")
    with pytest.raises(Exception, match="disconnected"):
        run(api, "true", labels={"run": "lost"})
    [found] = api.list_jobs(namespace="ada", labels={"run": "lost"})
    assert server.wait(found.id).stage == "COMPLETED"
    server.fail("GET /api/jobs/ada/", 503)
    with pytest.raises(HfHubHTTPError, match="503"):
        api.inspect_job(job_id=job, namespace="ada")


def test_closing_kills_all_jobs() -> None:
    with JobServer() as server:
        server.add_user("ada", TOKEN)
        api = HfApi(endpoint=server.url, token=TOKEN)
        job = server.wait(run(api, "setsid sleep 60 & sleep 60"), "RUNNING")
        time.sleep(0.2)
        home = str(job.folder)
        assert processes_of(home)
    assert job.stage == "CANCELED"
    assert not processes_of(home)
    assert not Path(home).exists()


def processes_of(home: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == home:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found
