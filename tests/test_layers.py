"""The layers of core: each package imports only those below it in CONTRIBUTING's map."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def read_layers() -> list[str]:
    """Lists core's packages and loose modules, the topmost first."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    block = text.partition("\ncore/ ")[2].partition("\ntests/ ")[0]
    return re.findall(r"^  ([a-z_]+)(?:/|\.py) ", block, flags=re.MULTILINE)


LAYERS = read_layers()


def imports_between_layers(path: Path) -> Iterator[str]:
    """Lists the layers that a module of core imports at its top level."""
    for node in ast.parse(path.read_text("utf-8")).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("core.") and name.split(".")[1] in LAYERS:
                yield name.split(".")[1]


def test_map_has_every_package_and_module_of_core() -> None:
    entries = [one for one in (ROOT / "core").iterdir() if one.name[:2] not in ("__", ".")]
    assert sorted(LAYERS) == sorted(["__main__", *(one.stem for one in entries)])


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_those_below_it(layer: str) -> None:
    place = ROOT / "core" / layer
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        upwards = {
            one for one in imports_between_layers(path) if LAYERS.index(one) < LAYERS.index(layer)
        }
        assert not upwards, path
