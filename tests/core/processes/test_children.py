"""Child processes import no module of the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core.parts.workers import open_workers
from core.processes.children import module_command, with_module_paths
from core.records.events import Reporter
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker

ROOT = Path(__file__).parents[3]
# What children import sooner or later, and what Python itself imports first.
SHADOWS = (
    "alembic", "argparse", "multiprocessing", "numpy", "orjson", "pydantic", "secrets",
    "sqlalchemy", "tokenize",
)  # fmt: skip


@pytest.fixture
def foreign_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set with modules that leave a trace when they are imported."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise ImportError('shadowed')"
        )
    (folder / "text.txt").write_text("Some text here.\n\n" * 50)
    monkeypatch.chdir(folder)
    return folder


def test_empty_entry_of_the_module_path_is_dropped() -> None:
    environment = with_module_paths({"PYTHONPATH": ":/a:", "HOME": "/h"})
    assert environment == {
        "HOME": "/h", "PYTHONPATH": f"{ROOT}:/a", "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    assert module_command("core.x", Path("/a")) == [sys.executable, "-P", "-m", "core.x", "/a"]


@pytest.mark.slow(10)
def test_runs_import_nothing_of_the_current_folder(foreign_folder: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    ended = subprocess.run(
        [sys.executable, "-m", "core", "tokenizer", "--path", "text.txt", "--vocab-size", "18",
         "--workers", "2", "--workspace", str(workspace.root)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    stop_worker(workspace)
    assert not (tmp_path / "ran").exists()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow(5)
def test_pools_run_nothing_of_the_current_folder(foreign_folder: Path, tmp_path: Path) -> None:
    with open_workers(2, "", Reporter()) as run:
        assert list(run(abs, [-1, -2, -3])) == [1, 2, 3]
    assert not (tmp_path / "ran").exists()
