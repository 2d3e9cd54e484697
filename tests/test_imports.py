"""The imports between modules: no cycles, and no forbidden dependencies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_name(path): path
    for package in ("core", "ui")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields all imports, also those in functions, but not those for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from statements(child)


def imports_of(path: Path) -> set[str]:
    """Returns the modules of this project that a module imports."""
    found = set()
    for statement in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        else:
            base = statement.module or ""
            names = [
                name if (name := f"{base}.{alias.name}") in MODULES else base
                for alias in statement.names
            ]
        found |= MODULES.keys() & set(names)
    return found - {module_name(path)}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return {name: imports_of(path) for name, path in MODULES.items()}


def test_imports_form_no_cycle(graph: Graph) -> None:
    assert len(graph) > 200
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


@pytest.mark.parametrize("package", ["core.inference", "core.backends"])
def test_nothing_below_training_imports_it(graph: Graph, package: str) -> None:
    found = {
        f"{name} -> {imported}"
        for name in graph
        for imported in graph[name]
        if name.startswith(package) and imported.startswith("core.training")
    }
    assert not found


def test_function_level_imports_are_found() -> None:
    source = ROOT / "core" / "inference" / "generation.py"
    assert "core.backends.compilation" in imports_of(source)
