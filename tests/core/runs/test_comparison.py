"""Tests that runs are compared by settings and figures."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core import ShardConfig, TrainConfig, Workspace
from core.__main__ import main
from core.errors import ConfigError, RunError
from core.records.folder import RunFolder
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
    common: dict[str, Any] = {
        "attempt": 1,
        "attempt_number": 0,
        "remote": {},
        "state": "done",
        "after": [],
        "created": 1.0,
        "warnings": [],
    }
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


def test_only_settings_that_differ_are_listed_and_all_figures(
    workspace: Workspace, store: Store
) -> None:
    add_two(store)
    found = compare_runs(workspace, store, ["train-a", "train-b"])
    assert found.settings["seed"] == [1, 2] and found.settings["family"][1] == "gpt2"
    assert "shards" not in found.settings and "name" not in found.settings
    assert found.figures == {"eval_loss": [2.5, 2.25], "alerts": [None, 3]}
    assert found.seconds == [60.2, None] and found.states == ["done", "stopped"]


def test_size_is_that_of_the_checkpoint(workspace: Workspace, store: Store) -> None:
    """The option says base, its default, while the checkpoint or a dimension defines the model."""
    cases = {
        "named": ({"size": "mini"}, (4, 256), "mini"),
        "tiny": ({"checkpoint": "model"}, (2, 128), "tiny"),
        "other": ({"checkpoint": "model"}, (2, 32), None),
        "wide": ({"hidden_size": 512, "num_hidden_layers": 4}, (4, 512), "small"),
    }
    for name, (values, (layers, width), _) in cases.items():
        add_run(store, f"train-{name}", TrainConfig(shards="rows", **values))
        folder = RunFolder.of(workspace, f"train-{name}")
        folder.path.mkdir(parents=True)
        settings = {"num_hidden_layers": layers, "hidden_size": width}
        event = {"n": 1, "t": 1.0, "kind": "resolved", "settings": settings}
        folder.events.write_text(json.dumps(event, separators=(",", ":")) + "\n")
    found = compare_runs(workspace, store, [f"train-{name}" for name in cases])
    assert found.settings["size"] == [wanted for _, _, wanted in cases.values()]


def test_options_of_the_corpus_are_named_by_their_path(workspace: Workspace, store: Store) -> None:
    for name, limit in (("one", 10), ("two", 20)):
        corpus = {"source": "docs", "limit": limit}
        add_run(store, f"shards-{name}", ShardConfig(tokenizer="words", corpus=corpus))
    found = compare_runs(workspace, store, ["shards-one", "shards-two"])
    assert found.settings == {"corpus.limit": [10, 20]}


def test_one_run_or_an_unknown_run_is_an_error(workspace: Workspace, store: Store) -> None:
    add_two(store)
    with pytest.raises(ConfigError, match="at least two different runs"):
        compare_runs(workspace, store, ["train-a", "train-a"])
    with pytest.raises(RunError, match="'nothing' was not found"):
        compare_runs(workspace, store, ["train-a", "nothing"])


def test_automatic_settings_are_compared_by_the_values_that_runs_chose(
    workspace: Workspace, store: Store
) -> None:
    for name, steps, chosen in (("a", None, 2750), ("b", 2750, 2750), ("c", None, None)):
        config = TrainConfig(shards="rows", num_train_steps=steps, learning_rate=None)
        add_run(store, f"train-{name}", config)
        write_events(workspace, f"train-{name}", [
            {"kind": "resolved", "settings": {"num_train_steps": chosen, "learning_rate": 1e-3}}
        ] if chosen else [])  # fmt: skip
    assert compare_runs(workspace, store, ["train-a", "train-b"]).settings == {}
    found = compare_runs(workspace, store, ["train-a", "train-c"]).settings
    assert found == {"num_train_steps": [2750, None], "learning_rate": [1e-3, None]}


def write_events(workspace: Workspace, run: str, events: Sequence[Mapping[str, Any]]) -> None:
    folder = RunFolder.of(workspace, run)
    folder.path.mkdir(parents=True)
    lines = [json.dumps({"n": number, "t": 0.0, **one}, separators=(",", ":")) + "\n"
             for number, one in enumerate(events, 1)]  # fmt: skip
    folder.events.write_text("".join(lines))


def test_seconds_count_every_attempt_and_a_run_at_work(
    workspace: Workspace, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    config, now = TrainConfig(shards="rows"), time.time()
    add_run(store, "train-a", config, attempt=2, started=2000.0, ended=2050.0)
    add_run(store, "train-b", config, state="running", started=now - 70)
    add_run(store, "train-c", config, state="queued", attempt=2)
    add_run(store, "train-d", config, state="queued")
    earlier = [{"t": 100.0, "kind": "started"}, {"t": 700.0, "kind": "note"}]
    write_events(workspace, "train-a", [*earlier, {"t": 2000.0, "kind": "started"}])
    write_events(workspace, "train-c", earlier)
    runs = [f"train-{name}" for name in "abcd"]
    found = compare_runs(workspace, store, runs)
    assert found.seconds[0] == 650.0 and found.seconds[2:] == [600.0, None]
    assert found.seconds[1] is not None and 70 <= found.seconds[1] < 370
    assert next(csv.DictReader(io.StringIO(found.to_csv())))["seconds"] == "650.0"
    assert main(["runs", "compare", "train-a", "train-d", "--workspace", str(workspace.root)]) == 0
    assert "seconds  650" in re.sub(" +", "  ", capsys.readouterr().out)


def test_cost_of_a_machine_is_a_figure(workspace: Workspace, store: Store) -> None:
    config = TrainConfig(shards="rows", target="ssh://a")
    remote = {"target": "ssh://a", "cost": 3.25}
    add_run(store, "train-a", config, remote=remote, results={"eval_loss": 2.0})
    add_run(store, "train-b", config, remote={"target": "ssh://a", "cost": None})
    found = compare_runs(workspace, store, ["train-a", "train-b"])
    assert found.figures == {"eval_loss": [2.0, None], "cost": [3.25, None]}
    first, _ = csv.DictReader(io.StringIO(found.to_csv()))
    assert first["cost"] == "3.25"


def test_figure_with_the_name_of_a_setting_has_its_own_column(
    workspace: Workspace, store: Store
) -> None:
    for name, rate in (("a", 1e-3), ("b", 1e-2)):
        config = TrainConfig(shards="rows", learning_rate=rate)
        add_run(store, f"train-{name}", config, results={"learning_rate": 0.0})
    found = compare_runs(workspace, store, ["train-a", "train-b"])
    first, second = csv.DictReader(io.StringIO(found.to_csv()))
    assert (first["learning_rate"], second["learning_rate"]) == ("0.001", "0.01")
    assert first["learning_rate (measured)"] == "0.0"


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
