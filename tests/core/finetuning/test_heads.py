"""Logits of fine-tuned models equal those of transformers on PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.errors import ConfigError
from core.finetuning.heads import HEADS, classifier_class, find_head
from core.finetuning.saving import read_classifier_config, read_classifier_weights
from core.models import hf
from core.workspace import Workspace
from tests.core.evaluation.models import write_models
from tests.core.finetuning.examples import LABELS, PAIRS, TEXTS
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


def test_bart_has_no_head_for_tokens(models: Path) -> None:
    with pytest.raises(ConfigError, match="BART can't be fine-tuned for this task"):
        find_head(hf.read_architecture(models / "bart"), "token")


@pytest.mark.parametrize("family", ["roberta", "bert", "modernbert", "gpt2", "t5", "bart"])
def test_classes_exist_in_transformers(models: Path, family: str) -> None:
    import transformers

    architecture = hf.read_architecture(models / family)
    name = classifier_class(architecture, "sequence")
    assert name.endswith("ForSequenceClassification") and hasattr(transformers, name)


def test_pretrained_model_is_not_a_classifier(models: Path) -> None:
    with pytest.raises(ConfigError, match="isn't fine-tuned"):
        read_classifier_config(models / "bert")
