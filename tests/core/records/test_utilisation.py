"""CPU, GPU and memory utilisation of evaluations and fine-tunings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.engines import run_on

RUN = """
import json, sys
from core import EvaluateConfig, FinetuneConfig, Workspace, evaluate, finetune
from core.records.events import read_events
from core.records.utilisation import UtilisationLog
UtilisationLog.__init__.__defaults__ = (0.01,)
workspace, folder = Workspace(sys.argv[1]), sys.argv[2]
evaluate(EvaluateConfig(model="words", path=folder + "/pairs.jsonl"), workspace)
finetune(
    FinetuneConfig(
        model="words", train_path=folder + "/train.tsv", learning_rates="1e-3", engine="jax",
        num_train_epochs=2, max_seq_length=8, per_replica_batch_size=2,
    ),
    workspace,
)
print(json.dumps({
    path.name.partition("-")[0]: [
        [one["step"], one["values"]]
        for one in read_events(path / "events.jsonl")[0] if one["kind"] == "metrics"
    ]
    for path in workspace.runs.iterdir()
}))
"""


@pytest.mark.slow(25)
@pytest.mark.long
def test_evaluation_and_fine_tuning_report_utilisation(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, make_tokenizer(workspace, "byte_level_bpe"))
    row = json.dumps({"sentence_good": "a ship", "sentence_bad": "ship a"})
    (tmp_path / "pairs.jsonl").write_text(row + "\n")
    lines = [f"a ship {number}\t{'xy'[number % 2]}" for number in range(12)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    found = run_on("jax", RUN, workspace.root, tmp_path)
    assert sorted(found) == ["evaluate", "finetune"]
    for stage, metrics in found.items():
        used = [(step, values) for step, values in metrics if "cpu_percent" in values]
        assert used, stage
        assert all(values["memory_gib"] > 0 for _, values in used)
        steps = [step for step, _ in used]
        assert steps == sorted(steps) and steps[0] >= 0
    # Of fine-tuning, the steps are those of the loss; of an evaluation, they are seconds.
    last = max(step for step, values in found["finetune"] if "eval_loss" in str(values))
    assert max(step for step, values in found["finetune"]) == last
