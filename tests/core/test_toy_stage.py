"""A stage needs one file, `toy_stage.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker

ROOT = Path(__file__).parents[2]
FILES_OF_THE_STAGE = ["tests/core/toy_stage.py"]


@pytest.fixture
def home(tmp_path: Path) -> Any:
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    if workspace.root.exists():
        stop_worker(workspace)


def python(workspace: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "STUDIO_STAGES": "tests.core.toy_stage",
            "STUDIO_HOME": str(workspace.root),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def studio(workspace: Workspace, *arguments: str) -> Any:
    """Runs a command with --json and returns its value."""
    ended = python(workspace, "-m", "core", *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def evaluate(workspace: Workspace, code: str) -> Any:
    ended = python(workspace, "-c", code)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


SCRIPT = """
import json
from tests.core.toy_stage import ToyConfig, count
artifact = count(ToyConfig(name="two", text="one two"))
print(json.dumps([artifact.kind, artifact.path.parent.name, artifact.manifest.counts]))
"""
TABLE = """
import json
from core.runs.commands import python_lines
from core.stages.registry import load_further_stages, parse_stage_config
from core.store import Store
from core.workspace import Workspace
from ui.parts.run_rows import summarize, tabs_by_stage
load_further_stages()
workspace = Workspace()
rows = Store.open(workspace).list_runs()
lines = python_lines("count", parse_stage_config("count", rows[0].config))
found = [summarize(row, workspace) for row in rows]
print(json.dumps({"rows": found, "script": lines, "tab": tabs_by_stage()["count"]}))
"""


def test_stage_needs_one_file() -> None:
    found = [
        str(path.relative_to(ROOT))
        for top in ("core", "ui", "tests/core")
        for path in (ROOT / top).rglob("*.py")
        if "ToyConfig" in path.read_text("utf-8") and path != Path(__file__)
    ]
    assert found == FILES_OF_THE_STAGE


@pytest.mark.slow(35)
def test_stage_of_one_file_runs_everywhere_and_its_artifacts_can_be_deleted(
    home: Workspace,
) -> None:
    assert "--text TEXT" in python(home, "-m", "core", "count", "--help").stdout

    # Python.
    assert evaluate(home, SCRIPT) == ["count", "counts", {"words": 2}]

    # The command line, which submits to the queue; the worker starts the stage in its own process.
    told = studio(home, "count", "--text", "a b c")
    assert (told["state"], told["metrics"]) == ("done", {"words": 3})
    path = Path(told["artifact"])
    assert json.loads((path / "words.json").read_text("utf-8")) == ["a", "b", "c"]

    # The queue, detached.
    waiting = studio(home, "count", "--name", "later", "--text", "d", "--detach")["run"]
    again = studio(home, "count", "--text", "e", "--after", waiting)
    assert again["state"] == "done"
    made = studio(home, "artifacts", "list")
    assert {"later", "two", path.name} <= {one["name"] for one in made if one["kind"] == "count"}
    taken = python(home, "-m", "core", "count", "--name", "later", "--text", "d")
    assert taken.returncode == 2 and "is taken" in taken.stderr

    # The runs table, with the script that a run shows.
    table = evaluate(home, TABLE)
    assert [row["title"] for row in table["rows"]][1] == "Word count later"
    assert {row["state"] for row in table["rows"]} == {"done"} and len(table["rows"]) == 4
    assert {table["tab"], *(row["tab"] for row in table["rows"])} == {"count"}
    assert table["script"].splitlines()[0] == "from tests.core.toy_stage import ToyConfig, count"

    # Removal.
    for one in made:
        studio(home, "artifacts", "delete", one["kind"], one["name"])
    for row in table["rows"]:
        studio(home, "runs", "delete", row["id"])
    assert studio(home, "artifacts", "list") == studio(home, "runs", "list") == []
    assert not list((home.root / "counts").iterdir())


DECLARED = """
import json
import tests.core.toy_stage as toy
from core.config.metrics import unit_of
from core.config.sweep import SweepConfig
from core.errors import ConfigError
from core.report.titles import metric_title
from core.runs.client import submit
from core.sweeps.client import checked
from core.workspace.workspace import Workspace
refused = []
for metric, length in (("words", 3), ("seconds", 3), ("words", 100)):
    sweep = SweepConfig(
        name="all", stage="count", metric=metric, base={"text": "a"},
        options={"smallest_length": [length, length + 1]},
    )
    try:
        checked(sweep, Workspace())
    except ConfigError as error:
        refused.append(error.field)
try:
    submit(Workspace(), "count", toy.ToyConfig(smallest_length=100))
except ConfigError as error:
    refused.append(error.field)
words = SweepConfig(stage="count", metric="words", options=sweep.options)
print(json.dumps([refused, words.goal, metric_title("words"), unit_of("words")]))
"""


def test_check_and_metrics_follow_from_the_declaration(home: Workspace) -> None:
    refused, goal, title, unit = evaluate(home, DECLARED)
    assert refused == ["metric", "smallest_length", "smallest_length"]
    assert (goal, title, unit) == ("maximize", "Words in the text", "words")


def test_missing_module_of_stages_is_reported(
    home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_STAGES", "no_such_module")
    ended = subprocess.run(
        [sys.executable, "-m", "core", "runs", "list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2 and "no_such_module can't be loaded" in ended.stderr
