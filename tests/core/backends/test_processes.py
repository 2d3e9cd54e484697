"""Runs of several processes, as on the hosts of a TPU pod slice, here on the loopback device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.cli.following import shown_notes
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.records.events import Reporter, read_events
from core.shards.build import build
from core.workspace.workspace import Workspace
from tests import child_processes
from tests.child_processes import Child
from tests.core.training.test_trainer import make_inputs
from tests.ports import free_port
from tests.texts import write_sentences

STEPS = 40

# The masks of TensorFlow's dropout depend on the number of processes.
TENSORFLOW = {
    "engine": "tensorflow",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SETTINGS: dict[str, dict[str, Any]] = {"jax": {}, "tensorflow": TENSORFLOW}

# One process of a run: each host has its own workspace with the same shards.
SCRIPT = """
import json, signal, sys
from core import TrainConfig, Workspace
from core.errors import StudioError
from core.records.events import FolderReporter, RunStopped
from core.training.trainer import train

class Stopping(FolderReporter):
    step = 0
    def progress(self, done, *arguments, **more):
        self.step = int(done)
        super().progress(done, *arguments, **more)
    def stop_requested(self):
        return "save" if stop_at and self.step >= stop_at else super().stop_requested()

values = json.loads(sys.argv[2])
stop_at = values.pop("stop_at", 0)
workspace = Workspace(sys.argv[1])
reporter = Stopping(workspace.runs / "run", echo=False, min_progress_seconds=0.0)
signal.signal(signal.SIGTERM, lambda *_: reporter.preempt())
config = TrainConfig(
    preset="custom", device="cpu", hidden_size=16,
    num_hidden_layers=1, num_attention_heads=2, learning_rate=3e-3, eval_steps=20, save_steps=10,
    logging_steps=1, name="model", word_embeddings="cooccurrence",
    attention_kernels="neighbours", **{"shards": "rows", "engine": "jax",
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, **values})
try:
    artifact = train(config, workspace, reporter)
    print(json.dumps({"path": str(artifact.path), "counts": artifact.manifest.counts}))
except RunStopped:
    print(json.dumps({"stopped": reporter.step, "preempted": reporter.preempted}))
except StudioError as error:
    print(json.dumps({"reason": error.reason, "error": str(error)}))
finally:
    reporter.close()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workspace that each host starts with."""
    folder = tmp_path_factory.mktemp("hosts")
    workspace = make_inputs(folder / "fresh")
    text = write_sentences(workspace.root / "more.txt", 300, seed=1)
    shards = ShardConfig(
        name="more", preset="custom", corpus=CorpusConfig(source="files", path=str(text)),
        tokenizer="words", max_seq_length=16,
    )  # fmt: skip
    build(shards, workspace, Reporter())
    return folder


def workspaces(hosts: Path, name: str, count: int) -> list[Workspace]:
    """Gives each host of a run its own workspace."""
    folders = [hosts / f"{name}-{process}" for process in range(count)]
    for folder in folders:
        if not folder.exists():
            shutil.copytree(hosts / "fresh", folder)
    return [Workspace(folder) for folder in folders]


def start(places: list[Workspace], **values: Any) -> list[Child]:
    """Starts one process of a run in each workspace."""
    address = f"127.0.0.1:{free_port()}"
    common = {"num_train_steps": STEPS, "per_replica_batch_size": 16 // len(places), **values}
    if len(places) > 1:
        common |= {"num_processes": len(places), "coordinator_address": address}
    return [
        child_processes.start(
            values.get("engine", "jax"), SCRIPT, place.root, json.dumps(own), JAX_PLATFORMS="cpu"
        )
        for number, place in enumerate(places)
        for own in [common if len(places) == 1 else {**common, "process_id": number}]
    ]


def finish(processes: list[Child]) -> list[dict[str, Any]]:
    """Waits for the processes and returns the last line of each."""
    for process in processes:
        assert process.wait(300) == 0, process.errors[-3000:]
    return [json.loads(process.output.splitlines()[-1]) for process in processes]


def losses_of_one_process(hosts: Path, engine: str) -> dict[int, float]:
    one, *_ = workspaces(hosts, f"one-{engine}", 1)
    if not (one.runs / "run").exists():
        finish(start([one], **SETTINGS[engine]))
    return losses_of(one)


def events_of(place: Workspace) -> list[dict[str, Any]]:
    return read_events(place.runs / "run" / "events.jsonl")[0]


def losses_of(place: Workspace) -> dict[int, float]:
    """Training losses by step; after a resume, the newest."""
    events = [one for one in events_of(place) if one["kind"] == "metrics"]
    return {int(one["step"]): one["values"]["loss"] for one in events if "loss" in one["values"]}


def checkpoints_of(place: Workspace) -> list[str]:
    folder = place.runs / "run" / "checkpoints"
    return sorted(path.name for path in folder.glob("step-*")) if folder.exists() else []


@pytest.mark.long
@pytest.mark.slow(25)
@pytest.mark.parametrize(
    ("count", "values"),
    [
        (2, {"sharding": "fsdp"}),
        pytest.param(4, {}, marks=pytest.mark.thorough),
        pytest.param(4, TENSORFLOW, marks=pytest.mark.thorough),
        # Two devices in each process, and two micro-batches.
        (2, {**TENSORFLOW, "num_devices": 2, "gradient_accumulation_steps": 2,
             "per_replica_batch_size": 2}),
    ],
)  # fmt: skip
def test_several_processes_have_the_losses_of_one_and_only_rank_0_saves(
    hosts: Path, count: int, values: dict[str, Any]
) -> None:
    engine = values.get("engine", "jax")
    whole = losses_of_one_process(hosts, engine)
    assert len(set(whole.values())) == STEPS
    places = workspaces(hosts, f"{engine}-{count}-{'-'.join(values) or 'data'}", count)
    said = finish(start(places, **values))
    for place in places:
        losses = losses_of(place)
        assert list(losses) == list(whole)
        assert np.allclose(list(losses.values()), list(whole.values()), rtol=0, atol=1e-4)
    assert [bool(checkpoints_of(place)) for place in places] == [True] + [False] * (count - 1)
    assert all(one["path"] == str(places[0].folder("model") / "model") for one in said)
    assert all(one["counts"] == said[0]["counts"] for one in said)


@pytest.mark.long
@pytest.mark.slow(25)
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_stop_of_one_process_stops_all_at_the_same_step(hosts: Path, engine: str) -> None:
    places = workspaces(hosts, f"stopped-{engine}", 2)
    processes = start(places, stop_at=12, engine=engine)
    said = finish(processes)
    assert said[0]["stopped"] == said[1]["stopped"] <= 16
    assert checkpoints_of(places[0])[-1] == f"step-{said[0]['stopped']:08d}"


@pytest.mark.long
@pytest.mark.slow(25)
def test_sigterm_to_one_process_saves_and_preempts_all(hosts: Path) -> None:
    places = workspaces(hosts, "terminated", 2)
    processes = start(places, num_train_steps=4000)
    deadline = time.monotonic() + 240
    while not checkpoints_of(places[0]):
        assert all(process.poll() is None for process in processes), processes[0].errors
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(processes[1].pid, signal.SIGTERM)
    said = finish(processes)
    assert 10 <= said[0]["stopped"] == said[1]["stopped"] < 4000
    assert [one["preempted"] for one in said] == [True, True]
    assert checkpoints_of(places[0])[-1] == f"step-{said[0]['stopped']:08d}"


@pytest.mark.slow(25)
@pytest.mark.parametrize(
    ("engine", "count", "victim"),
    [
        ("jax", 2, 0),
        ("tensorflow", 2, 1),
        pytest.param("jax", 4, 1, marks=pytest.mark.thorough),
        pytest.param("tensorflow", 4, 0, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.long
def test_killed_process_ends_the_run_and_another_number_of_processes_resumes_it(
    hosts: Path, engine: str, count: int, victim: int
) -> None:
    whole = losses_of_one_process(hosts, engine)
    places = workspaces(hosts, f"killed-{engine}-{count}", count)
    processes = start(places, **SETTINGS[engine])
    deadline = time.monotonic() + 240
    while not checkpoints_of(places[0]):
        assert all(process.poll() is None for process in processes), processes[0].errors
        assert time.monotonic() < deadline
        time.sleep(0.005)
    processes[victim].kill()
    codes = [process.wait(240) for process in processes]
    assert codes[victim] == -signal.SIGKILL
    for number, (process, code) in enumerate(zip(processes, codes, strict=True)):
        if number == victim:
            continue
        # JAX aborts the others if rank 0 died, and Gloo aborts a process whose peer gave up an
        # all-reduce: neither can report the reason itself.
        if code == -signal.SIGABRT:
            assert "another task died" in process.errors or "gloo::" in process.errors
        else:
            assert code == 0, process.errors[-3000:]
            assert json.loads(process.output.splitlines()[-1])["reason"] == "process_lost"

    rest = places[: 3 - count // 2]
    finish(start(rest, per_replica_batch_size=16 // count, **SETTINGS[engine]))
    for place in rest:
        losses = losses_of(place)
        seen = [step for step in losses if step > 10]
        assert seen[-1] == STEPS
        assert np.allclose([losses[n] for n in seen], [whole[n] for n in seen], rtol=0, atol=1e-4)


@pytest.mark.slow(25)
@pytest.mark.parametrize(
    ("count", "engine"),
    [
        pytest.param(1, "tensorflow", marks=pytest.mark.thorough),
        pytest.param(1, "jax", marks=pytest.mark.thorough),
        (2, "jax"),
        pytest.param(4, "jax", marks=pytest.mark.thorough),
        (2, "tensorflow"),
        pytest.param(4, "tensorflow", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.long
def test_mixture_resumes_bit_exactly_on_any_number_of_processes(
    hosts: Path, count: int, engine: str
) -> None:
    values = {"mixture": "rows=3 more=1", "shards": "", "engine": engine, "num_train_steps": 20}
    whole, stopped = (
        workspaces(hosts, f"mixture-{name}-{engine}-{count}", count) for name in ("whole", "again")
    )
    said = finish(start(whole, **values))
    assert finish(start(stopped, stop_at=7, **values))[0]["stopped"] < 20
    assert finish(start(stopped, **values))[0]["counts"]["num_train_steps"] == 20
    weights = [
        (places[0].folder("model") / "model" / "model.safetensors").read_bytes()
        for places in (whole, stopped)
    ]
    assert weights[0] == weights[1]
    assert losses_of(whole[0]) == losses_of(stopped[0])
    (note,) = shown_notes(events_of(whole[0]))
    assert note.startswith("The mixture reads ")
    counts = said[0]["counts"]
    assert counts["eval_loss"] == pytest.approx(
        0.75 * counts["eval_loss/rows"] + 0.25 * counts["eval_loss/more"]
    )
    assert counts["epoch/rows"] / counts["epoch/more"] == pytest.approx(
        3 * _sequences(whole[0], "more") / _sequences(whole[0], "rows"), rel=0.02
    )


def _sequences(place: Workspace, name: str) -> int:
    return int(place.find("shards", name).manifest.counts["train_rows"])
