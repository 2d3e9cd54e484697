"""Logits of fine-tuned models equal those of transformers on PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.architecture.heads import Head
from core.errors import CheckpointError, ConfigError, CorpusError
from core.finetuning.heads import body_mappings, classifier_class, find_head, head_mappings
from core.finetuning.saving import (
    ClassifierConfig,
    Weights,
    check_loadable,
    read_classifier_config,
    read_classifier_weights,
)
from core.finetuning.target_scale import TargetScale, in_original_units
from core.models import hf
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import FAMILIES, write_models
from tests.core.finetuning.examples import HEADS, LABELS, PAIRS, TEXTS
from tests.core.finetuning.reference import Reference
from tests.engines import ENGINES, run_on

CASES = [*(f"{family}-{kind}" for family, kind in HEADS), "bert-sequence-pairs"]
MOST_DIFFERENCE = 1e-4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace)
    return workspace.folder("model")


@pytest.fixture(scope="module", params=ENGINES)
def classifiers(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    run_on(request.param, "from tests.core.finetuning import computing; computing.main()",
           models, folder)  # fmt: skip
    return folder


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(classifiers: Path, case: str) -> None:
    folder = classifiers / case
    reference = Reference(folder)
    texts = PAIRS if case.endswith("pairs") else TEXTS
    theirs, ours = reference.logits(list(texts)), np.load(folder / "logits.npy")
    assert not reference.problems
    if "token" in case.split("-"):
        lengths = [len(ids) for ids in reference.tokenizer([one for (one,) in TEXTS]).input_ids]
        pairs = [(theirs[row, :stop], ours[row, :stop]) for row, stop in enumerate(lengths)]
    else:
        pairs = [(theirs, ours[:, 0])]
    assert max(np.abs(one - other).max() for one, other in pairs) < MOST_DIFFERENCE
    assert np.ptp(theirs) > 10 * MOST_DIFFERENCE, "the texts differ"


@pytest.mark.long
@pytest.mark.parametrize("case", ["bert-token", "gpt2-sequence"])
def test_written_classifier_is_read_back(classifiers: Path, case: str) -> None:
    config = read_classifier_config(classifiers / case)
    assert config.labels == LABELS and config.kind == case.split("-")[1]
    weights = read_classifier_weights(classifiers / case, config)
    assert weights["classifier/output/kernel"].shape == (32, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_scale_of_numbers_is_folded_into_the_output_layer(models: Path, family: str) -> None:
    config = ClassifierConfig(hf.read_architecture(models / family), "sequence", ())
    generator = np.random.default_rng(0)
    mappings = [
        *body_mappings(config.architecture, config.head),
        *head_mappings(config.architecture, config.head, 1),
    ]
    weights = {one.path: generator.normal(0, 0.2, one.shape).astype(np.float32) for one in mappings}
    adds_constant = config.head.adds_constant
    scale = TargetScale(mean=1e5 if adds_constant else 0.0, deviation=1e3)
    folded = in_original_units(weights, config, scale)
    changed = {path for path in weights if not np.array_equal(weights[path], folded[path])}
    inputs = generator.normal(size=(4, len(weights["classifier/output/kernel"])))
    before, after = (_logits(inputs, one, config.head) for one in (weights, folded))
    assert after == pytest.approx(before * 1e3 + scale.mean, rel=1e-6)
    offset = "output/bias" if config.head.has_bias else "final_norm/bias"
    assert {path.split("/", 1)[1].removeprefix("decoder/") for path in changed} == {
        "output/kernel", *([offset] if adds_constant else ()),
    }  # fmt: skip
    assert all(one.dtype == np.float32 for one in folded.values())


def _logits(inputs: Any, weights: Weights, head: Head) -> Any:
    """Computes the output layer; without a bias, it may read inputs plus the last norm's."""
    if head.has_bias:
        offset = weights["classifier/output/bias"].astype(float)
        return inputs @ weights["classifier/output/kernel"] + offset
    if head.offset:
        inputs = inputs + weights["gpt2/decoder/final_norm/bias"]
    return inputs @ weights["classifier/output/kernel"]


@pytest.mark.parametrize(
    ("names", "is_loadable"),
    [
        (("a" * 200, "b"), True),
        (("a" * 201, "b"), False),
        ([str(n) for n in range(10_000)], True),
        ([str(n) for n in range(10_001)], False),
        ([f"{n:0200}" for n in range(9_000)], True),
        ([f"{n:0200}" for n in range(10_000)], False),
        ([f"{n}\x01" + "한" * 190 for n in range(5_000)], False),
    ],
)
def test_labels_are_refused_exactly_if_the_model_could_not_be_loaded(
    models: Path, tmp_path: Path, names: Sequence[str], is_loadable: bool
) -> None:
    architecture = hf.read_architecture(models / "bert")
    config = ClassifierConfig(architecture, "sequence", tuple(names))
    text = json.dumps(config.values(), indent=2, ensure_ascii=False) + "\n"
    (tmp_path / "config.json").write_text(text, "utf-8")
    if is_loadable:
        check_loadable(config)
        assert read_classifier_config(tmp_path).labels == tuple(names)
        return
    with pytest.raises(CorpusError, match="couldn't be loaded again") as caught:
        check_loadable(config)
    assert caught.value.field == "label_column"
    with pytest.raises(CheckpointError):
        read_classifier_config(tmp_path)


def test_bart_has_no_head_for_tokens(models: Path) -> None:
    with pytest.raises(ConfigError, match="BART can't be fine-tuned for this task"):
        find_head(hf.read_architecture(models / "bart"), "token")


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_exist_in_transformers(models: Path, family: str) -> None:
    import transformers

    architecture = hf.read_architecture(models / family)
    name = classifier_class(architecture, "sequence")
    assert name.endswith("ForSequenceClassification") and hasattr(transformers, name)


def test_pretrained_model_is_not_a_classifier(models: Path) -> None:
    with pytest.raises(ConfigError, match="isn't fine-tuned"):
        read_classifier_config(models / "bert")
