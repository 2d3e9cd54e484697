"""Progress in one line on a terminal, in plain lines elsewhere, and none with --quiet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.cli.output import describe_time_left
from core.events import FolderReporter
from core.runs.folder import RunFolder, RunRecord
from core.workspace import Workspace

RUN = "train-it"
_CODE = f"""
import sys
from core.cli.following import follow
from core.workspace import Workspace
sys.exit(follow(Workspace(sys.argv[1]), "{RUN}", as_json=False, quiet="-q" in sys.argv))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace with a failed run, which has figures, notes and a warning."""
    from core.runs.client import rebuild_database

    workspace = Workspace(tmp_path / "home")
    workspace.make_root()
    folder = RunFolder.of(workspace, RUN)
    folder.write_record(RunRecord(id=RUN, stage="toy", config={}, created=time.time()))
    reporter = FolderReporter(folder.path)
    reporter.note("read \x1b[31mred\x1b[0m", reading=True)
    reporter.warn("it is warm")
    reporter.metrics(1, {"loss": 3.25})
    reporter.metrics(2, {"eval_loss": 3.5})
    reporter.close()
    folder.write_exit(1, None)
    rebuild_database(workspace)
    return workspace


def followed(workspace: Workspace, *flags: str, terminal: bool, **variables: str) -> str:
    """What following the run prints to standard error."""
    command = [sys.executable, "-c", _CODE, str(workspace.root), *flags]
    environment = {**os.environ, "TERM": "xterm", **variables}
    if not terminal:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        return done.stderr
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65_536):
            text += piece
    except OSError:  # Linux reports the other side's end so.
        pass
    finally:
        os.close(ours)
        assert child.wait(60) == 1
    return text.decode("utf-8")


@pytest.mark.slow(8)
def test_progress_is_one_line_on_a_terminal_and_plain_lines_elsewhere(
    workspace: Workspace,
) -> None:
    plain = followed(workspace, terminal=False)
    assert "\x1b" not in plain
    for line in ("read \\x1b[31mred", "warning: it is warm", "step 1: loss 3.25", f"{RUN}  failed"):
        assert line in plain
    quiet = followed(workspace, "-q", terminal=False)
    assert [line.split()[0] for line in quiet.splitlines()] == ["warning:", "error:"]
    live = followed(workspace, terminal=True)
    assert "\x1b[2K" in live and "\x1b[33m" in live  # Erases its line; the warning is yellow.
    assert "\x1b[31mred" not in live and "step 1" not in live
    assert "  step 2: eval_loss 3.5" in live and f"{RUN} failed" in live
    colourless = followed(workspace, terminal=True, NO_COLOR="1")
    assert "\x1b[33m" not in colourless and "warning: it is warm" in colourless
    assert "\x1b" not in followed(workspace, terminal=True, TERM="dumb")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2, "less than a minute left"),
        (61, "1 minute left"),
        (600, "10 minutes left"),
        (9000, "2.5 hours left"),
    ],
)
def test_time_left_is_never_zero(seconds: float, text: str) -> None:
    assert describe_time_left(seconds) == text
