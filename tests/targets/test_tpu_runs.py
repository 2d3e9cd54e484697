"""Tests that runs on a Cloud TPU survive preemptions and lost hosts, and delete what they created.

The server really runs the startup script, in processes on this machine's CPU.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.runs.client import submit
from core.runs.folder import RunFolder
from core.runs.worker import is_worker_running
from core.targets.machines import list_machines
from tests.core.runs.support import (
    metrics_in_events,
    metrics_in_table,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs
from tests.targets.test_following import kill_followers, weights
from tests.targets.tpu_server import TpuServer
from tests.targets.tpu_support import PROJECT, ZONE, sign_in

pytestmark = [pytest.mark.slow(90), pytest.mark.long]
ONE_HOST = f"tpu://v5litepod-8?zone={ZONE}&project={PROJECT}"
TWO_HOSTS = f"tpu://v4-16?zone={ZONE}&project={PROJECT}"
PREEMPTIONS = 5


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


@pytest.fixture
def home(inputs: Path, tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "home")
    shutil.copytree(inputs, workspace.root)
    yield workspace
    if is_worker_running(workspace):
        stop_worker(workspace)
    kill_followers(workspace)


@pytest.fixture
def server(home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuServer]:
    with TpuServer() as server:
        server.extra_environment |= {
            "STUDIO_MACHINE_PYTHON": sys.executable,
            "STUDIO_MACHINE_HOME": "machine",
            "STORAGE_EMULATOR_HOST": server.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GCE_METADATA_IP": "{metadata_host}",
            "JAX_PLATFORMS": "cpu",
        }
        sign_in(server, tmp_path, monkeypatch)
        yield server
    assert server.unknown_requests == []


def config(target: str, name: str, **fields: object) -> TrainConfig:
    values = {
        "preset": "custom", "shards": "rows", "engine": "tensorflow", "device": "cpu",
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "target": target,
        "mirror": "gs://bucket/x" if target else "", "name": name, "per_replica_batch_size": 8,
        "num_train_steps": 6000, "eval_steps": 1500, "save_steps": 500, "logging_steps": 20,
    }  # fmt: skip
    return TrainConfig(**{**values, **fields})


def checkpoints(server: TpuServer, incarnation: int) -> list[str]:
    start, end = f"/incarnations/{incarnation:06d}/checkpoints/", "/manifest.json"
    return [key for key in list(server.files) if start in key and key.endswith(end)]


def claims(server: TpuServer) -> int:
    return sum("/claims/" in key for key in list(server.files))


def wait_for_machine(server: TpuServer, run_id: str, launch: int) -> str:
    """Waits until the machine of a launch boots; returns its id."""
    id = f"studio-{run_id}-{launch}"
    wait_for(lambda: server.resources().get(id) == "ACTIVE")
    return id


def assert_equals_a_local_run(home: Workspace, run_id: str, name: str, **fields: object) -> None:
    """Compares the final weights, and looks for steps that are in the curves twice."""
    steps = [step for metric, step, _ in metrics_in_events(home, run_id) if metric == "loss"]
    assert steps == sorted(set(steps))
    assert metrics_in_table(home, run_id) == metrics_in_events(home, run_id)
    local = submit(home, "train", config("", "local", **fields))
    assert wait_until_ended(home, local).state == "done"
    assert metrics_in_table(home, run_id) == metrics_in_table(home, local)
    assert weights(home, "local") == weights(home, name)


def assert_all_deleted(server: TpuServer, home: Workspace) -> None:
    for id in server.created:
        server.wait(id, None)
    assert server.resources() == {} and list_machines(home) == []


@pytest.mark.slow(180)
def test_run_survives_five_preemptions_at_random_times(server: TpuServer, home: Workspace) -> None:
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    run_id = submit(home, "train", config(ONE_HOST, "remote"))
    for launch in range(1, PREEMPTIONS + 1):
        id = wait_for_machine(server, run_id, launch)
        # Every other machine is taken away while it starts, the others after a checkpoint.
        if launch % 2:
            before = claims(server)
            wait_for(lambda before=before: claims(server) > before)
            wait_for(lambda: checkpoints(server, claims(server)))
        time.sleep(chance.uniform(0, 3))
        server.preempt(id)
    row = wait_until_ended(home, run_id)
    assert (row.state, row.error) == ("done", None)
    assert row.remote["launch"] == len(server.created) == PREEMPTIONS + 1
    assert row.remote["incarnation"] > PREEMPTIONS // 2
    assert_all_deleted(server, home)
    assert_equals_a_local_run(home, run_id, "remote")
