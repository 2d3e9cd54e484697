"""The `studio` command, from a folder that is not the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
STUDIO = Path(sys.executable).parent / "studio"


@pytest.fixture(autouse=True)
def needs_the_installed_command() -> None:
    if not STUDIO.exists():
        pytest.skip("the project is not installed in this environment; get it with: make setup")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow(4)
def test_studio_command_equals_python_m_core_in_any_folder(tmp_path: Path) -> None:
    ours = run([str(STUDIO), "runs", "list", "--workspace", str(tmp_path / "w")], tmp_path)
    theirs = run(
        [sys.executable, "-m", "core", "runs", "list", "--workspace", str(tmp_path / "w")], ROOT
    )
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    assert ours.returncode == 0 and "No runs yet" in ours.stdout


def test_studio_help_names_the_web_app(tmp_path: Path) -> None:
    helped = run([str(STUDIO), "--help"], tmp_path)
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: studio ") and "studio app" in helped.stdout


def test_studio_app_has_the_options_of_the_web_app(tmp_path: Path) -> None:
    helped = run([str(STUDIO), "app", "--help"], tmp_path)
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: studio app ") and "--port" in helped.stdout


def test_core_is_importable_in_any_folder(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", "from core import Workspace; import ui.command"], tmp_path)
    assert done.returncode == 0, done.stderr
