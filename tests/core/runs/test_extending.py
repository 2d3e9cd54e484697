"""A run whose settings were derived is extended like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import CorpusConfig, TokenizerConfig, TrainConfig, Workspace
from core.errors import RunError
from core.runs.client import resume_run, submit
from tests.core.runs.support import stop_worker, wait_until_ended
from tests.core.training.test_trainer import make_inputs
from tests.texts import write_sentences


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


def test_only_training_is_said_to_be_extendable(workspace: Workspace) -> None:
    text = write_sentences(workspace.root / "text.txt")
    corpus = CorpusConfig(source="files", path=str(text))
    run_id = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus, vocab_size=80))
    assert wait_until_ended(workspace, run_id).state == "done"
    with pytest.raises(RunError) as caught:
        resume_run(workspace, run_id)
    assert caught.value.fix == "start a new run"
    with pytest.raises(RunError, match="can't be extended"):
        resume_run(workspace, run_id, num_train_steps=9)
