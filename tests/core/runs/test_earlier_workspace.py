"""Tests that an earlier version's workspace, and the commands of its README, still work.

`tests/data/earlier_workspace.tar.xz` holds `workspace`, made by an earlier version on the command
line: a tokenizer, shards, a finished training and one stopped at step 38 of 300; `text.txt`, the
corpus; and `resumed.safetensors`, the final weights of that version after it resumed the stopped
training.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from core.config.train import TrainConfig
from core.records.events import read_events
from core.records.folder import RunFolder
from core.report.settings import read_settings, settings_file
from core.runs.client import rebuild_database
from core.store import Store
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker, wait_until_ended

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / "tests" / "data" / "earlier_workspace.tar.xz"
FINISHED, STOPPED = "train-20261125-072658-aa3c", "train-20261125-072839-ee88"
TOKENIZER = "tokenizer-20261125-072653-3118"
# Losses by step that the earlier version logged after it resumed.
LOSSES = {60: 3.6385, 100: 3.5292, 200: 3.3654, 300: 3.2406}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Workspace(tmp_path / "workspace")


def _core(workspace: Workspace, *words: str) -> str:
    command = [sys.executable, "-m", "core", "--workspace", str(workspace.root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_runs_and_artifacts_are_listed(workspace: Workspace) -> None:
    runs = json.loads(_core(workspace, "runs", "list", "--json").splitlines()[-1])
    states = {run["run"]: run["state"] for run in runs}
    stop_worker(workspace)
    assert states[FINISHED] == "done"
    assert states[STOPPED] == "stopped"
    assert len(states) == 4
    kinds = [(one.kind, one.name) for kind in ("tokenizer", "shards", "model")
             for one in workspace.list(kind)]  # fmt: skip
    assert kinds == [("tokenizer", "fixture"), ("shards", "fixture"), ("model", "finished")]


def test_database_is_rebuilt_from_the_run_folders(workspace: Workspace) -> None:
    (workspace.root / "studio.db").unlink()
    assert rebuild_database(workspace) == 4
    # The worker reads a registered run's events afterwards.
    row = wait_until_ended(workspace, STOPPED)
    stop_worker(workspace)
    assert row.state == "stopped"


@pytest.mark.slow
@pytest.mark.long
def test_resumed_run_ends_with_the_losses_and_weights_of_the_earlier_version(
    workspace: Workspace,
) -> None:
    _core(workspace, "runs", "resume", STOPPED)
    row = wait_until_ended(workspace, STOPPED)
    stop_worker(workspace)
    assert row.state == "done"
    events, _ = read_events(RunFolder.of(workspace, STOPPED).events)
    metrics = [one for one in events if one["kind"] == "metrics"]
    losses = {one["step"]: one["values"]["loss"] for one in metrics if "loss" in one["values"]}
    for step, loss in LOSSES.items():
        assert losses[step] == pytest.approx(loss, abs=2e-3)
    assert [one["step"] for one in events if one["kind"] == "resumed"] == [38]
    expected = load_file(workspace.root.parent / "resumed.safetensors")
    weights = load_file(workspace.find("model", "stopped").path / "model.safetensors")
    assert weights.keys() == expected.keys()
    # Bit-exact only on the original processor: other processors sum in another order.
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=5e-3, err_msg=name)


def test_settings_of_an_earlier_run_are_imported(workspace: Workspace) -> None:
    store = Store.open(workspace)
    stage, config = read_settings(settings_file(store.find_run(FINISHED)))
    assert stage == "train"
    assert isinstance(config, TrainConfig)
    assert (config.hidden_size, config.learning_rate, config.seed) == (16, 0.01, 3)
    assert (config.shards, config.engine) == ("fixture", "tensorflow")


# Commands of the README of commit 6a51bdc, and a part of each one's output. Names are those of the
# fixture, and sizes and steps are smaller.
_COMMANDS = {
    "quickstart": [
        ("python -m core quickstart --limit 100 --num-train-steps 2", "models/quickstart"),
        ('python -m core fill-mask quickstart "Returns the [MASK] of the array."', "of the array"),
    ],
    "step by step": [
        (
            "python -m core tokenizer --source files --path text.txt --vocab-size 250"
            f" --name words --after {FINISHED}",
            "tokenizers/words",
        ),
        (
            "python -m core shards --source files --path text.txt --tokenizer words"
            " --max-seq-length 32 --name rows",
            "shards/rows",
        ),
        (
            "python -m core train --shards rows --size tiny --num-train-epochs 0.1 --name model",
            "models/model",
        ),
        ('python -m core fill-mask model "The weather is [MASK] today."', "The weather is"),
    ],
    "gpt2": [
        (
            "python -m core tokenizer --preset flax --family gpt2 --source files --path text.txt"
            " --vocab-size 300 --name pieces",
            "tokenizers/pieces",
        ),
        (
            "python -m core shards --preset flax --objective clm --source files --path text.txt"
            " --tokenizer pieces --name blocks --max-seq-length 32",
            "shards/blocks",
        ),
        (
            "python -m core train --preset flax --family gpt2 --shards blocks --size tiny"
            " --name writer --num-train-steps 2 --per-replica-batch-size 4",
            "models/writer",
        ),
        (
            'python -m core generate writer "The weather" --max-new-tokens 4 --temperature 0.8'
            " --json",
            '"generated_text"',
        ),
        ('python -m core perplexity writer "The weather is good today."', "nats per token"),
    ],
    "preflight": [
        (
            "python -m core preflight --size tiny --vocab-size 500 --max-seq-length 32"
            " --dtype-policy mixed_bfloat16 --per-replica-batch-size 2 --topology v5e-8"
            " --no-trial --no-largest-batch",
            "preflights/roberta-tiny-v5e-8",
        )
    ],
    "evaluate": [
        (
            "python -m core train --shards fixture --checkpoint finished --evaluate-only",
            "eval_loss 4.2255",
        )
    ],
    "list and show": [
        ("python -m core train --help", "--help-all"),
        ("python -m core runs list", STOPPED),
        (f"python -m core runs show {STOPPED}", "stopped"),
        (f"python -m core runs logs {STOPPED}", "step 20  loss 4.4983"),
        ("python -m core artifacts list", "finished"),
    ],
    "report": [
        (f"python -m core runs report {FINISHED} --output report.html", "report.html"),
    ],
    "settings": [
        (f"python -m core runs export {TOKENIZER} --output settings.json", "settings.json"),
        (
            "python -m core tokenizer --config settings.json --path text.txt --name again",
            "tokenizers/again",
        ),
    ],
    "delete": [
        (f"python -m core runs delete {STOPPED}", "is deleted"),
        ("python -m core artifacts delete shards fixture", "fixture"),
    ],
    "suggest": [
        ("python -m core suggest --shards fixture --hours 2", "train --shards fixture --size"),
        ("python -m core suggest --shards fixture --tokens 5e8", "--num-train-steps"),
    ],
    "push": [
        ("python -m core push --model finished --license mit --dry-run", "license: mit"),
    ],
}

# The README of today has the first command, too; the others train like `step by step`.
_THOROUGH = ("quickstart", "gpt2", "evaluate")
_PARAMETERS = [
    pytest.param(value, id=name, marks=[pytest.mark.thorough] if name in _THOROUGH else [])
    for name, value in _COMMANDS.items()
]

# Likewise, for runs that go on in the background until they are stopped.
_BACKGROUND_COMMANDS = {
    "detach": [
        (
            "python -m core train --shards fixture --preset classic --checkpoint finished"
            " --name further --detach",
            "train-",
        ),
        ("python -m core runs stop RUN", "RUN"),
    ],
    "extend": [
        (f"python -m core runs resume {FINISHED} --num-train-steps 5000", "is queued"),
        (f"python -m core runs stop {FINISHED}", FINISHED),
    ],
}

# The README's lines in Python, likewise.
_SCRIPT = """
from core import CorpusConfig, ShardConfig, TokenizerConfig, TrainConfig, Workspace
from core import build_shards, fill_mask, generate, train, train_tokenizer

workspace = Workspace("workspace")
corpus = CorpusConfig(source="files", path="text.txt")
tokenizer = train_tokenizer(TokenizerConfig(corpus=corpus, vocab_size=250), workspace)
shards = build_shards(
    ShardConfig(corpus=corpus, tokenizer=tokenizer.name, max_seq_length=32), workspace
)
model = train(TrainConfig(shards=shards.name, size="tiny", num_train_epochs=0.1), workspace)
print(fill_mask(model.path, "The weather is [MASK] today.", top_k=5))
"""


def _run(folder: Path, *words: str) -> str:
    """Runs Python in the folder that holds the workspace, and returns the output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _run_commands(workspace: Workspace, commands: list[tuple[str, str]]) -> str:
    """Runs commands and checks their output; RUN is the training that the first one queues."""
    output, run = "", ""
    for command, expected in commands:
        _, *words = shlex.split(command.replace("RUN", run))
        output = _run(workspace.root.parent, *words)
        assert expected.replace("RUN", run) in output, command
        run = run or next(iter(re.findall(r"\btrain-[\w-]+", output)), "")
    return run


@pytest.mark.long
@pytest.mark.slow(6)
@pytest.mark.parametrize("commands", _PARAMETERS)
def test_command_of_an_earlier_readme_succeeds(
    workspace: Workspace, commands: list[tuple[str, str]]
) -> None:
    _run_commands(workspace, commands)
    stop_worker(workspace)


@pytest.mark.long
@pytest.mark.slow(5)
@pytest.mark.parametrize("commands", _BACKGROUND_COMMANDS.values(), ids=_BACKGROUND_COMMANDS)
def test_background_command_of_an_earlier_readme_succeeds(
    workspace: Workspace, commands: list[tuple[str, str]]
) -> None:
    run = _run_commands(workspace, commands)
    row = wait_until_ended(workspace, run)
    stop_worker(workspace)
    assert row.state == "stopped"


@pytest.mark.long
@pytest.mark.slow(6)
def test_python_lines_of_an_earlier_readme_succeed(workspace: Workspace) -> None:
    output = _run(workspace.root.parent, "-c", _SCRIPT)
    assert len(ast.literal_eval(output.splitlines()[-1])) == 5
