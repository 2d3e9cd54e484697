"""Project rules that a test can check: imports, public names and unsafe loading."""

import ast
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ENGINES = ("tensorflow", "jax", "keras", "torch")
LIGHT = (
    "core",
    "core.api",
    "core.config",
    "core.corpus",
    "core.evaluation.stage",
    "core.inference.classification",
    "core.finetuning.stage",
    "core.inference",
    "core.inference.generation",
    "core.models.registry",
    "core.objectives.mlm",
    "core.runs.client",
    "core.runs.worker",
    "core.shards.build",
    "core.shards.read",
    "core.stages",
    "core.store",
    "core.tokenizer",
    "core.training.recipe",
    "core.workspace",
    "ui.layout",
)


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("core"), ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_neither_ui_nor_gradio(path: Path) -> None:
    assert not {name for name in imports_of(path) if name.split(".")[0] in ("ui", "gradio")}


@pytest.mark.parametrize("path", files("core"), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_a_backends_folder_imports_its_framework(path: Path) -> None:
    frameworks = {"jax", "openvino", "tensorflow"} - set(path.relative_to(ROOT).parts[2:3])
    assert not {name.split(".")[0] for name in imports_of(path)} & frameworks


NOT_TABS = ("launch", "layout", "serve", "__init__")


def test_tabs_do_not_import_each_other() -> None:
    shared = {"ui", "ui.forms", "ui.charts", "ui.present", "ui.theme"}
    tabs = [path for path in files("ui") if path.stem not in NOT_TABS]
    names = {f"ui.{path.stem}" for path in tabs} - shared
    assert names, "there are tabs"
    for path in tabs:
        assert not imports_of(path) & (names - {f"ui.{path.stem}"}), path


@pytest.mark.parametrize("folder", ["core/objectives", "core/shards"])
def test_objectives_and_shards_import_no_backend(folder: str) -> None:
    for path in files(folder):
        assert not {name for name in imports_of(path) if name.split(".")[0] in ENGINES}, path


@pytest.mark.slow(2)
@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_no_backend(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {ENGINES} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip().splitlines()[-1] == "[]"


def test_every_public_name_exists() -> None:
    import core

    for name in core.__all__:
        assert getattr(core, name) is not None


@pytest.mark.slow(3)
def test_nothing_loads_pickles_or_remote_code() -> None:
    for path in [*files("core"), *files("ui"), ROOT / "app.py"]:
        assert not {name for name in imports_of(path) if name in ("pickle", "dill", "cloudpickle")}
        keywords = {
            node.arg: node.value
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.keyword)
        }
        assert "trust_remote_code" not in keywords, path
        assert getattr(keywords.get("allow_pickle"), "value", False) is False, path


def test_only_one_module_builds_the_commands_of_child_processes() -> None:
    """The scripts of targets run where nothing of the project is installed."""
    scripts = [ROOT / f"core/targets/{name}.py" for name in ("bootstrap", "kaggle_session")]
    allowed = {ROOT / "core/processes/children.py", *scripts}
    for path in {ROOT / "app.py", *files("core"), *files("ui")} - allowed:
        assert "executable" not in re.findall(r"\bsys\.(\w+)", path.read_text("utf-8")), path


def test_app_py_is_short() -> None:
    assert len((ROOT / "app.py").read_text().splitlines()) < 40


@pytest.mark.slow(4)
def test_imported_packages_come_with_the_requirements() -> None:
    """The tests' environment has more packages than `make run` installs."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    installed = _with_dependencies(
        {Requirement(line).name for line in lines if line and not line.startswith(("#", "-"))}
    )
    providers = metadata.packages_distributions()
    foreign = {
        name: path
        for path in [ROOT / "app.py", *files("core"), *files("ui")]
        for name in {one.partition(".")[0] for one in imports_of(path)}
        if name
        and name not in sys.stdlib_module_names | {"core", "ui", "app"}
        and not installed & set(map(canonicalize_name, providers.get(name, [name])))
    }
    assert not foreign


def _with_dependencies(names: set[str]) -> set[str]:
    """Returns the distributions and all that they require, without extras."""
    found: set[str] = set()
    left = set(map(canonicalize_name, names))
    while left:
        name = left.pop()
        found.add(name)
        with suppress(metadata.PackageNotFoundError):
            needed = [Requirement(text) for text in metadata.requires(name) or []]
            wanted = {
                one.name for one in needed if not one.marker or one.marker.evaluate({"extra": ""})
            }
            left |= set(map(canonicalize_name, wanted)) - found
    return found
