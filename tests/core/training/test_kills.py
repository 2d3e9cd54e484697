"""Runs that are really killed: again and again, in a save, between sync and rename."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from core.events import read_events
from core.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.engines import ENGINES

ROOT = Path(__file__).parents[3]
STEPS = 120
KILLS = 10

# Trains in a run folder. Told to, it kills itself at the n-th commit of a checkpoint: before the
# files are synced ("save"), or when only the rename is missing ("rename").
SCRIPT = """
import os, signal, sys
from core import TrainConfig, Workspace
from core.events import FolderReporter
from core.training import checkpoint
from core.training.trainer import train
from pathlib import Path

name, engine, where, count = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
calls = 0

def die_in_time():
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)

commit, rename = checkpoint.commit_folder, Path.rename
if where == "save":
    def commit_or_die(draft, final):
        die_in_time()
        commit(draft, final)
    checkpoint.commit_folder = commit_or_die
if where == "rename":
    def rename_or_die(self, target):
        if Path(target).name.startswith("step-"):
            die_in_time()
        return rename(self, target)
    Path.rename = rename_or_die

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


def start(workspace: Workspace, name: str, engine: str, where: str = "", count: int = 0):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(workspace.root), name, engine, where or "-", str(count)],
        cwd=ROOT,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_COMPILATION_CACHE_DIR": str(workspace.root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        stderr=subprocess.DEVNULL,
    )


def finish(workspace: Workspace, name: str, engine: str) -> str:
    """Runs to the end and returns a hash of the last weights, slots and seeds."""
    assert start(workspace, name, engine).wait(300) == 0
    folder = workspace.runs / name / "checkpoints" / f"step-{STEPS:08d}"
    files = ("model.safetensors", "training_state.safetensors")
    return sha256(b"".join((folder / file).read_bytes() for file in files)).hexdigest()


def kill_at(workspace: Workspace, name: str, engine: str, step: int) -> int:
    """Starts the run, kills it when it is seen at a step or beyond, and returns where it was."""
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
    assert process.wait() == -signal.SIGKILL
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_ten_times_it_ends_with_the_same_weights(workspace: Workspace, engine: str) -> None:
    whole = finish(workspace, f"whole-{engine}", engine)
    targets = sorted(random.Random(engine).sample(range(3, STEPS - 25), KILLS))
    for target in targets:
        assert kill_at(workspace, f"killed-{engine}", engine, target) < STEPS
    assert finish(workspace, f"killed-{engine}", engine) == whole


@pytest.mark.slow
@pytest.mark.parametrize("where", ["save", "rename"])
def test_killed_in_a_save_it_ends_with_the_same_weights(workspace: Workspace, where: str) -> None:
    engine = "jax"
    whole = finish(workspace, f"alone-{where}", engine)
    name = f"killed-in-{where}"
    for count in (1, 2, 4):
        assert start(workspace, name, engine, where, count).wait(300) == -signal.SIGKILL
    assert finish(workspace, name, engine) == whole
    checkpoints = workspace.runs / name / "checkpoints"
    assert not [path for path in checkpoints.iterdir() if path.name.startswith(".")]
