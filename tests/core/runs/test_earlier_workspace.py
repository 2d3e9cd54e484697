"""Tests that runs of an earlier version's workspace are listed, resumed and used.

`tests/data/earlier_workspace.tar.xz` holds `workspace`, made by an earlier version on the command
line: a tokenizer, shards, a finished training and one stopped at step 38 of 300; `text.txt`, the
corpus; and `resumed.safetensors`, the final weights of that version after it resumed the stopped
training.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from core.config import TrainConfig
from core.events import read_events
from core.report.settings import read_settings, settings_file
from core.runs.client import rebuild_database, resume_run
from core.runs.folder import RunFolder
from core.store import Store
from core.workspace import Workspace
from tests.core.runs.support import stop_worker, wait_until_ended

ARCHIVE = Path(__file__).parents[2] / "data" / "earlier_workspace.tar.xz"
FINISHED, STOPPED = "train-20261125-072658-aa3c", "train-20261125-072839-ee88"
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
    stop_worker(workspace)
    assert Store.open(workspace).find_run(STOPPED).state == "stopped"


@pytest.mark.slow
def test_resumed_run_ends_with_the_losses_and_weights_of_the_earlier_version(
    workspace: Workspace,
) -> None:
    resume_run(workspace, STOPPED)
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
