"""Access to a workspace, and modes of files written elsewhere."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.runs.start import child_environment
from core.store import Store
from core.workspace.atomic import write_atomically
from core.workspace.places import (
    WorkspaceMovedError,
    apply_umask_below,
    check_not_moved,
    guarding_workspaces,
    is_shared,
    private_files,
    remember_workspace,
    restrict_access,
    user_umask,
)
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker


@pytest.fixture(autouse=True)
def common_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("STUDIO_SHARED_WORKSPACE", raising=False)
    before = os.umask(0o022)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _readable_by_others(root: Path) -> list[str]:
    found = [root, *root.rglob("*")]
    return [str(path) for path in found if not path.is_symlink() and _mode(path) & 0o077]


def _core(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "core", *words],
        env=child_environment() | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


@pytest.mark.slow(15)
@pytest.mark.long
def test_files_made_by_commands_worker_and_runs_are_private(tmp_path: Path) -> None:
    """Attack: another account of the machine reads the database."""
    text = tmp_path / "text.txt"
    words = "one two three four five six seven eight nine ten"
    text.write_text("".join(f"{words} {number}\n" for number in range(100)))
    workspace = Workspace(tmp_path / "made" / "workspace")
    place = ("--workspace", str(workspace.root))
    output = tmp_path / "exported" / "rows"
    try:
        _core("tokenizer", "--path", str(text), "--vocab-size", "36", "--name", "t", *place)
        shards = ("--tokenizer", "t", "--path", str(text), "--max-seq-length", "16")
        _core("shards", *shards, "--output-dir", str(output), *place)
        run = json.loads(_core("runs", "list", "--json", *place).stdout)[0]["run"]
        report = tmp_path / "report.html"
        _core("runs", "report", run, "--output", str(report), *place)
    finally:
        stop_worker(workspace)
    assert _readable_by_others(workspace.root) == []
    assert (workspace.root / "studio.db").exists()
    assert _mode(report) == 0o644
    assert _mode(tmp_path / "made") == 0o755
    for path in (output, *output.parents[:1], *output.rglob("*")):
        assert _mode(path) == (0o755 if path.is_dir() else 0o644), path


def test_workspace_made_by_a_script_is_private(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    Store.open(workspace).close()
    assert _mode(workspace.root) == 0o700
    assert _mode(workspace.root / "studio.db") == 0o600
    with workspace.new_artifact("tokenizer", "t") as draft:
        (draft.folder / "x").write_text("x")
    assert _mode(workspace.folder("tokenizer")) == 0o700
    assert _mode(tmp_path) & 0o777 == stat.S_IMODE(tmp_path.stat().st_mode)
    assert os.umask(0o022) == 0o022


def test_workspace_of_an_earlier_version_becomes_private(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "runs").mkdir(parents=True)
    for name in ("studio.db", "studio.db-wal", "worker.lock", "worker.log"):
        (root / name).touch()
    assert _mode(root) == 0o755
    restrict_access(root)
    assert _mode(root) == 0o700
    assert _readable_by_others(root) == []


def test_folder_with_other_files_stays_open_but_its_database_is_private(
    tmp_path: Path,
) -> None:
    (tmp_path / "studio.db").touch()
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "link.log").symlink_to(tmp_path / "thesis.tex")
    tmp_path.chmod(0o755)
    restrict_access(tmp_path)
    assert _mode(tmp_path) == 0o755
    assert _mode(tmp_path / "studio.db") == 0o600
    assert _mode(tmp_path / "thesis.tex") == 0o644


def test_folder_that_is_not_a_workspace_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    tmp_path.chmod(0o755)
    restrict_access(tmp_path)
    assert (_mode(tmp_path), _mode(tmp_path / "models")) == (0o755, 0o755)


@pytest.mark.parametrize("by", ["variable", "setgid"])
def test_shared_workspace_stays_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    if by == "variable":
        monkeypatch.setenv("STUDIO_SHARED_WORKSPACE", "1")
    else:
        workspace.root.mkdir()
        workspace.root.chmod(0o2775)
    os.umask(0o002)
    assert by == "variable" or is_shared(workspace.root)
    with private_files(workspace.root):
        Store.open(workspace).close()
        with workspace.new_artifact("tokenizer", "t") as draft:
            (draft.folder / "x").write_text("x")
    assert _mode(workspace.root) & 0o775 == 0o775
    assert _mode(workspace.root / "studio.db") == 0o664
    assert _mode(workspace.folder("tokenizer") / "t" / "x") == 0o664


def test_workspace_below_a_shared_folder_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    workspace = Workspace(tmp_path / "workspace")
    workspace.make_root()
    assert _mode(workspace.root) == 0o700


def test_files_written_elsewhere_have_the_users_umask(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    elsewhere = tmp_path / "elsewhere"
    with private_files(workspace.root):
        assert user_umask() == 0o022
        (elsewhere / "deep").mkdir(parents=True)
        (elsewhere / "deep" / "x").write_text("x")
        apply_umask_below(elsewhere)
        write_atomically(tmp_path / "report.html", "x")
        workspace.make_root()
        write_atomically(workspace.root / "x.json", "x")
        inherited = subprocess.run(
            ["sh", "-c", "umask"], umask=user_umask(), capture_output=True, check=True
        )
    assert inherited.stdout.strip() == b"0022"
    assert (_mode(elsewhere / "deep"), _mode(elsewhere / "deep" / "x")) == (0o755, 0o644)
    assert _mode(tmp_path / "report.html") == 0o644
    assert _mode(workspace.root / "x.json") == 0o600
    assert user_umask() == -1


@pytest.mark.slow(3)
def test_threads_check_workspaces_while_others_open_new_ones(tmp_path: Path) -> None:
    roots = [tmp_path / f"workspace-{number}" for number in range(300)]
    for root in roots:
        root.mkdir()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Force frequent thread switches.
    try:
        with guarding_workspaces(), ThreadPoolExecutor(4) as threads:
            tasks = [
                threads.submit(use, root)
                for root in roots
                for use in (remember_workspace, check_not_moved, check_not_moved)
            ]
            assert [task.exception() for task in tasks] == [None] * len(tasks)
    finally:
        sys.setswitchinterval(interval)


def test_error_of_a_command_names_the_move_that_caused_it(tmp_path: Path) -> None:
    root, new = tmp_path / "old", tmp_path / "new"
    root.mkdir()
    with pytest.raises(WorkspaceMovedError, match=f"it is now at {new}"), guarding_workspaces():
        remember_workspace(root)
        root.rename(new)
        os.stat(root / "studio.db")


def test_error_of_a_command_stays_if_no_workspace_was_moved(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), guarding_workspaces():
        remember_workspace(tmp_path)
        os.stat(tmp_path / "studio.db")
