"""Runs are found and sorted by settings and figures; titles, tags and notes are kept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import main
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError
from core.records.annotations import read_annotations
from core.records.folder import RunFolder, RunRecord
from core.runs.client import annotate_run, rebuild_database
from core.runs.search import find_runs, parse_query
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    stop_worker(workspace)


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    add_run(store, "a", results={"eval_loss": 2.5}, title="First try", tags=["long", "en"])
    add_run(store, "b", learning_rate=1e-3, state="failed", results={"eval_loss": 2.25})
    add_run(store, "c", learning_rate=5e-5, family="gpt2", notes="Needs a larger batch")
    metric = {"number": 1, "step": 5, "name": "loss", "value": 3.5, "time": 1.0}
    store.ingest("train-c", [metric], [], {})
    yield store
    store.close()


def add_run(store: Store, name: str, **values: Any) -> None:
    options = {one: values.pop(one) for one in ("learning_rate", "family") if one in values}
    own = TrainConfig(name=name, shards="rows", **options).model_dump(mode="json")
    config = values.pop("config", own)
    row = RunRow(id=f"train-{name}", stage="train", name=name, config=config, after=[], created=1.0)
    common = {
        "attempt": 1,
        "attempt_number": 0,
        "remote": {},
        "state": "done",
        "warnings": [],
        "results": {},
        "title": "",
        "tags": [],
        "notes": "",
    }
    for one, value in {**common, **values}.items():
        setattr(row, one, value)
    store.add_run(row)


def found(workspace: Workspace, store: Store, query: str) -> str:
    rows = find_runs(workspace, store, query)
    return "".join(row.id.removeprefix("train-") for row in rows)


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("", "cba"),
        ("first", "a"),
        ('"first try"', "a"),
        ("LARGER", "c"),
        ("-first", "cb"),
        ("learning_rate>1e-4", "b"),
        ("learning_rate=0.001", "b"),
        ("learning_rate>=0.00005 learning_rate<1e-3", "c"),
        ("family=gpt2", "c"),
        ("family!=gpt2", "ba"),
        ("status=failed", "b"),
        ("tag=long", "a"),
        ("tag!=long", "cb"),
        ("-tag=long", "cb"),
        ("tag=", "cb"),
        ("tag=none", "cb"),
        ("tag!=none", "a"),
        ("sort:tag", "acb"),
        ("notes~batch", "c"),
        ("eval_loss<2.4", "b"),
        ("loss=3.5", "c"),
        ("eval_loss=none", "c"),
        ("sort:eval_loss", "bac"),
        ("sort:-eval_loss", "abc"),
        ("sort:name", "bca"),
        ("train sort:-learning_rate", "bca"),
    ],
)
def test_query_finds_runs_in_order(
    workspace: Workspace, store: Store, query: str, runs: str
) -> None:
    assert found(workspace, store, query) == runs


def write_events(workspace: Workspace, name: str, *events: dict[str, Any]) -> RunFolder:
    """Writes the log of a run as its process does."""
    folder = RunFolder.of(workspace, f"train-{name}")
    folder.path.mkdir(parents=True)
    numbered = [{"n": number, "t": 0.0, **one} for number, one in enumerate(events, 1)]
    lines = [json.dumps(one, separators=(",", ":")) for one in numbered]
    folder.events.write_text("\n".join(lines) + "\n")
    return folder


def resolved(**settings: Any) -> dict[str, Any]:
    return {"kind": "resolved", "settings": settings}


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("learning_rate>1e-4", "edb"),
        ("learning_rate>1e-3 state=done", "d"),
        ("num_train_steps=2750", "d"),
        ("num_train_steps=none", "cba"),  # Not started.
        ("dtype_policy=mixed_bfloat16", "d"),
        ("dtype_policy=auto", "ecba"),
        ("num_train_epochs<0.5", "e"),  # Overridden by num_train_steps.
        ("warmup_ratio=0.05", "dcba"),
        ("sort:-learning_rate", "edbca"),
        ("hidden_size=64 sort:learning_rate", "de"),
    ],
)
def test_query_uses_the_values_that_runs_chose_for_automatic_settings(
    workspace: Workspace, store: Store, query: str, runs: str
) -> None:
    add_run(store, "d", results={"hidden_size": 64})
    options = {"num_train_steps": 10, "warmup_steps": 2, "dtype_policy": "auto"}
    config = TrainConfig(name="e", shards="rows", **options).model_dump(mode="json")
    add_run(store, "e", state="running", config=config, attempt=2)
    write_events(
        workspace, "d", resolved(learning_rate=1.5e-3, num_train_steps=2750, warmup_ratio=0.0996,
                                 dtype_policy="mixed_bfloat16", num_train_epochs=0.998),
    )  # fmt: skip
    # The newest attempt counts, and a line that is not yet complete doesn't.
    newest = resolved(learning_rate=3e-3, hidden_size=64, num_train_epochs=0.25, warmup_ratio=0.2)
    folder = write_events(workspace, "e", resolved(learning_rate=9e-9), newest)
    with folder.events.open("a") as file:
        file.write('{"n":3,"t":0.0,"kind":"resolved","settings":{"learning_rate":1e-9')
    assert found(workspace, store, query) == runs


def test_values_of_a_running_attempt_replace_those_of_the_one_before(
    workspace: Workspace, store: Store
) -> None:
    add_run(store, "d", state="running", attempt=2, attempt_number=1)
    folder = write_events(workspace, "d", resolved(learning_rate=1e-3))
    assert found(workspace, store, "learning_rate=1e-3 id=train-d") == "d"
    with folder.events.open("a") as file:
        file.write('{"n":2,"t":0.0,"kind":"resolved","settings":{"learning_rate":2e-3}}\n')
    assert found(workspace, store, "learning_rate=2e-3") == "d"


def test_duration_counts_every_attempt_and_a_run_at_work(
    workspace: Workspace, store: Store
) -> None:
    now = time.time()
    add_run(store, "d", attempt=2, started=now - 20, ended=now - 10)
    write_events(
        workspace, "d", {"t": now - 5000, "kind": "started"}, {"t": now - 4000, "kind": "note"},
        {"t": now - 20, "kind": "started"}, {"t": now - 10, "kind": "finished"},
    )  # fmt: skip
    add_run(store, "e", state="running", started=now - 500)
    add_run(store, "f", started=now - 200, ended=now - 100)
    assert found(workspace, store, "duration>=1010 duration<1011") == "d"
    assert found(workspace, store, "duration>=500 duration<900") == "e"
    assert found(workspace, store, "sort:-duration duration>0") == "def"


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("learning_rate>fast", "a number after learning_rate>"),
        ("learning_rat>1", "learning_rate"),
        ("sort:eval_los", "eval_loss"),
        ('"open', "closing quotation mark"),
        ("loss>", "a value after loss>"),
        ("sort:", "sort:NAME"),
        ("x" * 501, "at most 500 characters"),
        ("a " * 21, "at most 20 conditions"),
    ],
)
def test_wrong_query_says_what_was_expected(
    workspace: Workspace, store: Store, query: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_runs(workspace, store, query)
    assert complaint in caught.value.expected and caught.value.field == "filter"


def test_apostrophes_and_backslashes_are_plain_text() -> None:
    assert [term.value for term in parse_query(r"don't a\b").terms] == ["don't", r"a\b"]


def test_title_tags_and_notes_are_stored_and_survive_a_rebuilt_database(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(name="x", shards="rows").model_dump(mode="json")
    folder = RunFolder.of(workspace, "train-x")
    folder.write_record(RunRecord(id="train-x", stage="train", config=config))
    folder.request_stop("abort")
    rebuild_database(workspace)
    common = ["--workspace", str(workspace.root), "--json"]
    edit = ["runs", "edit", "train-x", *common, "--title", "Best <b>", "--notes", "seen\nit"]
    assert main([*edit, "--tag", "a", "--tag", "b"]) == 0
    assert main(["runs", "edit", "train-x", *common, "--untag", "a"]) == 0
    expected = {"run": "train-x", "title": "Best <b>", "tags": ["b"], "notes": "seen\nit"}
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == expected
    assert main(["runs", "edit", "train-x", *common]) == 2
    assert "nothing to change" in capsys.readouterr().out
    stop_worker(workspace)
    for path in workspace.root.glob("studio.db*"):
        path.unlink()
    assert rebuild_database(workspace) == 1
    assert main(["runs", "list", *common, "--filter", "best tag=b"]) == 0
    [run] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: run[name] for name in expected} == expected


def test_too_long_or_missing_is_refused(workspace: Workspace) -> None:
    Store.open(workspace).close()
    with pytest.raises(RunError):
        annotate_run(workspace, "nothing", title="x")
    store = Store.open(workspace)
    add_run(store, "a")
    store.close()
    for values in ({"title": "x" * 121}, {"tags": ["a,b"]}, {"notes": "x" * 10_001}):
        with pytest.raises(ConfigError):
            annotate_run(workspace, "train-a", **values)  # type: ignore[arg-type]


def test_damaged_notes_in_a_folder_are_left_out(workspace: Workspace) -> None:
    folder = RunFolder.of(workspace, "train-a")
    folder.path.mkdir(parents=True)
    (folder.path / "notes.json").write_text('{"title": 3, "tags": ["' + "x" * 99 + '"]}')
    assert read_annotations(folder) == {}
