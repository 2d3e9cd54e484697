"""The database: rows since an event, one writer and many readers."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError

import core
from core.__main__ import main
from core.errors import ConfigError, RunError, StudioError
from core.store import RunRow, Store, explaining_refusals
from core.workspace import Workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(Workspace(tmp_path))


def add_run(store: Store, run_id: str, **values: object) -> None:
    defaults = {"stage": "train", "state": "queued", "config": {}, "after": [], "created": 1.0}
    store.add_run(RunRow(id=run_id, **{**defaults, **values}))


def metric(number: int, name: str = "loss", value: float = 1.0) -> dict[str, object]:
    return {"number": number, "step": number, "name": name, "value": value, "time": 0.0}


def test_runs_are_listed_the_newest_first(store: Store) -> None:
    add_run(store, "a")
    add_run(store, "b")
    assert [row.id for row in store.list_runs()] == ["b", "a"]


def test_runs_that_ended_are_listed_by_when_they_did(store: Store) -> None:
    for name, ended in (("a", 9.0), ("b", 7.0), ("c", 8.0)):
        add_run(store, name, state="done")
        store.update_run(name, ended=ended)
    add_run(store, "d")
    assert [row.id for row in store.list_ended(2)] == ["a", "c"]
    assert store.count_runs(("queued", "done")) == 4
    assert store.count_runs(("queued",)) == 1
    before = store.find_run("c").position
    assert [row.id for row in store.list_runs(before=before, limit=1)] == ["b"]


def test_a_run_that_is_queued_again_shows_nothing_of_its_last_end(store: Store) -> None:
    for name, stage in (("a", "train"), ("b", "shards")):
        add_run(store, name, stage=stage, state="done")
        store.update_run(name, done=7, total=9, note="saving")
        store.requeue(name)
    rows = [store.find_run(name) for name in ("a", "b")]
    assert [(row.done, row.total, row.note) for row in rows] == [(7, 9, ""), (0, 9, "")]


def test_a_run_is_added_once(store: Store) -> None:
    add_run(store, "a")
    assert not store.add_run(
        RunRow(id="a", stage="x", state="done", config={}, after=[], created=2.0)
    )
    assert store.find_run("a").stage == "train"


def test_a_run_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    add_run(store, "train-1")
    add_run(store, "train-2")
    add_run(store, "shards-1")
    assert store.find_run("sh").id == "shards-1"
    with pytest.raises(RunError, match="several"):
        store.find_run("train")
    with pytest.raises(RunError, match="no run"):
        store.find_run("x")


def test_a_run_that_waits_again_has_not_been_started(store: Store) -> None:
    add_run(store, "a", state="stopped", started=5.0, ended=9.0)
    store.requeue("a", reason="resumed")
    row = store.find_run("a")
    assert (row.state, row.started, row.ended, row.attempt) == ("queued", None, None, 2)


def test_metrics_come_by_rows_since_an_event(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1), metric(2)], [], {"event_number": 2})
    first = store.metrics_since("a")
    store.ingest("a", [metric(3, value=0.5)], [], {"event_number": 3})
    assert [row.number for row in store.metrics_since("a", first[-1].number)] == [3]
    assert store.latest_metrics("a") == {"loss": 0.5}


def test_long_curves_are_sampled_up_to_their_end(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n, value=n) for n in range(1, 1001)], [], {"event_number": 1000})
    curves, newest = store.sample_metrics("a", ["loss", "eval_loss"], 100)
    assert list(curves) == ["loss"]
    assert len(curves["loss"]) == 100
    assert curves["loss"][-1] == (1000, 1000.0)
    assert store.metrics_since("a", newest) == []


def test_going_back_to_a_checkpoint_drops_what_is_measured_again(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n) for n in range(1, 11)], [], {"event_number": 10})
    again = [{**metric(n, value=2.0), "step": n - 10} for n in range(15, 19)]
    store.ingest("a", again, [], {"event_number": 18}, rewound_to=4)
    curve = store.sample_metrics("a", ["loss"], 100)[0]["loss"]
    assert [step for step, _ in curve] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert store.latest_metrics("a") == {"loss": 2.0}
    assert store.find_run("a").metric_counts == {"loss": 8}


def test_what_is_measured_again_is_new_to_whoever_looked_before(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n) for n in range(1, 11)], [], {"event_number": 10})
    _, newest = store.sample_metrics("a", ["loss"], 100)
    again = [{**metric(n, value=2.0), "step": n - 10} for n in range(15, 19)]
    store.ingest("a", again, [], {"event_number": 18}, rewound_to=4)
    assert [row.step for row in store.metrics_since("a", newest)] == [5, 6, 7, 8]


def test_an_event_comes_whole_whatever_the_limit(store: Store) -> None:
    add_run(store, "a")
    rows = [metric(n, name) for n in (1, 2, 3) for name in ("loss", "epoch")]
    store.ingest("a", rows, [], {"event_number": 3})
    assert [row.number for row in store.metrics_since("a", limit=3)] == [1, 1, 2, 2]
    assert [row.number for row in store.metrics_since("a", 2, limit=3)] == [3, 3]


def test_metrics_can_be_chosen_by_name(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1), metric(1, "eval_loss")], [], {"event_number": 1})
    assert [row.name for row in store.metrics_since("a", names=["eval_loss"])] == ["eval_loss"]


def test_a_run_with_its_metrics_can_be_removed(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1)], [], {"event_number": 1})
    store.remove_run("a")
    assert store.get_run("a") is None
    assert store.metrics_since("a") == []


def test_an_empty_workspace_has_no_runs_until_one_is_asked_for(store: Store) -> None:
    assert not store.has_runs()
    store.add_request("submit", {})
    assert store.has_runs()


def test_readers_do_not_wait_for_the_writer(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    writer = Store.open(workspace)
    add_run(writer, "a")
    errors: list[Exception] = []

    def read() -> None:
        reader = Store.open(workspace)
        try:
            for _ in range(30):
                reader.metrics_since("a")
                reader.list_runs()
        except SQLAlchemyError as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 60):
        writer.ingest("a", [metric(number)], [], {"event_number": number})
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(writer.metrics_since("a")) == 59


@pytest.mark.parametrize(
    ("url", "received"),
    [
        ("postgres://me:secret@host/studio", "postgres://, which is an unknown database type"),
        (
            "oracle+none://me:secret@host/studio",
            "oracle+none://, which is an unknown database type",
        ),
        ("mysql+pymysql://me:secret@host/studio", "mysql+pymysql://; its driver isn't installed"),
        ("sqlite+none:///secret.db", "sqlite+none://, which is an unknown database type"),
        ("me:secret@host/studio", "an address that can't be parsed"),
        ("postgresql://me:se@cret:secret@host/studio", "an address that can't be parsed"),
    ],
)
def test_an_address_that_no_database_has_is_said_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, received: str
) -> None:
    monkeypatch.setenv("STUDIO_DATABASE_URL", url)
    with pytest.raises(ConfigError) as caught:
        Store.open(Workspace(tmp_path))
    assert received in caught.value.received
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_workspace_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "workspace")
    assert main(["runs", "list", "--json", "--workspace", place]) == 1
    output = capsys.readouterr()
    [line] = output.err.splitlines()
    assert place in line and "Not a directory" in line
    assert json.loads(output.out)["error"]["received"] == "Not a directory"


def test_a_database_that_may_only_be_read_is_one_sentence(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_run(store, "train-1", state="done")
    address = f"sqlite:///file:{tmp_path / 'studio.db'}?mode=ro&uri=true"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    assert main(["runs", "list", "--workspace", str(tmp_path)]) == 0
    assert main(["runs", "delete", "train-1", "--workspace", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "attempt to write a readonly database" in line and "INSERT" not in line


def test_a_refusal_without_a_path_says_what_the_system_said() -> None:
    with pytest.raises(StudioError, match="No space left on device"), explaining_refusals():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(BrokenPipeError), explaining_refusals():
        raise BrokenPipeError


def test_a_database_is_made_in_folders_with_any_name(tmp_path: Path) -> None:
    program = tmp_path / "my%20project"
    shutil.copytree(Path(core.__file__).parent, program / "core")
    code = (
        "import sys; from core.store import Store; from core.workspace import Workspace\n"
        "Store.open(Workspace(sys.argv[1])).close()"
    )
    place = tmp_path / "what?" / "50%"
    subprocess.run([sys.executable, "-c", code, str(place)], cwd=program, check=True)
    assert (place / "studio.db").is_file()
