"""Fine-tuned models are fine-tuned again, but not evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core import evaluate
from core.architecture.heads import Kind
from core.config.evaluate import EvaluateConfig
from core.errors import ConfigError
from core.finetuning.heads import body_mappings, head_mappings
from core.finetuning.saving import (
    ClassifierConfig,
    read_body_weights,
    write_classifier,
    write_tokenizer,
)
from core.finetuning.subjects import check_tunable
from core.inference.masks import fill_mask
from core.models import hf
from core.models.hf import check_pretrained
from core.tokenizer.loading import load
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import write_models
from tests.core.finetuning.examples import HEADS, LABELS

CASES = [(family, own, wanted) for family, own in HEADS for known, wanted in HEADS
         if known == family]  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with pretrained models, and their classifiers named FAMILY-KIND."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace)
    for family, kind in HEADS:
        source = workspace.folder("model") / family
        config = ClassifierConfig(hf.read_architecture(source), kind, LABELS)
        body = read_body_weights(source, config.architecture, config.head)
        head = head_mappings(config.architecture, config.head, config.outputs)
        weights = {**body, **{one.path: np.zeros(one.shape, np.float32) for one in head}}
        with workspace.new_artifact("model", f"{family}-{kind}") as draft:
            write_classifier(draft.folder, weights, config)
            write_tokenizer(draft.folder, load(str(source)), segments=False)
    return workspace


@pytest.mark.parametrize(("family", "own", "wanted"), CASES)
def test_fine_tuning_goes_on_from_the_weights_of_a_fine_tuned_model(
    workspace: Workspace, family: str, own: Kind, wanted: Kind
) -> None:
    folder = workspace.folder("model") / f"{family}-{own}"
    if (family, own, wanted) == ("t5", "token", "sequence"):
        with pytest.raises(ConfigError, match="it has no decoder"):
            check_tunable(folder, wanted)
        return
    head = check_tunable(folder, wanted)
    architecture = hf.read_architecture(folder)
    found = read_body_weights(folder, architecture, head)
    pretrained = read_body_weights(folder.with_name(family), architecture, head)
    assert (
        found.keys() == pretrained.keys() == {one.path for one in body_mappings(architecture, head)}
    )
    assert all(np.array_equal(found[path], pretrained[path]) for path in found)


@pytest.mark.parametrize("name", ["bert-sequence", "gpt2-token"])
def test_fine_tuned_model_is_not_evaluated(workspace: Workspace, tmp_path: Path, name: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the small cat runs\n")
    with pytest.raises(ConfigError, match="is a fine-tuned model") as caught:
        evaluate(EvaluateConfig(model=name, task="text", path=str(path)), workspace)
    assert caught.value.field == "model"
    with pytest.raises(ConfigError, match="is a fine-tuned model"):
        fill_mask(name, "the [MASK] cat", workspace=workspace)
    check_pretrained(workspace.folder("model") / name.partition("-")[0])
