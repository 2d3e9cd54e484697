"""A family needs one file: `toy_family.py` adds one to training and inference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest

from core import families
from core.config.presets import write_up_of
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.families import families_of_objective, register, title_of_family
from core.models.registry import resolve_architecture
from core.training.recipe import resolve_learning_rate
from core.workspace.workspace import Workspace
from tests.core.models.toy_family import FAMILY, ToyArchitecture
from tests.core.training.test_trainer import make_inputs
from tests.engines import run_on
from ui.forms import Form

ROOT = Path(__file__).parents[3]
# The only file that declares the family.
FILES = ("tests/core/models/toy_family.py",)

_SCRIPT = """
import json, sys
import numpy as np
from core import TrainConfig, Workspace, fill_mask, train
from core.inference import FillMask
from core.models import hf
from core.families import register
from tests.core.models.toy_family import FAMILY

register(FAMILY)
workspace = Workspace(sys.argv[1])
config = TrainConfig(
    family="toy", size="tiny", shards="rows", device="cpu", engine="tensorflow",
    per_replica_batch_size=8, num_train_steps=2, name="first",
)
folder = train(config, workspace).path
architecture, weights = hf.read_architecture(folder), hf.read_weights(folder)
model = hf.load_model(folder)
text = "the [MASK] sees"
print(json.dumps({
    "model_type": architecture.model_type,
    "reach": architecture.reach,
    "config": json.loads((folder / "config.json").read_text()),
    "loaded": all(np.array_equal(weights[one.path], one.numpy()) for one in model.weights),
    "tensors": len(weights),
    "openvino": [one["score"] for one in fill_mask("first", text, workspace=workspace)],
    "tensorflow": [one["score"] for one in FillMask(folder, on_engine=True)([text])[0]],
}))
"""


@pytest.fixture
def toy() -> Iterator[str]:
    register(FAMILY)
    yield FAMILY.name
    del families._families[FAMILY.name]


def resolve(family: str, **values: object) -> ToyArchitecture:
    config = TrainConfig(family=family, **values)
    found = resolve_architecture(config, vocab_size=60, row_length=16, pad_id=1)
    assert isinstance(found, ToyArchitecture)
    return found


def test_family_needs_one_file() -> None:
    naming = [
        str(path.relative_to(ROOT))
        for folder in ("core", "ui", "tests/core/models")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "name=" + '"toy"' in path.read_text("utf-8")
    ]
    assert tuple(naming) == FILES


def test_toy_family_is_configured(toy: str) -> None:
    assert resolve(toy).num_hidden_layers == 2
    assert resolve(toy, num_hidden_layers=3, hidden_size=128).num_attention_heads == 2
    with pytest.raises(ConfigError, match="The family toy has no size large"):
        resolve(toy, size="large")


def test_toy_family_has_its_own_presets_and_recipe(toy: str) -> None:
    assert TrainConfig(family=toy).mlm_probability == 0.25
    assert TokenizerConfig(family=toy, preset="classic").vocab_size == 500
    write_up = write_up_of("classic", toy)
    assert write_up is not None and write_up.source == "toy.txt"
    assert write_up_of("flax", toy) is None
    rates = []
    for family in ("bert", toy):
        config = TrainConfig(family=family, hidden_size=64)
        found = resolve_architecture(config, vocab_size=60, row_length=16, pad_id=1)
        rates.append(resolve_learning_rate(config, found).learning_rate)
    assert rates[1] == pytest.approx(rates[0] * 0.5 / 1.5)


def test_forms_offer_the_toy_family(toy: str, tmp_path: Path) -> None:
    for config in (TrainConfig, TokenizerConfig):
        with gr.Blocks():
            form = Form(config, "form", Workspace(tmp_path))
            form.render()
        assert (toy, toy) in form.components["family"].choices
    assert toy in families_of_objective("mlm")
    assert title_of_family(toy) == "Toy"


@pytest.mark.slow(2)
def test_toy_family_is_trained_saved_loaded_and_used(tmp_path: Path) -> None:
    said = run_on("tensorflow", _SCRIPT, make_inputs(tmp_path).root)
    assert (said["model_type"], said["reach"], said["loaded"]) == ("toy", 4, True)
    assert said["config"]["architectures"] == ["ToyForMaskedLM"]
    assert said["config"]["attention_reach"] == 4
    assert said["tensors"] == len(
        list(FAMILY.weight_mapping(ToyArchitecture(60, 64, 1, 1, 256, 16, 1)))
    )
    assert len(said["openvino"]) == 5
    assert said["openvino"] == pytest.approx(said["tensorflow"], rel=1e-3)


def test_unregistered_family_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig(family="toy")
    assert error.value.field == "family"
    names = [repr(name) for name in families.list_family_names()]
    assert error.value.expected == f"{', '.join(names[:-1])} or {names[-1]}"
