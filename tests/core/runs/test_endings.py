"""Tests that the end of a run is reported with its reason, log tail and advice."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from core import CorpusConfig, TokenizerConfig, TrainConfig, Workspace
from core.errors import LossNotFiniteError, RunError
from core.records.events import FolderReporter, RunStopped, StopMode
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs import execute
from core.runs import worker as worker_module
from core.runs.execute import describe_failure
from core.runs.start import child_environment
from core.runs.worker import Worker
from core.shards.records import FixedRecords
from core.store import RunRow, Store
from core.workspace.manifests import Artifact

OUT_OF_MEMORY, NO_ROOM = "smaller batch", "free disk space"
GLOO = "terminate called after throwing 'gloo::EnforceNotMet'\n  what(): Received 512"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a started run whose process no longer exists."""
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
    """Lets a worker read the folder, and returns the run's row."""
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
        (None, 6, GLOO, "process_lost", "Received 512", "other hosts"),
        (1, None, "MemoryError", "out_of_memory", "exit code 1", OUT_OF_MEMORY),
        (1, None, "OSError: No space left on device", "disk_full", "No space", NO_ROOM),
        (3, None, "one\n\ntwo\nthree\nfour", "error", "3; the log ends: two / three / four", "log"),
    ],
)
def test_process_that_dies_is_reported_with_reason_log_tail_and_advice(
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


@pytest.mark.parametrize(
    "change", [{"code": 1 << 63}, {"signal": 10**400}, {"time": 1 << 60}, {"code": "1"}]
)
def test_record_of_an_end_with_impossible_numbers_is_none(
    folder: RunFolder, change: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    folder.write_record(replace(folder.read_record(), created=10.0))
    folder.write_exit(1, None)
    path = folder.path / "exit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert (ending_of(folder).state, capfd.readouterr().err) == ("lost", "")


@pytest.mark.parametrize("created", [1 << 60, 10**400])
def test_record_with_an_impossible_time_is_refused(folder: RunFolder, created: int) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": created}))
    with pytest.raises(RunError):
        folder.read_record()


def test_killed_script_is_lost_and_not_restarted(folder: RunFolder) -> None:
    folder.write_record(replace(folder.read_record(), created=10.0))  # Older than the grace period.
    assert ending_of(folder).state == "lost"


def test_lost_run_ends_at_the_time_of_its_last_event(folder: RunFolder) -> None:
    events = [{"n": 1, "t": 10.0, "kind": "started", "process": {"pid": 1}}]
    events.append({"n": 2, "t": 70.0, "kind": "metrics", "step": 3, "values": {"loss": 1.0}})
    lines = [json.dumps(one, separators=(",", ":")) + "\n" for one in events]
    folder.events.write_text("".join(lines))
    gone = folder.read_process("run")
    folder.write_processes(supervisor=gone, run=gone)
    row = ending_of(folder)
    assert (row.state, row.started, row.ended) == ("lost", 10.0, 70.0)


def test_run_ended_by_sigterm_before_its_handler_is_set_is_requeued(folder: RunFolder) -> None:
    folder.write_exit(None, signal.SIGTERM)
    row = ending_of(folder)
    assert (row.state, row.reason, row.attempt) == ("queued", "preempted", 2)


@pytest.mark.parametrize(
    ("mode", "number"),
    [("abort", signal.SIGKILL), ("abort", signal.SIGTERM), ("save", signal.SIGTERM)],
)
def test_run_killed_after_a_stop_request_is_stopped_and_not_requeued(
    folder: RunFolder, mode: StopMode, number: int
) -> None:
    folder.request_stop(mode)
    folder.write_exit(None, number)
    row = ending_of(folder)
    assert (row.state, row.reason, row.error) == ("stopped", "aborted", None)


def test_run_killed_before_it_could_save_has_failed(folder: RunFolder) -> None:
    folder.request_stop("save")
    folder.write_exit(None, signal.SIGKILL)
    row = ending_of(folder)
    assert (row.state, row.reason) == ("failed", "killed")


@pytest.mark.parametrize(("mode", "reason"), [("save", "saved"), ("abort", "aborted")])
def test_sigterm_after_a_stop_request_does_not_requeue_the_run(
    folder: RunFolder, mode: StopMode, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.request_stop(mode)
    reporter = FolderReporter(folder.path, echo=False)
    reporter.preempt()

    def stage(_: object, __: Workspace, reporter: FolderReporter) -> Artifact:
        reporter.raise_if_stopped()
        raise AssertionError("nobody told it to stop")

    monkeypatch.setattr(execute, "stage_function", lambda _: stage)
    with pytest.raises(RunStopped):
        execute.execute_stage("train", TrainConfig(), Workspace(folder.path.parents[1]), reporter)
    reporter.close()
    folder.write_exit(1, None)
    row = ending_of(folder)
    assert (row.state, row.reason) == ("stopped", reason)


def test_unreadable_run_does_not_block_other_runs(
    folder: RunFolder,
) -> None:
    folder.write_exit(0, None)
    worker = Worker(Workspace(folder.path.parents[1]), slots=0)
    worker.store.add_request("register", {"run": "train-one"})
    other = RunFolder(folder.path.with_name("train-other"))
    shutil.copytree(folder.path, other.path)
    other.write_record(replace(folder.read_record(), id="train-other"))
    with other.events.open("a") as events:
        events.write(json.dumps({"n": 2, "t": 0.0, "kind": "metrics", "step": 1}) + "\n")
    worker.store.add_request("register", {"run": "train-other"})
    for _ in range(2):
        worker.work()
    rows = {row.id: row for row in worker.store.list_runs()}
    worker.store.close()
    assert rows["train-one"].error is not None
    assert rows["train-other"].error is not None
    assert "without reporting a result" in rows["train-one"].error["problem"]
    assert rows["train-other"].error["received"] == "KeyError: 'values'"


def test_queued_run_with_a_missing_folder_fails_and_other_runs_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        worker_module, "start_in_own_session", lambda words, _: started.append(words[-1])
    )
    workspace = Workspace(tmp_path)
    worker = Worker(workspace, slots=0)
    for name in ("gone", "cancelled", "waiting"):
        record = RunRecord(id=name, stage="train", config={})
        worker.store.add_request("submit", asdict(record))
    worker.work()
    for name in ("gone", "cancelled"):
        shutil.rmtree(workspace.runs / name)
    worker.store.add_request("stop", {"run": "cancelled"})
    worker.slots = 1
    worker.work()
    rows = {row.id: (row.state, row.reason) for row in worker.store.list_runs()}
    worker.store.close()
    assert rows == {
        "gone": ("failed", "data_missing"),
        "cancelled": ("stopped", "cancelled"),
        "waiting": ("running", ""),
    }
    assert [Path(one).name for one in started] == ["waiting"]


def test_run_that_starts_slowly_is_not_started_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(worker_module, "start_in_own_session", lambda *_: slow)
    monkeypatch.setattr(worker_module, "STARTING_GRACE_SECONDS", 0.0)
    worker = Worker(Workspace(tmp_path), slots=1)
    record = RunRecord(id="train-slow", stage="train", config={})
    worker.store.add_request("submit", asdict(record))
    for _ in range(2):
        worker.work()
    assert worker.store.find_run("train-slow").state == "running"
    slow.communicate(b"\n")
    worker.slots = 0
    worker.work()
    assert worker.store.find_run("train-slow").state == "queued"
    worker.store.close()


def test_result_recorded_before_the_process_exits_is_kept(folder: RunFolder) -> None:
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
        (read_a_missing_file, "data_missing", "restore the file"),
        (read_a_missing_shard, "data_missing", "restore the file"),
        (lose_the_loss, "loss_not_finite", "learning_rate"),
    ],
)
def test_known_failure_is_described_with_reason_and_advice(
    fail: Callable[[], None], reason: str, fix: str
) -> None:
    with pytest.raises(Exception) as raised:
        fail()
    described = describe_failure(raised.value)
    assert described["reason"] == reason
    assert fix in described["error"]["fix"]


def test_second_process_on_a_run_folder_is_refused(tmp_path: Path) -> None:
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
    assert "is already running" in second.stderr
    assert not folder.events.exists()


def test_evaluation_does_not_change_the_artifact_row_of_its_model(tmp_path: Path) -> None:
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


def test_run_whose_supervisor_cannot_start_fails_after_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object, log: Path) -> subprocess.Popen[bytes]:
        log.write_text("ImportError: no such module")
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
        process.wait()
        return process

    monkeypatch.setattr(worker_module, "start_in_own_session", start)
    worker = Worker(Workspace(tmp_path), slots=1)
    record = RunRecord(id="train-broken", stage="train", config={})
    worker.store.add_request("submit", asdict(record))
    for _ in range(2):
        worker.work()
    row = worker.store.find_run("train-broken")
    worker.store.close()
    assert row.state == "failed" and row.error
    assert "exit code 1" in row.error["received"] and "ImportError" in row.error["received"]


def test_run_with_a_damaged_record_fails_at_its_start(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    worker = Worker(workspace, slots=0)
    record = RunRecord(id="train-torn", stage="train", config={})
    worker.store.add_request("submit", asdict(record))
    worker.work()
    (workspace.runs / "train-torn" / "run.json").write_text('{"of": "another version"}')
    worker.slots = 1
    worker.work()
    row = worker.store.find_run("train-torn")
    worker.store.close()
    assert (row.state, row.reason) == ("failed", "data_missing")
