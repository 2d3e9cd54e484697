"""Sample predictions and utilisation are reported during training, and don't change it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.records.events import Reporter
from core.records.utilisation import UtilisationMeter
from core.shards.build import build
from core.tokenizer.training import train as train_tokenizer
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.engines import OFTEN, run_on

# Trains each family twice, watched and not, and prints the hashes of the last state.
_SCRIPT = """
import json, os, sys
from hashlib import sha256
from core import TrainConfig, Workspace
from core.records.events import FolderReporter, read_events
from core.inference import generate
from core.training.trainer import train
from core.records.utilisation import UtilisationLog

UtilisationLog.__init__.__defaults__ = (0.01,)
workspace = Workspace(sys.argv[1])
engine = os.environ["KERAS_BACKEND"]
said = {}
for family, shards in json.loads(sys.argv[2]).items():
    for watched in (True, False):
        config = TrainConfig(
            preset="custom", shards=shards, engine=engine, device="cpu", family=family,
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, per_replica_batch_size=8,
            num_train_steps=8, eval_steps=4, save_steps=4, logging_steps=2, name="",
            sample_predictions=3 if watched else 0, log_utilisation=watched)
        folder = workspace.runs / f"{engine}-{family}-{watched}"
        reporter = FolderReporter(folder, echo=False)
        model = train(config, workspace, reporter)
        reporter.close()
        last = max((folder / "checkpoints").glob("step-*"))
        files = ("model.safetensors", "training_state.safetensors")
        events, _ = read_events(folder / "events.jsonl")
        found = said.setdefault(family, {"weights": [], "losses": [], "samples": [], "names": []})
        state = b"".join((last / one).read_bytes() for one in files)
        found["weights"].append(sha256(state).hexdigest())
        metrics = [one for one in events if one["kind"] == "metrics"]
        losses = [one["values"]["loss"] for one in metrics if "loss" in one["values"]]
        found["losses"].append(losses)
        found["names"].append(sorted({name for one in metrics for name in one["values"]}))
        found["samples"].append([one for one in events if one["kind"] == "samples"])
        if family == "gpt2" and watched:
            given = found["samples"][0][-1]["samples"][0]["given"]
            more = {"max_new_tokens": 6, "temperature": 0.0, "workspace": workspace}
            found["greedy"] = generate(model.path, given, **more)["text"]
        found["notes"] = [one["message"] for one in events if one["kind"] == "note"]
print(json.dumps(said))
"""
_FAMILIES = {
    "tensorflow": {"bert": "rows", "t5": "spans"},
    "jax": {"gpt2": "rows"},
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_inputs(tmp_path_factory.mktemp("samples"))
    corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
    spans = TokenizerConfig(
        name="spans", preset="custom", algorithm="sentencepiece_unigram", corpus=corpus,
        vocab_size=80, sentinels=8,
    )  # fmt: skip
    train_tokenizer(spans, workspace, Reporter())
    build(
        ShardConfig(
            name="spans", preset="custom", corpus=corpus, tokenizer="spans", max_seq_length=24,
            objective="span_corruption",
        ),
        workspace,
        Reporter(),
    )  # fmt: skip
    return workspace


@pytest.mark.slow(30)
@pytest.mark.long
@pytest.mark.parametrize("engine", OFTEN)
def test_watched_run_is_bit_identical_and_shows_predictions(
    engine: str, workspace: Workspace
) -> None:
    said = run_on(engine, _SCRIPT, workspace.root, json.dumps(_FAMILIES[engine]))
    for family, found in said.items():
        assert found["weights"][0] == found["weights"][1], family
        assert found["losses"][0] == found["losses"][1] and len(found["losses"][0]) == 4
        assert {"cpu_percent", "memory_gib"} <= set(found["names"][0])
        assert "cpu_percent" not in found["names"][1] and found["samples"][1] == []
        shown = found["samples"][0]
        assert [one["step"] for one in shown] == [4, 8], found["notes"]
        if family == "gpt2":
            words = found["greedy"].split()[:3]
            assert words and shown[-1]["samples"][0]["text"].split()[:3] == words
        for one in shown[-1]["samples"]:
            _check_sample(family, one)


def _check_sample(family: str, sample: dict[str, Any]) -> None:
    if family == "gpt2":
        assert sample["given"] and "text" in sample
    elif family == "t5":
        assert "<extra_id_0>" in sample["given"] and "<extra_id_0>" in sample["wanted"]
    else:
        masked = [part for part in sample["parts"] if isinstance(part, list)]
        assert masked and all(len(part) == 2 for part in masked)


def test_utilisation_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(
        "from types import SimpleNamespace as S\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 3\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetUtilizationRates(index): return S(gpu=20 * index)\n"
        "def nvmlDeviceGetMemoryInfo(index): return S(used=index << 30)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    values = UtilisationMeter().read()
    assert values["gpu_percent"] == 30 and values["gpu_memory_gib"] == 3
    assert 0 < values["memory_gib"] < 100 and 0 <= values["cpu_percent"] < 200
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert set(UtilisationMeter().read()) == {"cpu_percent", "memory_gib"}
