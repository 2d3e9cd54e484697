"""Scores of classifiers from the Hub equal those of transformers' pipeline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core import classify
from core.errors import CheckpointError, ConfigError
from core.finetuning.encoding import TextEncoder
from core.finetuning.heads import body_mappings, find_head, head_mappings
from core.finetuning.saving import (
    ClassifierConfig,
    begins_without_head,
    read_body_weights,
    read_classifier_config,
    write_classifier,
    write_tokenizer,
)
from core.inference.classification import LoadedClassifier, longest_text
from core.models import hf
from core.tokenizer.loading import load
from core.tokenizer.roles import passes_segments
from core.workspace.manifests import Manifest, write_manifest
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import write_models

TEXT = "the small cat runs"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Pretrained models with random weights."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace, ("bert", "gpt2", "modernbert"))
    return workspace


@pytest.fixture(scope="module")
def source(models: Workspace) -> Path:
    """A pretrained model with random weights."""
    return models.folder("model") / "bert"


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


def change(path: Path, **values: Any) -> None:
    """Changes a JSON file; None removes a value."""
    known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    kept = {name: value for name, value in {**known, **values}.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")


def test_texts_are_cut_where_the_files_say(source: Path, tmp_path: Path) -> None:
    folder = write(source, tmp_path, 2)
    architecture = read_classifier_config(folder).architecture
    positions = architecture.max_seq_length

    def longest(**values: Any) -> int:
        change(folder / "tokenizer_config.json", model_max_length=None, max_len=None)
        change(folder / "tokenizer_config.json", **values)
        return longest_text(folder, architecture, load(str(folder)))

    assert longest() == longest(model_max_length=10**30) == longest(model_max_length=1e30)
    assert longest() == longest(model_max_length=positions + 9) == positions > 12
    # Room for special tokens only.
    assert longest(model_max_length=2) == longest(model_max_length="512") == positions
    assert (longest(model_max_length=12), longest(max_len=11)) == (12, 11)
    write_manifest(folder, Manifest("model", "old", "", config={"max_seq_length": 10}))
    assert longest() == longest(model_max_length=12) == 10


@pytest.mark.parametrize(
    ("values", "has_segments"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "BertTokenizerFast"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"tokenizer_class": "RobertaTokenizer"}, False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}, False),
        ({"tokenizer_class": "RobertaTokenizer", "model_input_names": ["token_type_ids"]}, True),
    ],
)
def test_segments_are_passed_as_by_transformers(
    source: Path, tmp_path: Path, values: dict[str, Any], has_segments: bool
) -> None:
    folder = write(source, tmp_path, 2)
    (folder / "tokenizer_config.json").unlink()
    change(folder / "tokenizer_config.json", **values)
    assert passes_segments(folder) is has_segments
    encoder = LoadedClassifier(folder, "float32").encoder
    (sequence,) = encoder.encode([("the cat", "a dog")])
    assert (sequence.segments is not None and bool(sequence.segments.any())) is has_segments


def test_config_may_say_anything_about_parts_that_a_classifier_lacks(
    source: Path, tmp_path: Path
) -> None:
    folder = write(source, tmp_path, 2, tie_word_embeddings=False, classifier_pooling="mean")
    assert read_classifier_config(folder).outputs == 2
    change(folder / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(ConfigError, match="unsupported model"):
        hf.read_architecture(folder)


@pytest.mark.parametrize(("pad", "pooled"), [(None, "end"), (-1, "end"), (3, "last")])
def test_gpt2_without_padding_reads_the_last_token(
    models: Workspace, tmp_path: Path, pad: int | None, pooled: str
) -> None:
    folder = write(models.folder("model") / "gpt2", tmp_path, 2, pad_token_id=pad)
    config = read_classifier_config(folder)
    assert config.head.pooled == pooled
    encoder = TextEncoder(load(str(folder)), config.architecture, config.head, 16)
    end = config.architecture.pad_token_id
    found = encoder._position(np.array([9, 8, end], np.int32))
    assert found == (2 if pooled == "end" else 1)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_fine_tuning_begins_from_a_model_without_its_head(
    models: Workspace, tmp_path: Path, prefix: str
) -> None:
    """As saved from `ModernBertModel`, or as a part of a module."""
    folder = tmp_path / "headless"
    shutil.copytree(models.folder("model") / "modernbert", folder)
    tensors = load_file(folder / "model.safetensors")
    body = {
        prefix + name.removeprefix("model."): value
        for name, value in tensors.items()
        if not name.startswith(("head.", "decoder."))
    }
    save_file(body, folder / "model.safetensors")
    architecture = hf.read_architecture(folder)
    head = find_head(architecture, "token")
    weights = read_body_weights(folder, architecture, head)
    assert begins_without_head(weights, architecture, head)
    whole = read_body_weights(models.folder("model") / "modernbert", architecture, head)
    assert not begins_without_head(whole, architecture, head)
    assert all(np.array_equal(whole[path], value) for path, value in weights.items())
    with pytest.raises(CheckpointError, match="no tensor"):
        hf.read_weights(folder)
