"""Scores of classifiers from the Hub equal those of transformers' pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import classify
from core.finetuning.heads import body_mappings, head_mappings
from core.finetuning.saving import (
    ClassifierConfig,
    read_classifier_config,
    write_classifier,
    write_tokenizer,
)
from core.models import hf
from core.tokenizer import load
from core.workspace import Workspace
from tests.core.evaluation.models import write_models

TEXT = "the small cat runs"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model with random weights."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace, ("bert",))
    return workspace.folder("model") / "bert"


def write(source: Path, folder: Path, outputs: int, **changes: Any) -> Path:
    """Writes a classifier with random weights, and changes its config; None removes a value."""
    names = tuple(f"class {number}" for number in range(outputs))
    config = ClassifierConfig(hf.read_architecture(source), "sequence", names)
    mappings = [
        *body_mappings(config.architecture, config.head),
        *head_mappings(config.architecture, config.head, outputs),
    ]
    draw = np.random.default_rng(0).normal
    weights = {one.path: draw(0, 0.5, one.shape).astype(np.float32) for one in mappings}
    write_classifier(folder, weights, config)
    write_tokenizer(folder, load(str(source)), segments=False)
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), "problem_type": None, **changes}
    kept = {name: value for name, value in values.items() if value is not None}
    path.write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize(
    ("outputs", "changes", "function"),
    [
        (1, {}, "sigmoid"),
        (1, {"id2label": None, "label2id": None, "num_labels": 1}, "sigmoid"),
        (1, {"problem_type": "regression"}, "none"),
        (3, {"problem_type": "regression"}, "none"),
        (3, {"problem_type": "multi_label_classification"}, "sigmoid"),
        (3, {"problem_type": "single_label_classification"}, "softmax"),
        (3, {}, "softmax"),
    ],
)
@pytest.mark.long
def test_scores_equal_those_of_the_pipeline(
    source: Path, tmp_path: Path, outputs: int, changes: dict[str, Any], function: str
) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    from transformers import pipeline

    folder = write(source, tmp_path, outputs, **changes)
    assert read_classifier_config(folder).score_function == function
    theirs = pipeline("text-classification", str(folder), device="cpu")(TEXT, top_k=None)
    ours = classify(folder, TEXT)
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    scores = [one["score"] for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("type", ["regression", "multi_label_classification"])
def test_type_and_labels_of_a_classifier_are_kept(source: Path, tmp_path: Path, type: str) -> None:
    config = read_classifier_config(write(source, tmp_path, 2, problem_type=type))
    values = config.values()
    assert (values["problem_type"], config.outputs) == (type, 2)
    assert values["id2label"] == {"0": "class 0", "1": "class 1"}
