"""A run whose settings were derived is extended like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import TrainConfig, Workspace
from core.runs.client import resume_run, submit
from tests.core.runs.support import stop_worker, wait_until_ended
from tests.core.training.test_trainer import make_inputs


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = make_inputs(tmp_path)
    yield workspace
    stop_worker(workspace)


@pytest.mark.slow(30)
def test_run_with_automatic_settings_is_extended(workspace: Workspace) -> None:
    config = TrainConfig(
        shards="rows", engine="jax", device="cpu", preset="custom", hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, minutes=0.001,
    )  # fmt: skip
    run_id = submit(workspace, "train", config)
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.error) == ("done", None)
    steps = int(row.done) + 7
    resume_run(workspace, run_id, num_train_steps=steps)
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.error, row.done) == ("done", None, steps)
