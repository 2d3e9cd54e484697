"""Tests that a run is launched on another machine over ssh and looks like a local run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from core import TrainConfig, Workspace
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import request_stop, resume_run, submit
from core.store import RunRow, Store
from core.targets.machines import list_machines
from core.workspace.manifests import hash_file
from tests.core.runs.support import (
    metrics_in_events,
    metrics_in_table,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs
from tests.targets.homes import kill_followers, machine_processes
from tests.targets.ssh_server import SshServer
from tests.targets.test_following import weights
from tests.texts import sentences

pytestmark = [pytest.mark.slow(60), pytest.mark.long]
STEPS = 5_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


def config(target: str, name: str, **fields: object) -> TrainConfig:
    values = {
        "preset": "custom", "shards": "rows", "engine": "jax", "device": "cpu",
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_train_steps": STEPS, "target": target, "name": name, "per_replica_batch_size": 8,
        "eval_steps": 2000, "save_steps": 500, "logging_steps": 20,
    }  # fmt: skip
    return TrainConfig(**{**values, **fields})


def address(server: SshServer) -> str:
    return f"{server.address}?python={sys.executable}"


def phases(workspace: Workspace, run_id: str) -> list[str]:
    events, _ = read_events(RunFolder.of(workspace, run_id).events)
    found = [event["phase"] for event in events if event["kind"] == "remote"]
    return [one for n, one in enumerate(found) if n == 0 or one != found[n - 1]]


def last_step(workspace: Workspace, run_id: str) -> int:
    row = row_of(workspace, run_id)
    return int(row.done) if row.unit == "steps" else 0


def row_of(workspace: Workspace, run_id: str) -> RunRow:
    store = Store.open(workspace)
    try:
        return store.find_run(run_id)
    finally:
        store.close()


@pytest.mark.thorough
def test_launched_run_survives_kills_at_home_and_equals_a_local_run(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    run_id = submit(home, "train", config(address(server), "remote"))
    wait_for(lambda: last_step(home, run_id) > 0)
    stop_worker(home)
    kill_followers(home)
    before = last_step(home, run_id)
    # The server's connections freeze while the worker is restarted.
    connections = psutil.Process(server.process.pid).children(recursive=True)
    for one in connections:
        one.send_signal(signal.SIGSTOP)
    request_stop(home, run_id)
    for one in connections:
        one.kill()
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "saved", None)
    assert row.done >= before
    assert not machine_processes(tmp_path)

    resume_run(home, run_id)
    row = wait_until_ended(home, run_id)
    assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 2)
    assert row.remote["launch"] == 2
    assert list_machines(home) == []
    steps = [step for name, step, _ in metrics_in_events(home, run_id) if name == "loss"]
    assert steps == sorted(set(steps))
    assert metrics_in_table(home, run_id) == metrics_in_events(home, run_id)
    seen = phases(home, run_id)
    for phase in ("checking", "uploading", "training", "stopping", "fetching", "done"):
        assert phase in seen, seen

    local = submit(home, "train", config("", "local"))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "remote")


@pytest.mark.thorough
def test_machine_that_dies_is_replaced(home: Workspace, server: SshServer, tmp_path: Path) -> None:
    run_id = submit(home, "train", config(address(server), "remote"))
    mirror = tmp_path / "ssh/home/.pretrain-studio/mirror/runs" / run_id
    wait_for(lambda: list(mirror.glob("incarnations/000001/checkpoints/*/manifest.json")))
    for one in machine_processes(tmp_path):
        if one.is_running():
            os.kill(one.pid, signal.SIGKILL)
    row = wait_until_ended(home, run_id)
    assert (row.state, row.error, row.remote["incarnation"]) == ("done", None, 2)
    local = submit(home, "train", config("", "local"))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "remote")


def test_run_is_evaluated_on_files_of_this_machine_and_its_kept_models_arrive(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    some = [one.split()[0][:8] for one in sentences(12, seed=8)]
    pairs = [{"sentence_good": one, "sentence_bad": one[::-1], "UID": "p"} for one in some]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    for name in ("first", "second"):
        (tmp_path / f"{name} text.txt").write_text("\n".join(some[:4]))
    options = {
        "num_train_steps": 60, "eval_steps": 60, "save_steps": 60, "evaluate_every": 30,
        "evaluate_pairs_path": str(tmp_path / "pairs.jsonl"),
        "evaluate_text_path": str(tmp_path / "* text.txt"), "checkpoint_words": "500 1k 1G",
    }  # fmt: skip
    found = {}
    for target, name in ((address(server), "remote"), ("", "local")):
        run_id = submit(home, "train", config(target, name, **options))
        assert wait_until_ended(home, run_id).state == "done"
        folder = RunFolder.of(home, run_id)
        kept = {words: hash_file(folder.path / f"checkpoints/words-{words}/model.safetensors")
                for words in (500, 1000)}  # fmt: skip
        metrics = {
            (event["step"], metric): value
            for event in read_events(folder.events)[0]
            if event["kind"] == "metrics"
            for metric, value in event["values"].items()
            if metric.startswith(("pairs_", "text_"))
        }
        found[name] = kept, metrics
    assert found["remote"] == found["local"]
    assert (30, "text_loss/first_text.txt") in found["remote"][1]
    assert (60, "pairs_accuracy") in found["remote"][1]


@pytest.mark.thorough
def test_run_is_saved_at_the_limit_of_cost(home: Workspace, server: SshServer) -> None:
    limits = {"max_cost": 0.01, "price_per_hour": 1.2}  # 30 seconds.
    run_id = submit(
        home, "train", config(address(server), "remote", num_train_steps=10**6, **limits)
    )
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "limit", None)
    assert 0.004 < row.remote["cost"] < 0.03
    assert row.done > 0
    assert list_machines(home) == []


@pytest.mark.thorough
def test_stop_without_saving_ends_the_machine(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    run_id = submit(home, "train", config(address(server), "remote"))
    wait_for(lambda: last_step(home, run_id) > 0)
    request_stop(home, run_id, "abort")
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason) == ("stopped", "aborted")
    assert not machine_processes(tmp_path)


def command(workspace: Workspace, *arguments: str) -> Any:
    """Runs `python -m core` and returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "core", *arguments, "--workspace", str(workspace.root), "--json"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_machine_is_listed_and_deleted_by_commands(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    flags = ["--preset", "custom", "--shards", "rows", "--engine", "jax", "--device", "cpu",
             "--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2",
             "--num-train-steps", "1000000"]  # fmt: skip
    started = command(
        home, "train", *flags, "--target", address(server), "--max-hours", "1", "--detach"
    )
    wait_for(lambda: last_step(home, started["run"]) > 0)
    shown = command(home, "runs", "show", started["run"])
    assert shown["target"] == address(server)
    assert (shown["incarnation"], shown["phase"], shown["cost"]) == (1, "training", None)
    (machine,) = command(home, "targets")
    assert (machine["run_id"], machine["launch"]) == (started["run"], 1)

    command(home, "targets", "delete", machine["id"])
    row = wait_until_ended(home, started["run"])
    assert (row.state, row.reason) == ("stopped", "aborted")
    assert command(home, "targets") == []
    assert not machine_processes(tmp_path)
