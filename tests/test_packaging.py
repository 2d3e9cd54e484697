"""The wheel holds every file that the packages read."""

from __future__ import annotations

import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_file_of_the_packages_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]
    listed = subprocess.run(
        ["git", "ls-files", "core", "ui"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in listed.stdout.splitlines() if not line.endswith(".py")]
    assert files
    left_out = [path for path in files if not _is_packaged(path, patterns)]
    assert not left_out


def _is_packaged(path: Path, patterns: dict[str, list[str]]) -> bool:
    return any(
        fnmatch(path.name, pattern)
        if package == "*"
        else fnmatch(str(path), f"{package.replace('.', '/')}/{pattern}")
        for package, names in patterns.items()
        for pattern in names
    )
