"""Tests that runs go through sessions of a loopback Kaggle, with its stock client."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from core import Workspace
from core.config.train import TrainConfig
from core.runs.client import request_stop, submit
from core.targets.machines import list_machines
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from tests.core.runs.support import (
    command_line,
    metrics_in_events,
    metrics_in_table,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs
from tests.targets.compiler import compiler_settings
from tests.targets.homes import copied_workspace
from tests.targets.kaggle_server import KaggleServer, Kernel
from tests.targets.test_following import weights
from tests.targets.test_launching import config, last_step, phases

pytest.importorskip("kaggle")
pytestmark = [pytest.mark.slow(120), pytest.mark.long]
KEY = "0123456789abcdef" * 2
STEPS = 5000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleServer]:
    settings = {"STUDIO_MACHINE_PYTHON": sys.executable, **compiler_settings()}
    with KaggleServer("ada", KEY, settings) as server:
        environment = {**server.client_environment(), "HOME": str(tmp_path / "user")}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        login = tmp_path / "user" / ".kaggle" / "kaggle.json"
        login.parent.mkdir(parents=True)
        login.write_text(f'{{"username": "ada", "key": "{KEY}"}}')
        login.chmod(0o600)
        yield server
        assert server.unknown_requests == []


@pytest.fixture
def home(inputs: Path, tmp_path: Path, server: KaggleServer) -> Iterator[Workspace]:
    with copied_workspace(inputs, tmp_path / "home") as workspace:
        yield workspace


def run_config(target: str, name: str, **fields: object) -> TrainConfig:
    return config(target, name, **{"num_train_steps": STEPS, "save_steps": 500, **fields})


def packed(kernel: Kernel) -> list[str]:
    """Returns the names in a session's output so far."""
    path = kernel.output / "studio-mirror"
    if not path.exists():
        return []
    with tarfile.open(path) as archive:
        return archive.getnames()


def programs(kernel: Kernel) -> list[psutil.Process]:
    """Finds the process of a session that trains."""
    assert kernel.job.process is not None
    children = psutil.Process(kernel.job.process.pid).children(recursive=True)
    return [one for one in children if b"core.runs.execute" in command_line(one.pid)]


def suspend_at_checkpoint(server: KaggleServer, session: int) -> Kernel:
    """Suspends a session's training at its first checkpoint, so that it can't end before the test
    has acted; returns when the checkpoint is in the output.
    """
    wait_for(lambda: len(server.pushed) > session)
    kernel = server.pushed[session]
    given = {name for earlier in server.pushed[:session] for name in packed(earlier)}
    steps = {Path(name).parent.name for name in given if "/checkpoints/" in name}

    def has_saved() -> bool:
        saved = (kernel.root / "home").glob("runs/*/runs/*/checkpoints/step-*")
        return any(path.name not in steps for path in saved)

    wait_for(has_saved)
    for one in programs(kernel):
        one.suspend()
    wait_for(lambda: any(name.endswith("manifest.json") for name in {*packed(kernel)} - given))
    assert not kernel.job.ended
    return kernel


def logs(server: KaggleServer) -> str:
    return "\n".join(kernel.job.text for kernel in server.pushed)


def files_with(folder: Path, token: str) -> list[Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in paths if token.encode() in path.read_bytes()]


def test_run_through_four_sessions_of_which_one_is_lost_equals_a_local_run(
    home: Workspace, server: KaggleServer, tmp_path: Path
) -> None:
    run_id = submit(home, "train", run_config("kaggle://cpu", "remote"))
    server.cut(suspend_at_checkpoint(server, 0), keeps_output=False)
    server.cut(suspend_at_checkpoint(server, 1), keeps_output=True)
    kernel = suspend_at_checkpoint(server, 2)
    # As at its limit of time, before which the script asks the program to save.
    assert kernel.job.process is not None
    kernel.job.process.terminate()
    for one in programs(kernel):
        one.resume()

    row = wait_until_ended(home, run_id)
    assert (row.state, row.error) == ("done", None), logs(server)
    assert row.remote["incarnation"] == 4 == len(server.pushed)
    statuses = [kernel.status for kernel in server.pushed]
    assert statuses == ["ERROR", "ERROR", "COMPLETE", "COMPLETE"]
    steps = [step for name, step, _ in metrics_in_table(home, run_id) if name == "loss"]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
    assert list_machines(home) == []
    assert metrics_in_table(home, run_id) == metrics_in_events(home, run_id)
    seen = " ".join(phases(home, run_id))
    for phase in ("uploading", "training (kaggle.com/code/ada/studio-train-", "fetching", "done"):
        assert phase in seen, seen

    local = submit(home, "train", run_config("", "local"))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "remote")

    # Only the dataset with the inputs stays, which a later run may use.
    assert [name.startswith("ada/studio-inputs-") for name in server.datasets] == [True]
    for kernel in server.pushed:
        assert kernel.request["isPrivate"] is True
        assert not kernel.request.get("dockerImage")
        assert kernel.request["kernelType"] == "script"
    stop_worker(home)
    assert KEY not in logs(server) + str([kernel.request for kernel in server.pushed])
    assert files_with(home.root, KEY) == []
    assert files_with(tmp_path / "user" / ".pretrain-studio", KEY) == []


def test_run_whose_quota_is_used_up_ends_between_sessions(
    home: Workspace, server: KaggleServer
) -> None:
    server.scheduling_seconds = 300.0
    run_id = submit(home, "train", run_config("kaggle://NvidiaTeslaT4", "remote"))
    wait_for(lambda: bool(server.pushed))
    server.hours["gpuQuota"][0] = 30.0
    server.cut(server.pushed[0], keeps_output=False)
    row = wait_until_ended(home, run_id)
    assert row.state == "failed" and row.error is not None
    assert row.error["problem"] == "This week's hours of GPU on Kaggle are used up"
    assert f"{server.renewed:%Y-%m-%d}" in row.error["fix"]
    assert len(server.pushed) == 1


def test_session_without_the_promised_accelerator_ends_the_run(
    home: Workspace, server: KaggleServer
) -> None:
    run_id = submit(home, "train", run_config("kaggle://TpuV5E8", "remote"))
    row = wait_until_ended(home, run_id)
    assert row.state == "failed" and row.error is not None
    assert row.error["problem"] == "Kaggle has given a session without a TPU"
    assert "this notebook has no TPU" in row.error["received"]
    assert len(server.pushed) == 1 and server.pushed[0].status == "ERROR"
    request = server.pushed[0].request
    assert (request["machineShape"], request["enableTpu"]) == ("TpuV5E8", True)


def test_stop_without_saving_deletes_the_kernel(home: Workspace, server: KaggleServer) -> None:
    run_id = submit(home, "train", run_config("kaggle://cpu", "remote"))
    suspend_at_checkpoint(server, 0)
    request_stop(home, run_id, "abort")
    assert wait_until_ended(home, run_id).state == "stopped"
    assert server.kernels == {} and len(server.datasets) == 1
    assert server.pushed[0].job.ended


def test_stop_that_saves_waits_for_the_end_of_the_session(
    home: Workspace, server: KaggleServer
) -> None:
    run_id = submit(home, "train", run_config("kaggle://cpu", "remote", num_train_steps=3_000_000))
    wait_for(lambda: last_step(home, run_id) > 0)
    request_stop(home, run_id, "save")
    wait_for(lambda: "stopping" in phases(home, run_id))
    kernel = server.pushed[0]
    assert not kernel.job.ended and kernel.job.process is not None
    kernel.job.process.terminate()
    row = wait_until_ended(home, run_id)
    assert row.state == "stopped", row.error
    assert len(server.pushed) == 1 and kernel.status == "COMPLETE"
    assert any(name.endswith("/exit.json") for name in packed(kernel))
    # Where a resumed run goes on from.
    mirror = RunMirror(open_store("file:///~/.pretrain-studio/kaggle"), run_id)
    assert mirror.find_checkpoints(mirror.look())
