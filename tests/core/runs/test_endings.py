"""How a run ended is named with its reason, its last words and what to do about it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core import CorpusConfig, TokenizerConfig, TrainConfig, Workspace
from core.errors import LossNotFiniteError
from core.events import FolderReporter
from core.runs.execute import describe_failure
from core.runs.folder import RunFolder, RunRecord
from core.runs.process import ProcessIdentity
from core.runs.worker import Worker, child_environment
from core.shards.records import FixedRecords
from core.store import RunRow, Store

OUT_OF_MEMORY, NO_ROOM = "smaller batch", "make room"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run that was started and whose process is gone."""
    workspace = Workspace(tmp_path)
    folder = RunFolder.of(workspace, "train-one")
    config = TrainConfig(shards="rows").model_dump(mode="json")
    folder.write_record(RunRecord(id="train-one", stage="train", config=config))
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder.write_processes(run=ProcessIdentity.of(gone.pid))
    gone.communicate(b"\n")
    reporter = FolderReporter(folder.path)
    reporter.event("started", stage="train", process={"pid": gone.pid})
    reporter.close()
    return folder


def ending_of(folder: RunFolder) -> RunRow:
    """Lets a worker take the folder in."""
    worker = Worker(Workspace(folder.path.parent.parent), slots=0)
    worker.store.add_request("register", {"run": "train-one"})
    worker.work()
    row = worker.store.find_run("train-one")
    worker.store.close()
    return row


@pytest.mark.parametrize(
    ("code", "number", "log", "reason", "received", "fix"),
    [
        (None, 9, "step 7", "killed", "signal 9 (SIGKILL); the log ends: step 7", OUT_OF_MEMORY),
        (None, 11, "", "crashed", "signal 11 (SIGSEGV)", "read the end of the log"),
        (None, 7, "", "data_missing", "signal 7 (SIGBUS)", "restore the shards"),
        (None, 6, "memory allocation of 99 bytes failed", "out_of_memory", "99 b", OUT_OF_MEMORY),
        (None, 6, "another task died" + 20 * "\n@ 0x7", "process_lost", "SIGABRT", "other hosts"),
        (1, None, "MemoryError", "out_of_memory", "exit code 1", OUT_OF_MEMORY),
        (1, None, "OSError: No space left on device", "disk_full", "No space", NO_ROOM),
        (3, None, "one\n\ntwo\nthree\nfour", "error", "3; the log ends: two / three / four", "log"),
    ],
)
def test_a_process_that_ends_without_a_word_is_named_with_its_last_ones(
    folder: RunFolder,
    code: int | None,
    number: int | None,
    log: str,
    reason: str,
    received: str,
    fix: str,
) -> None:
    folder.log.write_text(log)
    folder.write_exit(code, number)
    row = ending_of(folder)
    assert (row.state, row.reason, row.exit_code, row.signal) == ("failed", reason, code, number)
    assert row.error is not None
    assert received in row.error["received"]
    assert fix in row.error["fix"]


def test_what_sigterm_ends_before_it_can_listen_is_queued_again(folder: RunFolder) -> None:
    folder.write_exit(None, signal.SIGTERM)
    row = ending_of(folder)
    assert (row.state, row.reason, row.attempt) == ("queued", "preempted", 2)


def test_an_end_that_was_taken_in_before_is_found_again(folder: RunFolder) -> None:
    folder.write_processes(run=ProcessIdentity.of_this())
    reporter = FolderReporter(folder.path, echo=False)
    reporter.event("finished", state="done", reason="", results={"loss": 1.0})
    reporter.close()
    assert ending_of(folder).state == "running"
    folder.write_exit(0, None)
    row = ending_of(folder)
    assert (row.state, row.results) == ("done", {"loss": 1.0})


def fill_a_disk() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def fill_the_memory() -> None:
    bytearray(1 << 62)


def read_a_missing_file() -> None:
    Path("/nowhere/text.txt").read_text()


def read_a_missing_shard() -> None:
    FixedRecords(8, 2).map(Path("/nowhere/dataset-0-9.tfrecord"), 9)


def lose_the_loss() -> None:
    raise LossNotFiniteError("The loss is no longer a finite number", fix="lower learning_rate")


@pytest.mark.parametrize(
    ("fail", "reason", "fix"),
    [
        (fill_a_disk, "disk_full", NO_ROOM),
        (fill_the_memory, "out_of_memory", OUT_OF_MEMORY),
        (read_a_missing_file, "data_missing", "bring the file back"),
        (read_a_missing_shard, "data_missing", "restore the file"),
        (lose_the_loss, "loss_not_finite", "learning_rate"),
    ],
)
def test_a_known_failure_comes_with_its_reason_and_advice(
    fail: Callable[[], None], reason: str, fix: str
) -> None:
    with pytest.raises(Exception) as raised:
        fail()
    described = describe_failure(raised.value)
    assert described["reason"] == reason
    assert fix in described["error"]["fix"]


def test_of_two_processes_on_one_run_folder_the_second_refuses(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = RunFolder.of(workspace, "tokenizer-one")
    config = TokenizerConfig(corpus=CorpusConfig(source="files", path=str(tmp_path / "none.txt")))
    values = config.model_dump(mode="json")
    folder.write_record(RunRecord(id="tokenizer-one", stage="tokenizer", config=values))
    command = [sys.executable, "-m", "core.runs.execute", str(folder.path)]
    with folder.lock():
        second = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    assert "is running already" in second.stderr
    assert not folder.events.exists()


def test_an_evaluation_does_not_change_the_row_of_what_it_measures(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    worker = Worker(workspace, slots=0)
    model = {
        "kind": "model", "name": "speaker", "path": str(tmp_path / "models/speaker"),
        "fingerprint": "aa", "created": 1.0, "counts": {"eval_loss": 2.0, "tokens": 9},
    }  # fmt: skip
    for run_id, made, results in (("train-a", True, model["counts"]), ("train-b", False, {"x": 1})):
        folder = RunFolder.of(workspace, run_id)
        config = TrainConfig(shards="rows", evaluate_only=not made).model_dump(mode="json")
        folder.write_record(RunRecord(id=run_id, stage="train", config=config))
        reporter = FolderReporter(folder.path, echo=False)
        reporter.event("artifact", made=made, artifact={**model, "counts": results})
        reporter.event("finished", state="done", reason="", results=results)
        reporter.close()
        worker.store.add_request("register", {"run": run_id})
    worker.work()
    worker.store.close()
    store = Store.open(workspace)
    (row,) = store.list_artifacts()
    assert (row.run_id, row.counts) == ("train-a", model["counts"])
    measured = store.find_run("train-b")
    assert (measured.name, measured.results) == ("speaker", {"x": 1})
