"""Runs that are really killed: repeatedly, during a save, and between sync and rename."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from core.artifacts.checkpoint import verify
from core.records.events import read_events, read_last_events
from core.workspace.workspace import Workspace
from tests import child_processes
from tests.child_processes import Child
from tests.core.training.test_trainer import make_inputs
from tests.engines import ENGINES
from tests.thorough import THOROUGH

STEPS = 120
KILLS = 10 if THOROUGH else 3
KILLED = ENGINES if THOROUGH else ENGINES[-1:]

# Trains in a run folder. On request, it kills itself during its n-th save: after writing the
# weights and before the state ("save"), or after syncing everything and before the rename
# ("rename"). An audit hook sees these operations beforehand.
SCRIPT = """
import os, re, signal, sys
from core import TrainConfig, Workspace
from core.records.events import FolderReporter
from core.training.trainer import train

name, engine, where, count = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
calls = 0

def is_there(event, arguments):
    if where == "save" and event == "open" and arguments[1] == "w":
        return str(arguments[0]).endswith(".draft/training_state.json")
    if where == "rename" and event == "os.rename":
        return re.fullmatch("step-[0-9]{8}", os.path.basename(arguments[1]))
    return False

def die_there(event, arguments):
    global calls
    if is_there(event, arguments):
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die_there)
workspace = Workspace(sys.argv[1])
reporter = FolderReporter(workspace.runs / name, echo=False, min_progress_seconds=0.0)
config = TrainConfig(
    preset="custom", shards="rows", engine=engine, device="cpu", hidden_size=16,
    num_hidden_layers=1, num_attention_heads=2, num_train_steps=STEPS, per_replica_batch_size=8,
    learning_rate=3e-3, eval_steps=60, logging_steps=7, save_steps=9, hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1, name=name)
train(config, workspace, reporter)
reporter.close()
""".replace("STEPS", str(STEPS))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_inputs(tmp_path_factory.mktemp("studio"))


def start(workspace: Workspace, name: str, engine: str, where: str = "", count: int = 0) -> Child:
    return child_processes.start(engine, SCRIPT, workspace.root, name, engine, where or "-", count)


def finish(workspace: Workspace, name: str, engine: str) -> str:
    """Runs to the end and returns a hash of the last weights, slots and seeds."""
    assert start(workspace, name, engine).wait(300) == 0
    folder = workspace.runs / name / "checkpoints" / f"step-{STEPS:08d}"
    files = ("model.safetensors", "training_state.safetensors")
    return sha256(b"".join((folder / file).read_bytes() for file in files)).hexdigest()


def kill_at(workspace: Workspace, name: str, engine: str, step: int) -> int:
    """Starts the run, kills it once it reports the step or a later one, and returns that step."""
    events, offset = workspace.runs / name / "events.jsonl", 0
    offset = read_events(events)[1]
    process = start(workspace, name, engine)
    seen = -1
    deadline = time.monotonic() + 240
    while seen < step:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        fresh, offset = read_events(events, offset)
        steps = [int(one["done"]) for one in fresh if one.get("note") == "training"]
        seen = max([seen, *steps])
        time.sleep(0.002)
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    return seen


def die_in_a_save(workspace: Workspace, name: str, engine: str, where: str, count: int) -> None:
    """Starts the run and checks that it died in its n-th save, at the requested operation."""
    checkpoints = workspace.runs / name / "checkpoints"
    assert start(workspace, name, engine, where, count).wait(300) == -signal.SIGKILL
    last = read_last_events(workspace.runs / name / "events.jsonl")[-1]
    assert (last["kind"], last["note"]) == ("progress", "saving")
    (draft,) = checkpoints.glob(".step-*.draft")
    assert draft.name == f".step-{last['done']:08d}.draft"
    assert not (checkpoints / f"step-{last['done']:08d}").exists()
    files = {path.name for path in draft.iterdir()}
    assert {"model.safetensors", "training_state.safetensors"} <= files
    assert ("training_state.json" in files) == (where == "rename")
    if where == "rename":
        verify(draft)


def play(workspace: Workspace, engine: str) -> dict[str, str]:
    """Trains once uninterrupted, once killed at some steps, and once killed in saves."""
    weights = {"whole": finish(workspace, f"whole-{engine}", engine)}
    for target in sorted(random.Random(engine).sample(range(3, STEPS - 25), KILLS)):
        assert kill_at(workspace, f"killed-{engine}", engine, target) < STEPS
    weights["killed"] = finish(workspace, f"killed-{engine}", engine)
    name = f"killed-in-saves-{engine}"
    for where, count in (("save", 1), ("rename", 1), ("save", 3), ("rename", 2)):
        die_in_a_save(workspace, name, engine, where, count)
    weights["killed in saves"] = finish(workspace, name, engine)
    checkpoints = workspace.runs / name / "checkpoints"
    assert not [path for path in checkpoints.iterdir() if path.name.startswith(".")]
    return weights


@pytest.fixture(scope="module")
def weights(workspace: Workspace) -> dict[str, dict[str, str]]:
    """The weights of each run, by backend; the backends train at the same time."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda engine: play(workspace, engine), KILLED)
        return dict(zip(KILLED, found, strict=True))


@pytest.mark.slow(30)
@pytest.mark.long
@pytest.mark.parametrize("engine", KILLED)
def test_run_killed_repeatedly_has_the_weights_of_an_uninterrupted_run(
    weights: dict[str, dict[str, str]], engine: str
) -> None:
    assert weights[engine]["killed"] == weights[engine]["whole"]


@pytest.mark.slow(30)
@pytest.mark.long
@pytest.mark.parametrize("engine", KILLED)
def test_run_killed_in_saves_has_the_weights_of_an_uninterrupted_run(
    weights: dict[str, dict[str, str]], engine: str
) -> None:
    assert weights[engine]["killed in saves"] == weights[engine]["whole"]
