"""Events reach the disk within a second, according to the system calls of a reporting process."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tracing import needs_strace, trace

REPORT = """
import sys, time
from pathlib import Path
from core.records.events import FolderReporter
reporter = FolderReporter(Path(sys.argv[1]), echo=False)
for number in range(12):
    reporter.note(f"note {number}")
    time.sleep(0.17)
time.sleep(1.2)
import os
os._exit(0)  # No orderly close: what is on the disk is what counts.
"""
CALL = re.compile(r"(?P<time>\d+\.\d+) (?P<name>write|fsync|fdatasync)\(\d+<(?P<path>[^>]*)>")


@needs_strace
def test_every_event_is_synced_within_a_second(tmp_path: Path) -> None:
    options = ["-y", "-ttt", "-e", "trace=write,fsync,fdatasync"]
    traced, _ = trace(tmp_path, options, REPORT, tmp_path)
    calls = [
        (float(found["time"]), found["name"])
        for line in traced.splitlines()
        if (found := CALL.search(line)) and found["path"].endswith("events.jsonl")
    ]
    writes = [when for when, name in calls if name == "write"]
    syncs = [when for when, name in calls if name != "write"]
    assert len(writes) == 12
    for written in writes:
        assert any(written <= synced <= written + 1.0 for synced in syncs)
