"""The Train tab: families offered for the chosen shards, forecasts and explanations."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.backends.devices import Hardware
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.families import list_family_names
from core.records.events import Reporter
from core.shards.build import build
from core.shards.read import open_shards
from core.storage.files import RemoteFolder, upload_folder
from core.tokenizer.training import train
from core.workspace.confinement import ALLOWED_PATHS_VARIABLE
from core.workspace.workspace import Workspace
from tests.texts import write_sentences
from ui import layout
from ui import shards as shards_tab
from ui import train as tab

FIELDS = TrainConfig.preset_fields()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("train")
    path = write_sentences(root / "text.txt", 400)
    workspace = Workspace(root / "workspace")
    corpus = CorpusConfig(source="files", path=str(path))
    for family, objective, size in (("gpt2", "mlm", 300), ("t5", "span_corruption", 190)):
        train(
            TokenizerConfig(name=family, family=family, corpus=corpus, vocab_size=size), workspace
        )
        values = {"corpus": corpus, "tokenizer": family, "max_seq_length": 32}
        build(ShardConfig(name=objective, objective=objective, **values), workspace)
    return workspace


@pytest.fixture(scope="module")
def offer(workspace: Workspace) -> Callable[..., list[Any]]:
    page = layout.build_page(workspace)
    [found] = [fn.fn for fn in page.fns.values() if getattr(fn.fn, "__name__", "") == "offer"]
    return found


def shown(preset: str, family: str, **typed: str) -> dict[str, str]:
    """Returns the field values of a preset, some of them overridden."""
    with gr.Blocks():
        form = tab.Form(TrainConfig, "train", Workspace("."))
        form.render()
    return {**form._filled(preset, family), **typed}


def values_of(menu: dict[str, Any]) -> list[str]:
    """Returns the choices of a menu without their labels."""
    return [value for _, value in menu["choices"]]


def test_only_families_that_suit_shards_and_tokenizer_are_offered(
    workspace: Workspace, offer: Callable[..., list[Any]]
) -> None:
    family, objective, why, *_ = offer("mlm", "roberta", "mlm", "flax", shown("flax", "t5"))
    assert values_of(family) == ["roberta", "bert", "modernbert", "llama", "qwen3", "gpt2"]
    assert family["value"] == "roberta"
    assert objective == gr.skip()
    assert "Not offered: T5: the tokenizer lacks sentinels" in why.replace("&lt;", "<")
    assert "BART: the shards were built for the objective Masked LM (BERT)" in why


def test_unsuitable_family_is_replaced_together_with_its_preset_values(
    offer: Callable[..., list[Any]],
) -> None:
    before = shown("flax", "roberta", warmup_steps="7")
    family, objective, why, *values = offer("span_corruption", "roberta", "mlm", "flax", before)
    after = dict(zip(FIELDS, values, strict=True))
    assert (values_of(family), family["value"], objective) == (["t5"], "t5", "auto")
    assert "RoBERTa, BERT, ModernBERT, BART: the tokenizer lacks a mask token" in why
    assert (after["optimizer"], after["learning_rate"]) == ("adafactor", "0.005")
    assert after["warmup_steps"] == gr.skip()


def test_all_families_are_offered_if_new_shards_will_be_built(
    offer: Callable[..., list[Any]],
) -> None:
    family, _, why, *_ = offer("mlm", "roberta", "auto", "flax", shown("flax", "roberta"), True)
    assert len(family["choices"]) == len(list_family_names()) and why == ""
    with pytest.raises(ConfigError, match="built for another objective"):
        tab._check_shards_fit(ShardConfig(objective="mlm"), TrainConfig(family="t5"))
    with pytest.raises(ConfigError, match="doesn't fit the objective span_corruption"):
        shards_tab._check_tokenizer_fits(
            TokenizerConfig(), ShardConfig(objective="span_corruption")
        )
    shards_tab._check_tokenizer_fits(
        TokenizerConfig(family="t5"), ShardConfig(objective="span_corruption")
    )


def test_remote_shards_are_fetched_only_by_the_run(
    workspace: Workspace, offer: Callable[..., list[Any]]
) -> None:
    rows, place = workspace.find("shards", "mlm"), "memory://far/rows"
    upload_folder(rows.path, RemoteFolder(place), Reporter())
    with workspace.new_artifact("shards", "far") as draft:
        draft.location, draft.fingerprint = place, rows.fingerprint
    for name in ("far", place, "some/rows"):
        family, _, why, *_ = offer(name, "roberta", "auto", "flax", shown("flax", "roberta"))
        assert len(family["choices"]) == len(list_family_names()) and why == ""
        assert (
            "fetches them first" in tab.forecast_training(TrainConfig(shards=name), workspace).facts
        )
    assert "aren't on this machine" in shards_tab._show_sequence("far", workspace)
    assert not workspace.cache.joinpath("shards").exists()
    open_shards("far", workspace)
    assert "Not offered: T5" in offer("far", "roberta", "mlm", "flax", shown("flax", "t5"))[2]
    assert "masked" in shards_tab._show_sequence("far", workspace)


def test_shards_outside_the_allowed_paths_are_not_read(
    workspace: Workspace,
    offer: Callable[..., list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(workspace.find("shards", "mlm").path, tmp_path / "rows")
    asked = (str(folder), "roberta", "mlm", "flax", shown("flax", "roberta"))
    assert len(offer(*asked)[0]["choices"]) == len(list_family_names())
    monkeypatch.setenv(ALLOWED_PATHS_VARIABLE, str(tmp_path))
    assert len(offer(*asked)[0]["choices"]) == len(list_family_names()) - 2


def test_forecast_counts_all_devices_of_the_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = Hardware(gpus=("/dev/nvidia0", "/dev/nvidia1"), tpus=(), jax_gpu=True, jax_tpu=False)
    monkeypatch.setattr(tab, "find_hardware", lambda: hardware)
    for tokens, values in (
        (256, {}),
        (512, {"num_devices": 4}),
        (128, {"device": "cpu"}),
        (128, {"device": "tpu"}),  # It is missing, as the hardware line says.
    ):
        config = TrainConfig(shards="mlm", per_replica_batch_size=4, **values)
        facts = tab.forecast_training(config, workspace).facts
        assert f"<b>{tokens}</b><span>tokens per step</span>" in facts, values
    with pytest.raises(ConfigError, match="on 2 devices"):
        tab.forecast_training(TrainConfig(shards="mlm", per_replica_batch_size=5000), workspace)


def test_tab_names_the_source_of_the_preset_values() -> None:
    words = tab._write_up(TrainConfig(preset="flax", family="gpt2"))
    assert "perplexity 25.72" in words and "#causal-language-modeling" in words
    assert tab._write_up(TrainConfig(preset="custom")) == ""


@pytest.mark.parametrize("family", ["roberta", "bert", "modernbert", "gpt2", "t5", "bart"])
def test_more_masking_is_mentioned_only_for_families_that_mask(family: str) -> None:
    config = TrainConfig(preset="fast", family=family)
    words = tab._write_up(config)
    assert ("more masking" in words) is (config.mlm_probability is not None)
    assert "Muon, no dropout" in words and "token embeddings" in words
