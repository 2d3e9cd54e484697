"""Progress in one line on a terminal, in plain lines elsewhere, and none with --quiet."""

from __future__ import annotations

import os
import pty
import sys
import time
from pathlib import Path

import pytest

from core.cli.following import follow
from core.cli.output import describe_time_left
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord
from core.workspace.workspace import Workspace

RUN = "train-it"


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


def on_terminal(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """What following the run writes to a terminal."""
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as stream:
        for name, value in {"TERM": "xterm", **variables}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stderr", stream)
        assert follow(workspace, RUN, as_json=False) == 1
    text = b""
    try:
        while piece := os.read(ours, 65_536):
            text += piece
    except OSError:  # Linux reports the other side's end so.
        pass
    os.close(ours)
    return text.decode("utf-8")


@pytest.mark.slow(4)
def test_progress_is_one_line_on_a_terminal_and_plain_lines_elsewhere(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    capsys.readouterr()
    assert follow(workspace, RUN, as_json=False) == 1
    plain = capsys.readouterr().err
    assert "\x1b" not in plain
    for line in ("read \\x1b[31mred", "warning: it is warm", "step 1: loss 3.25", f"{RUN}  failed"):
        assert line in plain
    assert follow(workspace, RUN, as_json=False, quiet=True) == 1
    quiet = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in quiet] == ["warning:", "error:"]
    live = on_terminal(workspace, monkeypatch)
    assert "\x1b[2K" in live and "\x1b[33m" in live  # Erases its line; the warning is yellow.
    assert "\x1b[31mred" not in live and "step 1" not in live
    assert "  step 2: eval_loss 3.5" in live and f"{RUN} failed" in live
    colourless = on_terminal(workspace, monkeypatch, NO_COLOR="1")
    assert "\x1b[33m" not in colourless and "warning: it is warm" in colourless
    assert "\x1b" not in on_terminal(workspace, monkeypatch, TERM="dumb")


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
