"""Tests that workers store each metric of the events exactly once, and only finite values."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig, Workspace
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs import worker as worker_module
from core.runs.start import child_environment
from core.runs.worker import Worker
from core.store import Store
from tests.core.runs.support import begin_run, wait_until_ended

EVENTS = 6000
KILLS = 6


@pytest.mark.slow
@pytest.mark.long
def test_worker_killed_while_reading_events_stores_each_metric_exactly_once(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    folder, reporter = begin_run(workspace, "train-written")
    folder.write_processes(run=ProcessIdentity.of_this())
    store = Store.open(workspace)
    store.add_request("register", {"run": "train-written"})
    chance = random.Random(0)
    for kill in range(KILLS + 1):
        worker = subprocess.Popen(
            [sys.executable, "-m", "core.runs.worker", "--workspace", str(workspace.root)],
            env=child_environment(),
        )
        share = EVENTS // (KILLS + 1)
        for step in range(kill * share, (kill + 1) * share):
            reporter.metrics(step, {"loss": 1 / (step + 1), "epoch": step / EVENTS})
        time.sleep(0.3 + 0.4 * chance.random())
        if kill < KILLS:
            assert worker.poll() is None
            worker.kill()
            assert worker.wait() == -signal.SIGKILL
    reporter.event("finished", state="done", reason="", results={})
    reporter.close()
    folder.write_exit(0, None)
    row = wait_until_ended(workspace, "train-written")
    worker.kill()
    worker.wait()
    assert row.state == "done"
    rows = store.metrics_since("train-written", limit=10 * EVENTS)
    counts = Counter((one.name, one.step) for one in rows)
    assert set(counts.values()) == {1}
    assert len(rows) == 2 * share * (KILLS + 1)
    assert row.metric_counts == {"loss": len(rows) // 2, "epoch": len(rows) // 2}


def test_run_resumed_twice_between_reads_has_each_step_once(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    folder, reporter = begin_run(workspace, "train-back")
    folder.write_processes(run=ProcessIdentity.of_this())
    worker = Worker(workspace, slots=1)
    worker.store.add_request("register", {"run": "train-back"})
    for begin, end, loss in ((1, 7, 3.0), (3, 6, 2.0), (5, 8, 1.0)):
        if begin > 1:
            reporter.event("resumed", step=begin - 1)
        for step in range(begin, end):
            reporter.metrics(step, {"loss": loss})
        if begin == 1:
            worker.work()
    worker.work()
    figures = worker.store.metrics_since("train-back")
    worker.store.close()
    reporter.close()
    losses = {1: 3.0, 2: 3.0, 3: 2.0, 4: 2.0, 5: 1.0, 6: 1.0, 7: 1.0}
    assert sorted((one.step, one.value) for one in figures) == sorted(losses.items())


def test_non_finite_metrics_are_dropped_and_the_worker_continues(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    folder, reporter = begin_run(workspace, "train-diverged")
    reporter.metrics(1, {"loss": math.nan, "learning_rate": 0.5})
    reporter.metrics(2, {"loss": math.inf, "learning_rate": 0.25})
    results = {"eval_loss": 900.0, "eval_perplexity": math.inf, "more": {"loss": math.nan}}
    reporter.event("finished", state="failed", reason="error", results=results)
    reporter.close()
    folder.write_exit(1, None)
    worker = Worker(workspace, slots=1)
    worker.store.add_request("register", {"run": "train-diverged"})
    while worker.work():
        pass
    row = worker.store.find_run("train-diverged")
    figures = worker.store.metrics_since("train-diverged")
    worker.store.close()
    assert row.state == "failed"
    assert [(one.name, one.value) for one in figures] == [
        ("learning_rate", 0.5),
        ("learning_rate", 0.25),
    ]
    assert row.results == {"eval_loss": 900.0, "more": {}}


def test_flood_of_metrics_is_read_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_INGESTED_BYTES", 4_000)
    monkeypatch.setattr(worker_module, "_INGESTING_SECONDS", 0.0001)
    monkeypatch.setattr(worker_module, "_MOST_METRICS", 300)
    workspace = Workspace(tmp_path / "workspace")
    folder, reporter = begin_run(workspace, "train-flood")
    for step in range(40):
        reporter.metrics(step, {"loss": 1.0, **{f"m{step}-{count}": 1.5 for count in range(100)}})
    reporter.event("finished", state="done", reason="", results={})
    reporter.close()
    folder.write_exit(0, None)
    worker = Worker(workspace, slots=1)
    worker.store.add_request("register", {"run": "train-flood"})
    rounds = 0
    while worker.work():
        rounds += 1
    row = worker.store.find_run("train-flood")
    worker.store.close()
    assert rounds > 5
    assert (row.state, row.metric_counts["loss"], len(row.metric_counts)) == ("done", 40, 300)
    assert [one["message"] for one in row.warnings] == [
        "Only the first 300 metrics are shown; the run reports more"
    ]


@pytest.mark.parametrize(
    ("written", "state", "reason"),
    [
        ({}, "stopped", "cancelled"),
        ({"events": [{"kind": "note", "message": "x"}]}, "lost", ""),
        ({"events": [{"kind": "finished", "state": "stopped", "reason": "preempted"}]},
         "stopped", "preempted"),
        ({"target": "ssh://there", "events": [{"kind": "note", "message": "x"}]}, "lost", ""),
        ({"exit": {"code": None, "signal": 15}}, "stopped", "preempted"),
    ],
    ids=str,
)  # fmt: skip
def test_rebuilding_starts_no_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: dict[str, Any],
    state: str,
    reason: str,
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(worker_module, "_start_process", start)
    workspace = Workspace(tmp_path / "workspace")
    folder = RunFolder.of(workspace, "train-copied")
    config = TrainConfig(shards="rows", target=written.get("target", "")).model_dump(mode="json")
    folder.write_record(RunRecord("train-copied", "train", config, created=1.0))
    events = [
        {"n": number, "t": 1.0, **one} for number, one in enumerate(written.get("events", []), 1)
    ]
    if events:
        folder.events.write_text("".join(json.dumps(one) + "\n" for one in events))
    if "exit" in written:
        (folder.path / "process.json").write_text("{}")
        (folder.path / "exit.json").write_text(json.dumps({**written["exit"], "time": 2.0}))
    worker = Worker(workspace, slots=1)
    worker.store.add_request("register", {"run": "train-copied", "is_rebuilt": True})
    for _ in range(3):
        worker.work()
    row = worker.store.find_run("train-copied")
    worker.store.close()
    assert (row.state, row.reason) == (state, reason)
