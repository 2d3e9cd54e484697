"""The database: runs, and metrics since an event, with one writer and many readers."""

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
from core.cli.refusals import explaining_refusals
from core.errors import ConfigError, RunError, StudioError
from core.store import RunRow, Store
from core.workspace.workspace import Workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(Workspace(tmp_path))


def add_run(store: Store, run_id: str, **values: object) -> None:
    defaults = {"stage": "train", "state": "queued", "config": {}, "after": [], "created": 1.0}
    store.add_run(RunRow(id=run_id, **{**defaults, **values}))


def metric(number: int, name: str = "loss", value: float = 1.0) -> dict[str, object]:
    return {"number": number, "step": number, "name": name, "value": value, "time": 0.0}


def test_runs_are_listed_newest_first(store: Store) -> None:
    add_run(store, "a")
    add_run(store, "b")
    assert [row.id for row in store.list_runs()] == ["b", "a"]


def test_ended_runs_are_listed_by_their_end(store: Store) -> None:
    for name, ended in (("a", 9.0), ("b", 7.0), ("c", 8.0)):
        add_run(store, name, state="done")
        store.update_run(name, ended=ended)
    add_run(store, "d")
    assert [row.id for row in store.list_ended(2)] == ["a", "c"]
    assert store.count_runs(("queued", "done")) == 4
    assert store.count_runs(("queued",)) == 1
    before = store.find_run("c").position
    assert [row.id for row in store.list_runs(before=before, limit=1)] == ["b"]


def test_requeued_run_shows_nothing_of_its_last_end(store: Store) -> None:
    for name, stage in (("a", "train"), ("b", "shards")):
        add_run(store, name, stage=stage, state="done")
        store.update_run(name, done=7, total=9, note="saving")
        store.requeue(name)
    rows = [store.find_run(name) for name in ("a", "b")]
    assert [(row.done, row.total, row.note) for row in rows] == [(7, 9, ""), (0, 9, "")]


def test_run_is_added_only_once(store: Store) -> None:
    add_run(store, "a")
    assert not store.add_run(
        RunRow(id="a", stage="x", state="done", config={}, after=[], created=2.0)
    )
    assert store.find_run("a").stage == "train"


def test_run_is_found_by_the_start_of_its_id(store: Store) -> None:
    add_run(store, "train-1")
    add_run(store, "train-2")
    add_run(store, "shards-1")
    assert store.find_run("sh").id == "shards-1"
    with pytest.raises(RunError, match="several"):
        store.find_run("train")
    with pytest.raises(RunError, match="run 'x' was not found"):
        store.find_run("x")


def test_requeued_run_has_no_start_or_end(store: Store) -> None:
    add_run(store, "a", state="stopped", started=5.0, ended=9.0)
    store.requeue("a", reason="resumed")
    row = store.find_run("a")
    assert (row.state, row.started, row.ended, row.attempt) == ("queued", None, None, 2)


def test_metrics_are_read_since_an_event(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1), metric(2)], [], {"event_number": 2})
    first = store.metrics_since("a")
    store.ingest("a", [metric(3, value=0.5)], [], {"event_number": 3})
    assert [row.number for row in store.metrics_since("a", first[-1].number)] == [3]
    assert store.latest_metrics("a") == {"loss": 0.5}


def test_long_curves_are_sampled_including_their_last_point(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n, value=n) for n in range(1, 1001)], [], {"event_number": 1000})
    curves, newest = store.sample_metrics("a", ["loss", "eval_loss"], 100)
    assert list(curves) == ["loss"]
    assert len(curves["loss"]) == 100
    assert curves["loss"][-1] == (1000, 1000.0)
    assert store.metrics_since("a", newest) == []


def test_rollback_drops_metrics_that_are_measured_again(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n) for n in range(1, 11)], [], {"event_number": 10})
    again = [{**metric(n, value=2.0), "step": n - 10} for n in range(15, 19)]
    store.ingest("a", again, [], {"event_number": 18}, rewound_to=4)
    curve = store.sample_metrics("a", ["loss"], 100)[0]["loss"]
    assert [step for step, _ in curve] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert store.latest_metrics("a") == {"loss": 2.0}
    assert store.find_run("a").metric_counts == {"loss": 8}


def test_metrics_measured_again_are_new_to_earlier_readers(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(n) for n in range(1, 11)], [], {"event_number": 10})
    _, newest = store.sample_metrics("a", ["loss"], 100)
    again = [{**metric(n, value=2.0), "step": n - 10} for n in range(15, 19)]
    store.ingest("a", again, [], {"event_number": 18}, rewound_to=4)
    assert [row.step for row in store.metrics_since("a", newest)] == [5, 6, 7, 8]


def test_limit_never_splits_an_event(store: Store) -> None:
    add_run(store, "a")
    rows = [metric(n, name) for n in (1, 2, 3) for name in ("loss", "epoch")]
    store.ingest("a", rows, [], {"event_number": 3})
    assert [row.number for row in store.metrics_since("a", limit=3)] == [1, 1, 2, 2]
    assert [row.number for row in store.metrics_since("a", 2, limit=3)] == [3, 3]


def test_metrics_are_selected_by_name(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1), metric(1, "eval_loss")], [], {"event_number": 1})
    assert [row.name for row in store.metrics_since("a", names=["eval_loss"])] == ["eval_loss"]


def test_removed_run_takes_its_metrics_with_it(store: Store) -> None:
    add_run(store, "a")
    store.ingest("a", [metric(1)], [], {"event_number": 1})
    store.remove_run("a")
    assert store.get_run("a") is None
    assert store.metrics_since("a") == []


def test_workspace_has_runs_as_soon_as_one_is_requested(store: Store) -> None:
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
def test_invalid_database_url_error_hides_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, received: str
) -> None:
    monkeypatch.setenv("STUDIO_DATABASE_URL", url)
    with pytest.raises(ConfigError) as caught:
        Store.open(Workspace(tmp_path))
    assert received in caught.value.received
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_uncreatable_workspace_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "workspace")
    assert main(["runs", "list", "--json", "--workspace", place]) == 1
    output = capsys.readouterr()
    [line] = output.err.splitlines()
    assert place in line and "Not a directory" in line
    assert json.loads(output.out)["error"]["received"] == "Not a directory"


def test_read_only_database_is_a_one_line_error(
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


def test_refusal_without_a_path_has_the_systems_message() -> None:
    with pytest.raises(StudioError, match="No space left on device"), explaining_refusals():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(BrokenPipeError), explaining_refusals():
        raise BrokenPipeError


def test_database_is_created_in_folders_with_special_characters(tmp_path: Path) -> None:
    program = tmp_path / "my%20project"
    shutil.copytree(Path(core.__file__).parent, program / "core")
    code = (
        "import sys; from core.store import Store; from core.workspace import Workspace\n"
        "Store.open(Workspace(sys.argv[1])).close()"
    )
    place = tmp_path / "what?" / "50%"
    subprocess.run([sys.executable, "-c", code, str(place)], cwd=program, check=True)
    assert (place / "studio.db").is_file()
