"""Tests that a run is launched as a job on a loopback Hub, with the stock clients on both sides."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import core
from core import Workspace
from core.processes.environment import RUN_KEY_VARIABLE
from core.records.folder import RunFolder
from core.runs.client import submit
from core.targets.code import pack_code
from core.targets.machines import list_machines
from tests.core.runs.support import (
    metrics_in_events,
    metrics_in_table,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs
from tests.targets.compiler import compiler_settings
from tests.targets.homes import copied_workspace
from tests.targets.hub_client import client_environment
from tests.targets.hub_jobs_server import JobServer
from tests.targets.test_following import weights
from tests.targets.test_launching import config, phases

pytestmark = [pytest.mark.slow(120), pytest.mark.long]
TOKEN = "hf_AdaLovelaceAdaLovelace1815"
BUCKET = "ada/pretrain-studio"
# Ends every process that opens a file of the repository's package.
CLOSED_REPOSITORY = """
import os, sys
CLOSED = {closed!r}

def check(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        if os.path.realpath(arguments[0]).startswith(CLOSED + os.sep):
            os.write(2, b"opened the repository: " + os.fsencode(arguments[0]) + b"\\n")
            os._exit(97)

sys.addaudithook(check)
"""


@pytest.fixture
def machine_python(tmp_path: Path) -> Path:
    """An interpreter with all packages that can't read this repository's code."""
    folder = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    closed = str(Path(core.__file__).parent.resolve())
    (packages / "sitecustomize.py").write_text(CLOSED_REPOSITORY.format(closed=closed))
    return folder / "bin" / "python"


@pytest.fixture
def server(
    machine_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobServer]:
    with JobServer() as server:
        server.add_user("ada", TOKEN)
        settings = dict(client_environment(server, tmp_path / "hf", TOKEN))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HOME", "HF_TOKEN", "HF_ENDPOINT"):
            settings.pop(name)
        settings |= compiler_settings()
        server.extra_environment = {**settings, "STUDIO_MACHINE_PYTHON": str(machine_python)}
        yield server
        assert server.unknown_requests == []


@pytest.fixture
def home(tmp_path: Path, server: JobServer) -> Iterator[Workspace]:
    inputs = make_inputs(tmp_path / "inputs").root
    with copied_workspace(inputs, tmp_path / "home") as workspace:
        yield workspace


def has_checkpoint(server: JobServer, incarnation: int) -> bool:
    bucket = server.buckets.get(BUCKET)
    folder = f"/incarnations/{incarnation:06d}/checkpoints/"
    return bucket is not None and any(
        folder in path and path.endswith("manifest.json") for path in [*bucket.files]
    )


def files_with(folder: Path, token: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and token in path.read_bytes()]


def test_jobs_that_are_ended_early_are_replaced_and_give_the_weights_of_a_local_run(
    home: Workspace, server: JobServer, tmp_path: Path
) -> None:
    run_id = submit(home, "train", config("hf://cpu-basic", "remote", num_train_steps=3000))
    wait_for(lambda: has_checkpoint(server, 1))
    first = next(iter(server.jobs.values()))
    code = pack_code().sha256
    assert first.folder is not None
    unpacked = first.folder / ".pretrain-studio/code" / code / "core"
    assert list((unpacked / "training/__pycache__").glob("trainer*.pyc"))
    # As at its timeout, and as if its machine were gone.
    server.kill_job(first.id, "Job timeout")
    wait_for(lambda: has_checkpoint(server, 2))
    server.kill_job([*server.jobs][1])

    row = wait_until_ended(home, run_id)
    jobs = [*server.jobs.values()]
    logs = "\n".join(job.text for job in jobs)
    assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 3), logs
    assert row.remote["price_per_hour"] == 0.01 and row.remote["cost"] > 0
    # The last one ends by itself, or is cancelled at the end of the run.
    assert [server.wait(job.id).stage for job in jobs[:2]] == ["ERROR", "ERROR"]
    assert [server.wait(job.id).stage for job in jobs[2:]] in (["COMPLETED"], ["CANCELED"])
    assert list_machines(home) == []
    assert "opened the repository" not in logs
    assert server.buckets[BUCKET].private
    steps = [step for name, step, _ in metrics_in_events(home, run_id) if name == "loss"]
    assert steps == sorted(set(steps))
    assert metrics_in_table(home, run_id) == metrics_in_events(home, run_id)
    seen = phases(home, run_id)
    for phase in ("checking", "uploading", "training", "fetching", "done"):
        assert phase in seen, seen

    local = submit(home, "train", config("", "local", num_train_steps=3000))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "remote")

    # The token and the run's key are the jobs' secrets, and nowhere else.
    for job in jobs:
        assert sorted(job.spec["secrets"]) == ["HF_TOKEN", RUN_KEY_VARIABLE]
    public = [{**job.spec, "secrets": None} for job in jobs]
    told = f"{public} {logs} {server.requests}"
    stop_worker(home)
    for secret in jobs[0].spec["secrets"].values():
        assert secret not in told
        assert not [path for path, data in server.files(BUCKET).items() if secret.encode() in data]
    assert jobs[0].spec["secrets"]["HF_TOKEN"] == TOKEN
    assert files_with(home.root, TOKEN.encode()) == []
    assert RunFolder.of(home, run_id).log_tail(5)
