"""Every family trains on its objective, and its result is an ordinary checkpoint."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, TokenizerError
from core.objectives.span_corruption import SpanCorruption, compute_input_and_target_lengths
from core.records.events import Reporter
from core.shards.build import build
from core.shards.layout import layout_for
from core.tokenizer.training import train as train_tokenizer
from core.training.inputs import open_inputs
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.engines import ENGINES, OFTEN, run_on

# Trains each family in one process; the arguments are the workspace and the settings by name.
_SCRIPT = """
import json, os, sys
from core import TrainConfig, Workspace, train
from core.models import hf

workspace = Workspace(sys.argv[1])
engine = os.environ["KERAS_BACKEND"]
said = {}
for name, values in json.loads(sys.argv[2]).items():
    config = TrainConfig(**{
        "preset": "custom", "shards": "rows", "engine": engine, "device": "cpu",
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "per_replica_batch_size": 16, "num_train_steps": 250, "eval_steps": 250,
        "optimizer": "muon", "learning_rate": 2e-2, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "name": f"{name}-{engine}", **values})
    artifact = train(config, workspace)
    weights = hf.read_weights(artifact.path)
    said[name] = {**artifact.manifest.counts, "path": str(artifact.path), "weights": len(weights)}
    if engine == "jax" and config.family in ("gpt2", "t5"):
        more = {"checkpoint": artifact.name, "name": "", "num_train_steps": 4}
        again = train(config.model_copy(update={**more, "learning_rate": 1e-5}), workspace)
        said[name]["again"] = again.manifest.counts["eval_loss"]
print(json.dumps(said))
"""
_TRAINED: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert", "learning_rate": 5e-3, "num_train_steps": 400},
    "modernbert": {"family": "modernbert"},
    "gpt2": {"family": "gpt2"},
    "t5": {"family": "t5", "shards": "spans", "learning_rate": 1e-2, "num_train_steps": 500},
    "bart": {"family": "bart", "shards": "sentences", "learning_rate": 1e-2},
    "lines": {"family": "roberta", "shards": "lines", "learning_rate": 1e-2},
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_inputs(tmp_path_factory.mktemp("families"))
    corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
    spans = TokenizerConfig(
        name="spans", preset="custom", algorithm="sentencepiece_unigram", corpus=corpus,
        vocab_size=80, sentinels=8,
    )  # fmt: skip
    train_tokenizer(spans, workspace, Reporter())
    for name, tokenizer, values in (
        ("spans", "spans", {"objective": "span_corruption", "max_seq_length": 24}),
        (
            "noisier",
            "spans",
            {
                "objective": "span_corruption",
                "max_seq_length": 24,
                "mlm_probability": 0.3,
                "mean_noise_span_length": 2,
            },
        ),
        ("sentences", "words", {"objective": "denoising", "max_seq_length": 32}),
        ("lines", "words", {"line_by_line": True, "max_seq_length": 24}),
    ):
        config = ShardConfig(
            name=name, preset="custom", corpus=corpus, tokenizer=tokenizer, **values
        )
        build(config, workspace, Reporter())
    return workspace


@cache
def _trained(engine: str, root: Path) -> dict[str, Any]:
    return run_on(engine, _SCRIPT, root, json.dumps(_TRAINED))


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", _TRAINED)
@pytest.mark.parametrize("engine", OFTEN)
@pytest.mark.long
def test_family_learns_more_than_token_frequencies(
    engine: str, name: str, workspace: Workspace
) -> None:
    counts = _trained(engine, workspace.root)[name]
    assert counts["eval_loss"] < counts["frequency_baseline_loss"] - 0.1
    assert counts["weights"] > 5


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.thorough), "t5"])
@pytest.mark.long
def test_training_continues_from_a_familys_checkpoint(name: str, workspace: Workspace) -> None:
    counts = _trained("jax", workspace.root)[name]
    assert counts["again"] == pytest.approx(counts["eval_loss"], abs=0.02)


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", _TRAINED)
@pytest.mark.thorough
def test_backends_agree_on_the_trained_loss(name: str, workspace: Workspace) -> None:
    tensorflow, jax = (_trained(engine, workspace.root)[name] for engine in ENGINES)
    assert tensorflow["frequency_baseline_loss"] == jax["frequency_baseline_loss"]
    assert tensorflow["eval_loss"] == pytest.approx(jax["eval_loss"], abs=0.02)


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        (
            {"family": "gpt2", "objective": "mlm"},
            "objective",
            "family gpt2 can't train with the objective mlm",
        ),
        (
            {"family": "roberta", "objective": "clm"},
            "objective",
            "family roberta can't train with the objective clm",
        ),
        ({"family": "t5"}, "family", "doesn't suit the family t5"),
        ({"family": "bert", "shards": "spans"}, "family", "doesn't suit the family bert"),
        ({"family": "gpt2", "shards": "spans"}, "shards", "built for another objective"),
        (
            {"family": "t5", "shards": "spans", "mlm_probability": 0.4},
            "mlm_probability",
            "built with other masking settings",
        ),
        (
            {"family": "t5", "shards": "noisier", "mean_noise_span_length": 6},
            "mean_noise_span_length",
            "built with other masking settings",
        ),
        ({"family": "bart"}, "shards", "built for another objective"),
    ],
)
def test_incompatible_family_objective_or_shards_are_refused(
    values: dict[str, str], field: str, message: str, workspace: Workspace
) -> None:
    config = TrainConfig(**{"preset": "custom", "shards": "rows", "size": "tiny", **values})
    with pytest.raises((ConfigError, TokenizerError), match=message) as raised:
        open_inputs(config, workspace)
    assert raised.value.field == field


def test_shards_may_have_another_noise_than_published(workspace: Workspace) -> None:
    config = TrainConfig(preset="custom", shards="noisier", family="t5", size="tiny")
    inputs = open_inputs(config, workspace)
    for objective in (inputs.objective, inputs.eval_objective):
        assert isinstance(objective, SpanCorruption)
        assert (objective.noise_density, objective.mean_noise_span_length) == (0.3, 2)
        stored, _ = compute_input_and_target_lengths(24, 0.3, 2)
        assert objective.row_length == inputs.shards.row_length == stored
        batch = objective.batch(inputs.train_rows.take(np.arange(2)), 0, 0)
        assert batch["input_ids"].shape == (2, 24)
    values = {"objective": "mlm", "mlm_probability": 0.3}
    with pytest.raises(ConfigError, match="no effect on sequences for mlm"):
        layout_for(ShardConfig(**values))
