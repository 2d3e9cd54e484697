"""Runs on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from core.errors import RunError

# Their versions can change the bytes of results.
_PACKAGES = (
    "numpy", "tokenizers", "pyarrow", "pydantic", "orjson", "ijson", "ftfy", "py3langid",
    "charset-normalizer", "scipy", "ray",
)  # fmt: skip
MISSING = "not installed"


def find_versions() -> dict[str, str]:
    """Returns the versions of Python, without its patch level, and of packages."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **{name: _version_of(name) for name in _PACKAGES}}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def run_task(
    function: Callable[[Any], Any], item: Any, expected: Mapping[str, str], driver: str
) -> Any:
    """Applies a function; raises RunError on a node with other versions than the driver."""
    check_versions(_own_versions(), expected, platform.node(), driver)
    return function(item)


def check_versions(
    received: Mapping[str, str], expected: Mapping[str, str], node: str, driver: str
) -> None:
    """Raises RunError if the versions of a node and the driver differ."""
    different = [name for name in expected if received.get(name) != expected[name]]
    if not different:
        return
    raise RunError(
        f"The cluster's node {node} has other versions than {driver}",
        expected=", ".join(f"{name} {expected[name]}" for name in different),
        received=", ".join(f"{name} {received.get(name, MISSING)}" for name in different),
        fix="install the same versions on all nodes: pip install -c constraints.txt "
        "-r requirements.txt -r requirements-ray.txt",
        field="cluster",
    )


@lru_cache(maxsize=1)
def _own_versions() -> dict[str, str]:
    return find_versions()


def describe_node() -> tuple[str, dict[str, str]]:
    """Returns the node's name and versions."""
    return f"{platform.node()} (process {os.getpid()})", find_versions()
