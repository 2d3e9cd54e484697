"""A run reports its resolved settings and its total time consistently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import main
from core.api import build_shards, train_tokenizer
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.publishing.card_notes import CardNotes
from core.publishing.cards import model_card
from core.publishing.facts import gather_facts
from core.records.events import FolderReporter, Reporter
from core.records.folder import RunFolder
from core.report.page import report_page
from core.report.settings import list_settings
from core.runs.client import config_of
from core.runs.duration import run_seconds
from core.store import Store
from core.training.run_setup import RunSetup
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker
from tests.engines import run_anew
from tests.texts import write_sentences

CODE = """
import json, sys
from core.config import TrainConfig
from core.runs.local import run_here
from core.workspace import Workspace
config = TrainConfig(
    shards="rows", name="model", num_hidden_layers=1, hidden_size=32, num_attention_heads=2,
    per_replica_batch_size=8, num_train_steps=4, engine=sys.argv[2],
)
model = run_here("train", config, Workspace(sys.argv[1]), "train-open")
print(json.dumps(model.manifest.config["learning_rate"]))
"""


@pytest.mark.slow(10)
def test_run_reports_its_resolved_settings_and_its_total_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    corpus = CorpusConfig(source="files", path=str(write_sentences(tmp_path / "text.txt")))
    train_tokenizer(TokenizerConfig(corpus=corpus, vocab_size=150, name="words"), workspace)
    rows = ShardConfig(corpus=corpus, tokenizer="words", name="rows", max_seq_length=16)
    build_shards(rows, workspace)
    rate = run_anew("tensorflow", CODE, str(workspace.root), "tensorflow")
    folder = RunFolder.of(workspace, "train-open")
    used = folder.resolved()
    assert used["learning_rate"] == rate > 0
    assert used["dtype_policy"] in ("float32", "mixed_bfloat16")
    assert (used["device"], used["num_devices"], used["objective"]) == ("cpu", 1, "mlm")
    assert (used["num_train_steps"], used["hidden_size"]) == (4, 32)

    assert main(["runs", "show", "train-open", "--json", "--workspace", str(workspace.root)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    stop_worker(workspace)
    row = Store.open(workspace).find_run("train-open")
    seconds = run_seconds(workspace, row)
    assert seconds and told["seconds"] == pytest.approx(seconds, abs=0.1)
    settings = dict(list_settings(config_of(row), used))
    assert settings["Learning rate"] == f"{rate:.6g} (auto)"
    assert settings["Precision"] == f"{used['dtype_policy']} (auto)"
    page = report_page(workspace, Store.open(workspace), row)
    minutes, rest = divmod(round(seconds), 60)
    took = f"took {minutes} min {rest} s" if minutes else f"took {rest} s"
    assert f"{rate:.6g} (auto)" in page and took in page
    assert "Accuracy on validation masks" in page
    facts = gather_facts(workspace.find("model", "model").path, workspace)
    assert facts.seconds == pytest.approx(seconds, abs=1.0)
    assert facts.config["dtype_policy"] == used["dtype_policy"]
    card = model_card(facts, CardNotes(repo_id="me/model"))
    assert "| Accuracy on validation masks |" in card and "`auto`" not in card


def test_run_that_starts_again_keeps_the_learning_rate_of_its_first_attempt(tmp_path: Path) -> None:
    reporter = FolderReporter(tmp_path)
    reporter.event("resolved", settings={"learning_rate": 0.012}, tokens_per_step=64)
    reporter.close()
    unused: Any = None
    for given, expected in ((None, 0.012), (0.5, 0.5)):
        config = TrainConfig(learning_rate=given)
        setup = RunSetup(config, unused, unused, unused, tmp_path, Reporter())
        assert setup.with_rate_of_first_attempt().learning_rate == expected
