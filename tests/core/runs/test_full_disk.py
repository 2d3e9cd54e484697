"""Tests that a worker with a full disk waits for space and loses no reported metrics."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core import Workspace
from core.records.process import ProcessIdentity
from core.runs.start import child_environment
from core.store import Store
from tests.core.runs.support import (
    begin_run,
    metrics_in_events,
    metrics_in_table,
    wait_for,
    wait_until_ended,
)
from tests.damage import fill_disk, make_room, with_a_small_disk

ROOT = Path(__file__).parents[3]
REPORTED = 300


def report_on_a_full_disk(root: Path) -> dict[str, object]:
    """Reports metrics before, while and after the disk is full, with a worker running."""
    workspace = Workspace(root)
    folder, reporter = begin_run(workspace, "train-one")
    folder.write_processes(run=ProcessIdentity.of_this())
    Store.open(workspace).add_request("register", {"run": "train-one"})
    worker = subprocess.Popen(
        [sys.executable, "-m", "core.runs.worker", "--workspace", str(root)],
        env=child_environment(),
    )
    reporter.metrics(0, {"loss": 1.0})
    wait_for(lambda: metrics_in_table(workspace, "train-one"))
    fill_disk(root, 0, worker.pid, limit_bytes=8192)
    for step in range(1, REPORTED):
        reporter.metrics(step, {"loss": 1 / step, "learning_rate": 0.001})
    time.sleep(2.5)
    held_up = len(metrics_in_events(workspace, "train-one")) < 2 * REPORTED - 1
    alive = worker.poll() is None
    make_room(root, 0, worker.pid)
    reporter.event("finished", state="done", reason="", results={})
    reporter.close()
    folder.write_exit(0, None)
    state = wait_until_ended(workspace, "train-one").state
    worker.kill()
    worker.wait()
    table = metrics_in_table(workspace, "train-one")
    return {
        "alive": alive,
        "held_up": held_up,
        "state": state,
        "rows": len(table),
        "same": table == metrics_in_events(workspace, "train-one"),
    }


@pytest.mark.slow
def test_worker_waits_for_disk_space_and_loses_no_metrics(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    command = [sys.executable, "-m", "tests.core.runs.test_full_disk", str(root)]
    done = subprocess.run(
        [*with_a_small_disk(root), *command],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = 2 * REPORTED - 1
    assert found == {"alive": True, "held_up": True, "state": "done", "rows": rows, "same": True}
    assert "retrying after" in done.stderr


if __name__ == "__main__":
    print(json.dumps(report_on_a_full_disk(Path(sys.argv[1]))))
