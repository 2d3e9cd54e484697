"""Tests that runs on a Cloud TPU survive preemptions and lost hosts, and delete what they created.

The server really runs the startup script, in processes on this machine's CPU.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.runs.client import ensure_worker, request_stop, resume_run, submit
from core.store import Store
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
from tests.targets.homes import kill_followers
from tests.targets.test_following import weights
from tests.targets.tpu_server import TpuServer
from tests.targets.tpu_support import PROJECT, ZONE, sign_in
from tests.thorough import THOROUGH

pytestmark = [pytest.mark.slow(60), pytest.mark.long]
ONE_HOST = f"tpu://v5litepod-8?zone={ZONE}&project={PROJECT}"
TWO_HOSTS = f"tpu://v4-16?zone={ZONE}&project={PROJECT}"
PREEMPTIONS = 5 if THOROUGH else 2
LONG = 300.0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


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
            **compiler_settings(),
        }
        sign_in(server, tmp_path, monkeypatch)
        yield server
    assert server.unknown_requests == []


def config(target: str, name: str, **fields: object) -> TrainConfig:
    values = {
        "preset": "custom", "shards": "rows", "engine": "jax", "device": "cpu",
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "target": target,
        "mirror": "gs://bucket/x" if target else "", "name": name, "per_replica_batch_size": 8,
        "num_train_steps": 6000 if THOROUGH else 3000, "eval_steps": 1500, "save_steps": 250,
        "logging_steps": 20,
    }  # fmt: skip
    return TrainConfig(**{**values, **fields})


def checkpoints(server: TpuServer, incarnation: int, run_id: str) -> list[str]:
    start = f"x/runs/{run_id}/incarnations/{incarnation:06d}/checkpoints/"
    end = "/manifest.json"
    return [key for key in list(server.files) if key.startswith(start) and key.endswith(end)]


def claims(server: TpuServer) -> int:
    return sum("/claims/" in key for key in list(server.files))


def wait_for_machine(server: TpuServer, run_id: str, launch: int) -> str:
    """Waits until the machine of a launch boots; returns its id."""
    id = f"studio-{run_id}-{launch}"
    wait_for(lambda: server.resources().get(id) == "ACTIVE", LONG)
    return id


def losses(workspace: Workspace, run_id: str) -> list[tuple[str, int, float]]:
    """Reads all losses from the database, which must have what the events say."""
    found = metrics_in_table(workspace, run_id)
    assert found == metrics_in_events(workspace, run_id)
    found = [one for one in found if one[0].endswith("loss")]
    steps = [step for name, step, _ in found if name == "loss"]
    assert steps and steps == sorted(set(steps))
    return found


def assert_same(home: Workspace, runs: dict[str, str]) -> None:
    """Compares the losses and the weights of runs, which are given by their models' names."""
    (first, first_id), (second, second_id) = runs.items()
    assert losses(home, first_id) == losses(home, second_id)
    assert weights(home, first) == weights(home, second)


def assert_all_deleted(server: TpuServer, home: Workspace) -> None:
    for id in server.created:
        server.wait(id, None)
    assert server.resources() == {} and list_machines(home) == []


@pytest.mark.slow(180)
def test_run_survives_preemptions_at_random_times(server: TpuServer, home: Workspace) -> None:
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    run_id = submit(home, "train", config(ONE_HOST, "remote"))
    for launch in range(1, PREEMPTIONS + 1):
        id = wait_for_machine(server, run_id, launch)
        # Every other machine is taken away while it starts, the first one after a checkpoint, and
        # the others once they upload. A run that ends right after a checkpoint uploads seven files
        # and more.
        if launch % 2:
            key_end = "/manifest.json" if launch == 1 else ""
            server.preempt_at_upload(id, key_end, chance.randint(0, 6))
        else:
            time.sleep(chance.uniform(0, 3))
            server.preempt(id)
    row = wait_until_ended(home, run_id, LONG)
    assert (row.state, row.error) == ("done", None)
    assert row.remote["launch"] == len(server.created) == PREEMPTIONS + 1
    assert row.remote["incarnation"] > PREEMPTIONS // 2
    assert_all_deleted(server, home)
    local = submit(home, "train", config("", "local"))
    assert wait_until_ended(home, local, LONG).state == "done"
    assert_same(home, {"remote": run_id, "local": local})


@pytest.mark.thorough
@pytest.mark.slow(150)
def test_slice_that_loses_a_host_is_replaced(server: TpuServer, home: Workspace) -> None:
    fields = {"num_train_steps": 600, "eval_steps": 300, "save_steps": 100}
    whole = submit(home, "train", config(TWO_HOSTS, "whole", **fields))
    assert wait_until_ended(home, whole, LONG).state == "done"

    run_id = submit(home, "train", config(TWO_HOSTS, "remote", **fields))
    id = wait_for_machine(server, run_id, 1)
    wait_for(lambda: checkpoints(server, 1, run_id), LONG)
    _, second = server.hosts(id)
    for one in second.processes():
        one.kill()
    row = wait_until_ended(home, run_id, LONG)
    assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 2)
    assert_all_deleted(server, home)
    assert_same(home, {"whole": whole, "remote": run_id})


@pytest.mark.slow(120)
@pytest.mark.thorough
def test_run_of_two_hosts_goes_on_with_one(server: TpuServer, home: Workspace) -> None:
    fields = {"num_train_steps": 600, "eval_steps": 300, "save_steps": 100}
    run_id = submit(home, "train", config(TWO_HOSTS, "remote", price_per_hour=2.0, **fields))
    wait_for_machine(server, run_id, 1)
    wait_for(lambda: checkpoints(server, 1, run_id), LONG)
    request_stop(home, run_id)
    row = wait_until_ended(home, run_id, LONG)
    assert (row.state, row.reason) == ("stopped", "saved")
    stopped_at, cost = row.done, row.remote["cost"]
    assert 0 < stopped_at < 600 and cost > 0

    resume_run(home, run_id, target=ONE_HOST, price_per_hour=1.0)
    row = wait_until_ended(home, run_id, LONG)
    assert (row.state, row.error, row.done) == ("done", None, 600)
    assert row.remote["target"] == row.config["target"] == ONE_HOST
    assert row.remote["incarnation"] == row.remote["launch"] == 2
    assert cost < row.remote["cost"] < cost + row.remote["hours"] * 1.0
    steps = [step for name, step, _ in losses(home, run_id) if name == "loss"]
    assert steps[-1] == 600 and any(step > stopped_at for step in steps)
    assert_all_deleted(server, home)


@pytest.mark.thorough
@pytest.mark.slow(90)
def test_machine_saves_and_deletes_itself_at_the_limit_without_its_user(
    server: TpuServer, home: Workspace
) -> None:
    limits = {"num_train_steps": 10**6, "max_cost": 0.02, "price_per_hour": 1.2}  # A minute.
    run_id = submit(home, "train", config(ONE_HOST, "remote", **limits))
    id = wait_for_machine(server, run_id, 1)
    store = Store.open(home)
    wait_for(lambda: claims(server) and store.find_run(run_id).remote.get("cost"), LONG)
    store.close()
    stop_worker(home)
    kill_followers(home)
    server.wait(id, None, timeout_seconds=90)
    assert server.deleted[id] == server.hosts(id)[0].token
    ensure_worker(home)
    row = wait_until_ended(home, run_id, LONG)
    assert (row.state, row.reason, row.error) == ("stopped", "limit", None)
    assert 0.01 < row.remote["cost"] < 0.04
    assert row.done > 0 and list(home.runs.glob(f"{run_id}/checkpoints/step-*"))
    assert_all_deleted(server, home)


@pytest.mark.thorough
def test_run_that_no_machine_takes_is_reported(server: TpuServer, home: Workspace) -> None:
    server.fail_next("quota")
    run_id = submit(home, "train", config(ONE_HOST, "remote"))
    row = wait_until_ended(home, run_id, LONG)
    assert row.state == "failed" and "Quota limit" in str(row.error)
    assert server.created == []

    server.fail_next("no capacity", times=3)
    run_id = submit(home, "train", config(ONE_HOST, "remote"))
    row = wait_until_ended(home, run_id, LONG)
    assert row.state == "failed" and "no more capacity" in str(row.error)
    assert_all_deleted(server, home)
