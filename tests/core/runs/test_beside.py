"""Evaluations of a run that is still training start beside it, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import CorpusConfig, EvaluateConfig, TokenizerConfig, Workspace
from core.__main__ import main
from core.artifacts.checkpoint import Checkpoints
from core.artifacts.subject import is_of_running_run
from core.records.events import FolderReporter
from core.records.folder import RunFolder
from core.records.process import ProcessIdentity
from core.runs.chain import submit_chain
from core.runs.client import ensure_worker, request_stop, submit
from core.store import Store
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.runs.support import begin_run, stop_worker, wait_for, wait_until_ended
from tests.texts import write_sentences

RUN = "train-20250102-030405-ab12"
KEPT = f"{RUN}@words-1000"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace in which a training that has kept a checkpoint occupies the only slot."""
    workspace = Workspace(tmp_path / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, tokenizer)
    folder, reporter = begin_run(workspace, RUN)
    folder.write_processes(run=ProcessIdentity.of_this())
    checkpoints = Checkpoints(folder.path / "checkpoints")
    checkpoints.write_words(1000, {"step": 5}, {}, lambda place: write_checkpoint(place, tokenizer))
    Store.open(workspace).add_request("register", {"run": RUN})
    ensure_worker(workspace)
    yield workspace
    end(folder, reporter)
    stop_worker(workspace)


def end(folder: RunFolder, reporter: FolderReporter) -> None:
    reporter.event("finished", state="stopped", reason="saved")
    reporter.close()
    folder.write_exit(0, None)
    folder.write_processes()


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"sentence_good": "a ship", "sentence_bad": "ship a"}) + "\n")
    return path


@pytest.mark.slow(25)
def test_evaluations_of_a_running_run_start_beside_it_one_at_a_time(
    workspace: Workspace, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(workspace)
    wait_for(lambda: (row := store.get_run(RUN)) and row.state == "running")
    corpus = CorpusConfig(source="files", path=str(write_sentences(pairs.parent / "text.txt")))
    waiting = [
        submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus, vocab_size=80)),
        submit(workspace, "evaluate", EvaluateConfig(model="words", path=str(pairs))),
    ]
    words = ["evaluate", "--model", KEPT, "--path", str(pairs), "--detach"]
    assert main([*words, "--workspace", str(workspace.root)]) == 0
    first = capsys.readouterr().out.strip()
    # As the page does.
    config = EvaluateConfig(model=KEPT, path=str(pairs))
    [second] = submit_chain(workspace, [("evaluate", config)])
    rows = [wait_until_ended(workspace, run) for run in (first, second)]
    assert [(row.state, row.results["step"]) for row in rows] == [("done", 5)] * 2, rows[0].error
    assert rows[1].started >= rows[0].ended
    assert [store.find_run(run).state for run in (RUN, *waiting)] == ["running", *["queued"] * 2]
    for run in waiting:
        request_stop(workspace, run, "abort")


def test_evaluation_waits_where_a_tpu_serves_one_process(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = EvaluateConfig(model=KEPT)
    assert is_of_running_run(config, workspace)
    (tmp_path / "accel0").touch()
    monkeypatch.setattr("core.backends.devices._TPU_GLOBS", (str(tmp_path / "accel*"),))
    assert not is_of_running_run(config, workspace)


@pytest.mark.slow
def test_other_evaluations_wait_for_a_slot(workspace: Workspace, pairs: Path) -> None:
    others = [
        submit(workspace, "evaluate", EvaluateConfig(model=model, path=str(pairs)))
        for model in ("words", "nobody@best", "x" * 300, "a\0b", "")
    ]
    later = submit(workspace, "evaluate", EvaluateConfig(model=KEPT, path=str(pairs)))
    assert wait_until_ended(workspace, later).state == "done"
    for run in others:
        assert Store.open(workspace).find_run(run).state == "queued"
        request_stop(workspace, run, "abort")
