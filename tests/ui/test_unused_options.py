"""Options without effect are shown at their field before a run is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.evaluate import EvaluateConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from ui import evaluate, train
from ui.forms import Form


def refused(form: Form[Any], values: dict[str, Any]) -> ConfigError:
    """Returns the error of a form that sends all its values, as the page does."""
    with gr.Blocks():
        form.render()
    shown = {name: one.value for name, one in form.components.items()}
    with pytest.raises(ConfigError) as caught:
        form.check(form.parse({**shown, **values}))
    return caught.value


def test_data_of_evaluations_without_an_interval_are_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    form = Form(TrainConfig, "train", workspace, check=lambda one: train._check(one, workspace))
    (tmp_path / "a.txt").write_text("A ship.")
    error = refused(form, {"shards": "rows", "evaluate_text_path": str(tmp_path / "a.txt")})
    assert (error.field, "evaluate_text_path" in error.fix) == ("evaluate_every", True)


def test_options_of_another_task_are_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    (tmp_path / "a.txt").write_text("A ship.")
    form = Form(
        EvaluateConfig, "evaluate", workspace, check=lambda one: evaluate._check(one, workspace)
    )
    values = {"model": "reader", "task": "text", "path": str(tmp_path / "a.txt")}
    assert refused(form, {**values, "good_field": "good"}).field == "good_field"
