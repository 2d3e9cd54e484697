"""Which tests a run leaves out, and what it does after the death of a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="needs more")
def test_is_skipped(): pass

@pytest.mark.thorough
def test_takes_hours(): pass

def test_fails(): assert False
"""

DYING = """
import os, pathlib, signal

def test_kills_its_worker_once():
    mark = pathlib.Path(__file__).with_name("killed")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def test_is_killed_always():
    os.kill(os.getpid(), signal.SIGKILL)

def test_ends_its_worker_once():
    mark = pathlib.Path(__file__).with_name("ended")
    if not mark.exists():
        mark.touch()
        os._exit(3)
"""


def run(folder: Path, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
        + ["-p", "no:cacheprovider", "-o", "pythonpath=" + str(ROOT), "-v", *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def test_passed_and_thorough_tests_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    passed = tmp_path / "passed"
    first = run(tmp_path, f"--write-passed={passed}")
    assert "1 failed, 1 passed, 1 skipped, 1 deselected" in first
    assert [line.split("::")[1] for line in passed.read_text().splitlines()] == ["test_passes"]
    rest = run(tmp_path, f"--passed={passed}", "--fail-on-skip")
    assert "1 failed, 1 skipped, 2 deselected" in rest
    everything = run(tmp_path, STUDIO_TEST_THOROUGH="1")
    assert "1 failed, 2 passed, 1 skipped" in everything


def test_no_test_is_lost_after_the_death_of_a_worker(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"test_before{number}.py").write_text("def test_passes(): pass\n")
        (tmp_path / f"test_later{number}.py").write_text("def test_passes(): pass\n")
    (tmp_path / "test_dying.py").write_text(DYING)
    select = ("-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "-k")
    printed = run(tmp_path, *select, "passes or kills")
    assert "gw0 ended with -9" in printed
    assert "17 passed, 1 begun again" in printed
    assert "1 failed, 17 passed" in run(tmp_path, *select, "passes or ends")
    assert "failed" in run(tmp_path, *select, "passes or always")
