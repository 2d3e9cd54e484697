"""Builds the commands and module paths of child processes.

No child imports a module of the current folder, which may hold somebody else's files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
# The folder that holds this program.
HOME = Path(__file__).parents[2]


def module_command(module: str, *arguments: str | Path) -> list[str]:
    """Returns the command of `python -m MODULE`; `with_module_paths` makes the environment."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def script_command(script: str | Path, *arguments: str | Path, isolated: bool = True) -> list[str]:
    """Returns the command of a script; an isolated one imports the standard library only."""
    flags = ["-I", "-S"] if isolated else ["-P"]
    return [sys.executable, *flags, str(script), *map(str, arguments)]


def with_module_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python finds this program, but nothing of the current folder.

    That holds for grandchildren too, such as those of multiprocessing and of tools. An empty entry
    of PYTHONPATH would be the current folder.
    """
    paths = [str(HOME), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    path = os.pathsep.join(dict.fromkeys(paths))
    return {**environment, "PYTHONPATH": path, **SAFE_PATH}


@contextmanager
def using_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables in the meantime."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
