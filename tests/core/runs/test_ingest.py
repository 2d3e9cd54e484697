"""Tests that workers store each metric of the events exactly once, and only finite values."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from core import Workspace
from core.runs.process import ProcessIdentity
from core.runs.worker import Worker, child_environment
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
