"""Versions that can change the bytes of results."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from core.errors import RunError

_PACKAGES = (
    "numpy", "tokenizers", "pyarrow", "pydantic", "orjson", "ijson", "ftfy", "py3langid",
    "charset-normalizer", "scipy", "datasets", "huggingface_hub", "fsspec",
)  # fmt: skip
_MISSING = "not installed"


def find_versions() -> dict[str, str]:
    """Returns the versions of Python, without its patch level, and of packages."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **{name: _version_of(name) for name in _PACKAGES}}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _MISSING


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
        received=", ".join(f"{name} {received.get(name, _MISSING)}" for name in different),
        fix="install the same versions on all nodes: pip install -c constraints.txt "
        "-r requirements.txt -r requirements-ray.txt",
        field="cluster",
    )
