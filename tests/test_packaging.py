"""The wheel holds every file of the packages, and works where there is no checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.texts import write_sentences

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow(8)


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Runs a command without the settings that show it this checkout; returns its output."""
    hidden = ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV")
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def files() -> list[str]:
    """The files of the checkout that belong to the packages."""
    return run("git", "ls-files", "core", "ui", "app.py").splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, files: list[str]) -> Path:
    """A wheel that is built without a download, in a copy of the files, for a build leaves some."""
    source = tmp_path_factory.mktemp("source")
    for name in [*files, "pyproject.toml", "requirements.txt", "README.md", "LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", source / "built", source)
    (built,) = (source / "built").iterdir()
    return built


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The scripts of an environment with the wheel, which borrows all other packages."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    # No file of paths in a borrowed folder is read, so that the checkout's own isn't.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    return python.parent


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path, files: list[str]) -> None:
    assert any(name.endswith(".json") for name in files)
    assert not set(files) - set(ZipFile(wheel).namelist())


def test_the_wheel_holds_nothing_but_the_packages(wheel: Path, files: list[str]) -> None:
    more = set(ZipFile(wheel).namelist()) - set(files)
    assert {name.split("/")[0].partition("-")[0] for name in more} == {"pretrain_studio"}


def test_the_wheel_works_in_an_empty_folder(scripts: Path, tmp_path: Path) -> None:
    studio = scripts / "studio"
    assert run(studio, "--version", folder=tmp_path).startswith("studio ")
    assert "wikimedia/wikipedia" in run(studio, "corpora", "norwegian", folder=tmp_path)
    assert "--port" in run(studio, "app", "--help", folder=tmp_path)
    write_sentences(tmp_path / "my-text.txt")
    plan = run(studio, "pretrain", "my-text.txt", "--plan", "--json", folder=tmp_path)
    assert json.loads(plan)
    code = "import core, ui.layout; print(core.pretrain.__name__, core.__file__, ui.__file__)"
    name, *places = run(scripts / "python", "-c", code, folder=tmp_path).split()
    assert name == "pretrain"
    assert all(Path(place).is_relative_to(scripts.parent) for place in places)
