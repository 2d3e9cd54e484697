"""Tests that runs are compared by settings and figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import ShardConfig, TrainConfig, Workspace
from core.__main__ import main
from core.errors import ConfigError, RunError
from core.runs.comparison import compare_runs
from core.store import RunRow, Store


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


def add_run(store: Store, id: str, config: Any, **values: Any) -> None:
    common: dict[str, Any] = {"state": "done", "after": [], "created": 1.0, "warnings": []}
    stage = "train" if isinstance(config, TrainConfig) else "shards"
    row = RunRow(id=id, stage=stage, name=id, config=config.model_dump(mode="json"))
    for name, value in {**common, "results": {}, **values}.items():
        setattr(row, name, value)
    store.add_run(row)


def add_two(store: Store) -> None:
    ended = {"started": 10.0, "ended": 70.25}
    add_run(store, "train-a", TrainConfig(shards="rows", name="a", seed=1),
            results={"eval_loss": 2.5, "model": "a"}, **ended)  # fmt: skip
    add_run(store, "train-b", TrainConfig(shards="rows", name="=b", seed=2, family="gpt2"),
            results={"eval_loss": 2.25, "alerts": 3}, state="stopped")  # fmt: skip


def test_only_settings_that_differ_are_listed_and_all_figures(store: Store) -> None:
    add_two(store)
    found = compare_runs(store, ["train-a", "train-b"])
    assert found.settings["seed"] == [1, 2] and found.settings["family"][1] == "gpt2"
    assert "shards" not in found.settings and "name" not in found.settings
    assert found.figures == {"eval_loss": [2.5, 2.25], "alerts": [None, 3]}
    assert found.seconds == [60.2, None] and found.states == ["done", "stopped"]


def test_options_of_the_corpus_are_named_by_their_path(store: Store) -> None:
    for name, limit in (("one", 10), ("two", 20)):
        corpus = {"source": "docs", "limit": limit}
        add_run(store, f"shards-{name}", ShardConfig(tokenizer="words", corpus=corpus))
    found = compare_runs(store, ["shards-one", "shards-two"])
    assert found.settings == {"corpus.limit": [10, 20]}


def test_one_run_or_an_unknown_run_is_an_error(store: Store) -> None:
    add_two(store)
    with pytest.raises(ConfigError, match="at least two different runs"):
        compare_runs(store, ["train-a", "train-a"])
    with pytest.raises(RunError, match="'nothing' was not found"):
        compare_runs(store, ["train-a", "nothing"])


def test_command_writes_json_a_table_and_csv_without_formulas(
    store: Store, workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_two(store)
    store.update_run("train-b", name="=SUM(A1)")
    path = tmp_path / "runs.csv"
    command = ["runs", "compare", "train-a", "train-b", "--workspace", str(workspace.root)]
    assert main([*command, "--csv", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["runs"] == ["train-a", "train-b"] and said["figures"]["eval_loss"] == [2.5, 2.25]
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["run"], first["eval_loss"], first["seed"]) == ("train-a", "2.5", "1")
    assert second["name"] == "'=SUM(A1)" and first["alerts"] == ""
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["eval_loss", "2.5", "2.25"] for line in lines)
