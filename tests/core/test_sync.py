"""Events reach the disk within a second: shown by the system calls of a reporting process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.runs.worker import child_environment

REPORT = """
import sys, time
from pathlib import Path
from core.events import FolderReporter
reporter = FolderReporter(Path(sys.argv[1]), echo=False)
for number in range(12):
    reporter.note(f"note {number}")
    time.sleep(0.17)
time.sleep(1.2)
import os
os._exit(0)  # No orderly close: what is on the disk is what counts.
"""
CALL = re.compile(r"(?P<time>\d+\.\d+) (?P<name>write|fsync|fdatasync)\(\d+<(?P<path>[^>]*)>")


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is missing; get it with: apt-get install strace"
)
def test_every_event_is_synced_within_a_second(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    result = subprocess.run(
        ["strace", "-f", "-y", "-ttt", "-e", "trace=write,fsync,fdatasync", "-o", str(trace)]
        + [sys.executable, "-c", REPORT, str(tmp_path)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ptrace" in result.stderr.lower():
        pytest.skip(f"strace may not trace here: {result.stderr.strip()}")
    calls = [
        (float(found["time"]), found["name"])
        for line in trace.read_text().splitlines()
        if (found := CALL.search(line)) and found["path"].endswith("events.jsonl")
    ]
    writes = [when for when, name in calls if name == "write"]
    syncs = [when for when, name in calls if name != "write"]
    assert len(writes) == 12
    for written in writes:
        assert any(written <= synced <= written + 1.0 for synced in syncs)
