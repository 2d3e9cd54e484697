"""Tests of many runs with concurrent readers: no run is lost or repeated, no reader fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from core import CorpusConfig, TokenizerConfig, Workspace
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord, new_run_id
from core.runs.start import child_environment
from core.store import Store
from tests.core.runs.support import stop_worker, wait_for
from tests.texts import write_sentences

RUNS = 200
READERS = 5

# The web app's queries at four times its rate, in a separate process.
READER = """
import json, sys, time
from core import Workspace
from core.store import Store
store = Store.open(Workspace(sys.argv[1]))
until, rounds = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < until and sys.stdin.readable():
    rows = store.list_runs(limit=100)
    for row in rows[:3]:
        store.sample_metrics(row.id, ["loss"], 400)
        store.metrics_since(row.id)
        store.latest_metrics(row.id)
    rounds += 1
    time.sleep(0.25)
    if all(row.has_ended for row in rows) and len(rows) == COUNT:
        break
print(json.dumps({"rounds": rounds}))
""".replace("COUNT", str(min(100, RUNS)))


@pytest.mark.slow(120)
@pytest.mark.thorough
def test_many_queued_runs_complete_once_beside_five_readers(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    corpus = CorpusConfig(source="files", path=str(write_sentences(tmp_path / "text.txt", 60)))
    store = Store.open(workspace)
    submitted = [
        queue_run(store, TokenizerConfig(corpus=corpus, vocab_size=60)) for _ in range(RUNS)
    ]
    # `nice`: six processes run for minutes beside other tests.
    worker = subprocess.Popen(
        ["nice", sys.executable, "-m", "core.runs.worker", "--workspace", str(workspace.root)]
        + ["--slots", "3"],
        env=child_environment(),
    )
    readers = [
        subprocess.Popen(
            ["nice", sys.executable, "-c", READER, str(workspace.root), "800"],
            env=child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(READERS)
    ]
    wait_for(lambda: all_ended(store), 800)
    answers = [reader.communicate(timeout=60) for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * READERS, answers
    assert all(json.loads(output)["rounds"] > 1 for output, _ in answers)
    rows = store.list_runs(limit=1000)
    assert Counter(row.id for row in rows) == Counter(submitted)
    assert {(row.state, row.attempt) for row in rows} == {("done", 1)}
    for run_id in submitted:
        events, _ = read_events(RunFolder.of(workspace, run_id).events)
        assert [event["kind"] for event in events].count("started") == 1
    assert len(store.list_artifacts()) == len(workspace.list("tokenizer")) == RUNS
    worker.kill()
    worker.wait()
    stop_worker(workspace)


def queue_run(store: Store, config: TokenizerConfig) -> str:
    record = RunRecord(
        id=new_run_id("tokenizer") + os.urandom(3).hex(),
        stage="tokenizer",
        config=config.model_dump(mode="json"),
        created=time.time(),
    )
    store.add_request("submit", vars(record))
    return record.id


def all_ended(store: Store) -> bool:
    rows = store.list_runs(limit=1000)
    return len(rows) == RUNS and all(row.has_ended for row in rows)
