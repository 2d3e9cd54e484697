"""Tests of runs as real processes, from the queue to their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import CorpusConfig, ShardConfig, TokenizerConfig, Workspace, train_tokenizer
from core.cli import following
from core.errors import ConfigError, RunError
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs import client
from core.runs.client import (
    delete_artifact,
    delete_run,
    ensure_worker,
    read_log_tail,
    rebuild_database,
    refresh,
    request_stop,
    resume_run,
    submit,
)
from core.runs.start import child_environment, is_worker_running, worker_log
from core.store import RunRow, Store
from tests.core.runs.support import (
    stop_worker,
    wait_for,
    wait_until_ended,
    worker_identities,
)
from tests.texts import sentences, write_sentences


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    stop_worker(workspace)


def quick_config(tmp_path: Path, **values: object) -> TokenizerConfig:
    text = write_sentences(tmp_path / "text.txt")
    corpus = CorpusConfig(source="files", path=str(text))
    return TokenizerConfig(corpus=corpus, vocab_size=80, **values)


def slow_config(tmp_path: Path) -> TokenizerConfig:
    """A config that takes seconds: it reads a long file."""
    text = tmp_path / "long.txt"
    text.write_text("\n".join(sentences(4_000)) * 100)
    corpus = CorpusConfig(source="files", path=str(text))
    return TokenizerConfig(corpus=corpus, vocab_size=80)


def start_slow_run(workspace: Workspace, tmp_path: Path) -> tuple[str, ProcessIdentity]:
    run_id = submit(workspace, "tokenizer", slow_config(tmp_path))
    folder = RunFolder.of(workspace, run_id)
    wait_for(lambda: folder.read_process("run"))
    wait_for(lambda: read_events(folder.events)[0])
    identity = folder.read_process("run")
    assert identity is not None
    assert identity.is_alive()
    return run_id, identity


def test_finished_run_is_done_and_lists_its_artifact(workspace: Workspace, tmp_path: Path) -> None:
    run_id = submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.exit_code, row.signal, row.error) == ("done", 0, None, None)
    assert Path(row.artifact) == workspace.find("tokenizer", "mine").path
    assert row.results["vocab_size"] == 80
    artifact = Store.open(workspace).list_artifacts("tokenizer")[0]
    assert (artifact.name, artifact.run_id) == ("mine", run_id)


def test_failed_run_is_reported_with_its_error(workspace: Workspace, tmp_path: Path) -> None:
    corpus = CorpusConfig(source="files", path=str(tmp_path / "nothing.txt"))
    run_id = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus))
    row = wait_until_ended(workspace, run_id)
    assert row.state == "failed"
    assert row.exit_code in (1, 2)
    assert row.error is not None
    assert "nothing.txt" in json.dumps(row.error)
    assert row.error["fix"]
    assert not list(workspace.folder("tokenizer").glob("*"))
    assert "nothing.txt" in read_log_tail(workspace, run_id)


@pytest.mark.slow(4)
def test_run_waits_for_the_run_that_makes_its_input(workspace: Workspace, tmp_path: Path) -> None:
    config = quick_config(tmp_path, name="words")
    first = submit(workspace, "tokenizer", config)
    shards = ShardConfig(tokenizer="words", corpus=config.corpus, max_seq_length=16)
    second = submit(workspace, "shards", shards, after=[first])
    assert wait_until_ended(workspace, second).state == "done"
    started = [Store.open(workspace).find_run(one).started for one in (first, second)]
    assert started[0] < started[1]


def test_run_fails_if_its_dependency_fails(workspace: Workspace, tmp_path: Path) -> None:
    corpus = CorpusConfig(source="files", path=str(tmp_path / "nothing.txt"))
    first = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus))
    second = submit(workspace, "shards", ShardConfig(tokenizer="x", corpus=corpus), after=[first])
    row = wait_until_ended(workspace, second)
    assert (row.state, row.reason) == ("failed", "dependency")
    assert first in row.error["received"]


@pytest.mark.slow(3)
def test_killed_run_is_reported_with_its_signal(workspace: Workspace, tmp_path: Path) -> None:
    run_id, identity = start_slow_run(workspace, tmp_path)
    os.kill(identity.pid, signal.SIGKILL)
    killed = time.monotonic()
    row = wait_until_ended(workspace, run_id)
    assert time.monotonic() - killed < 10
    assert (row.state, row.signal) == ("failed", signal.SIGKILL)
    assert "memory" in row.error["fix"]


@pytest.mark.slow(3)
def test_run_killed_with_its_supervisor_is_lost(workspace: Workspace, tmp_path: Path) -> None:
    run_id, identity = start_slow_run(workspace, tmp_path)
    supervisor = RunFolder.of(workspace, run_id).read_process("supervisor")
    os.kill(supervisor.pid, signal.SIGKILL)
    os.kill(identity.pid, signal.SIGKILL)
    row = wait_until_ended(workspace, run_id)
    assert row.state == "lost"
    assert row.error["fix"]


def test_run_continues_after_its_worker_is_killed(workspace: Workspace, tmp_path: Path) -> None:
    run_id, identity = start_slow_run(workspace, tmp_path)
    stop_worker(workspace)
    assert identity.is_alive()
    wait_for(lambda: RunFolder.of(workspace, run_id).read_exit())
    assert Store.open(workspace).find_run(run_id).state == "running"
    refresh(workspace)
    assert wait_until_ended(workspace, run_id).state == "done"


def write_old_run(workspace: Workspace, tmp_path: Path) -> RunFolder:
    folder = RunFolder.of(workspace, "tokenizer-old")
    config = quick_config(tmp_path).model_dump(mode="json")
    folder.write_record(RunRecord(id="tokenizer-old", stage="tokenizer", config=config))
    return folder


def test_another_process_with_the_runs_pid_is_not_mistaken_for_it_or_killed(
    workspace: Workspace, tmp_path: Path
) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = ProcessIdentity.of(stranger.pid)
    folder = write_old_run(workspace, tmp_path)
    old = ProcessIdentity(stranger.pid, here.started - 5000, here.boot_id)
    folder.write_processes(run=old, supervisor=old)
    store = Store.open(workspace)
    store.add_request("register", {"run": "tokenizer-old"})
    ensure_worker(workspace)
    assert wait_until_ended(workspace, "tokenizer-old").state == "lost"
    with pytest.raises(RunError, match="can't be stopped"):
        request_stop(workspace, "tokenizer-old", "abort")
    time.sleep(0.5)
    assert here.is_alive()
    stranger.communicate(b"\n")


@pytest.mark.slow(4)
def test_resuming_waits_for_a_supervisor_that_is_about_to_end(
    workspace: Workspace, tmp_path: Path
) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = write_old_run(workspace, tmp_path)
    alive = ProcessIdentity.of(supervisor.pid)
    folder.write_processes(run=alive, supervisor=alive)
    folder.write_exit(None, signal.SIGSEGV)
    Store.open(workspace).add_request("register", {"run": "tokenizer-old"})
    ensure_worker(workspace)
    assert wait_until_ended(workspace, "tokenizer-old").state == "failed"
    threading.Timer(1.0, supervisor.communicate, (b"\n",)).start()
    resume_run(workspace, "tokenizer-old")
    assert wait_until_ended(workspace, "tokenizer-old").state == "done"


@pytest.mark.slow(4)
def test_queued_run_can_be_cancelled(workspace: Workspace, tmp_path: Path) -> None:
    start_slow_run(workspace, tmp_path)
    queued = submit(workspace, "tokenizer", quick_config(tmp_path))
    request_stop(workspace, queued)
    row = wait_until_ended(workspace, queued)
    assert (row.state, row.reason, row.started) == ("stopped", "cancelled", None)


@pytest.mark.slow(7)
def test_aborted_run_stops_and_leaves_no_artifact(workspace: Workspace, tmp_path: Path) -> None:
    run_id, _ = start_slow_run(workspace, tmp_path)
    request_stop(workspace, run_id, "abort")
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "aborted", None)
    assert not list(workspace.folder("tokenizer").glob("[!.]*"))


@pytest.mark.slow(9)
def test_stopped_run_can_be_resumed(workspace: Workspace, tmp_path: Path) -> None:
    run_id, _ = start_slow_run(workspace, tmp_path)
    request_stop(workspace, run_id, "abort")
    wait_until_ended(workspace, run_id)
    assert resume_run(workspace, run_id) == run_id
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.attempt, row.error) == ("done", 2, None)


@pytest.mark.slow(4)
def test_running_run_is_not_resumed(workspace: Workspace, tmp_path: Path) -> None:
    run_id, _ = start_slow_run(workspace, tmp_path)
    with pytest.raises(RunError, match="can't be resumed"):
        resume_run(workspace, run_id)


@pytest.mark.slow(14)
def test_terminated_run_is_requeued(workspace: Workspace, tmp_path: Path) -> None:
    run_id, _ = start_slow_run(workspace, tmp_path)
    supervisor = RunFolder.of(workspace, run_id).read_process("supervisor")
    os.kill(supervisor.pid, signal.SIGTERM)
    row = wait_until_ended(workspace, run_id)
    assert (row.state, row.attempt) == ("done", 2)


@pytest.mark.slow(13)
def test_second_worker_exits_at_once(workspace: Workspace) -> None:
    ensure_worker(workspace)
    wait_for(lambda: is_worker_running(workspace))
    second = subprocess.run(
        [sys.executable, "-m", "core.runs.worker", "--workspace", str(workspace.root)],
        env=child_environment(),
        timeout=20,
        check=False,
    )
    assert second.returncode == 0
    assert len(worker_identities(workspace)) == 1


@pytest.mark.slow(5)
def test_idle_worker_exits(workspace: Workspace) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "core.runs.worker",
            f"--workspace={workspace.root}",
            "--idle-seconds=0.5",
        ],
        env=child_environment(),
        timeout=20,
        check=True,
    )
    assert not is_worker_running(workspace)


@pytest.mark.slow(3)
def test_second_run_with_the_same_name_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    start_slow_run(workspace, tmp_path)
    submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    with pytest.raises(ConfigError, match="taken"):
        submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))


def test_run_in_the_calling_process_is_listed(workspace: Workspace, tmp_path: Path) -> None:
    artifact = train_tokenizer(quick_config(tmp_path, name="script"), workspace)
    refresh(workspace)
    store = Store.open(workspace)
    wait_for(lambda: store.list_runs() and store.list_runs()[0].state == "done")
    row = store.list_runs()[0]
    assert (row.stage, row.artifact) == ("tokenizer", str(artifact.path))


def test_deleted_run_leaves_its_artifact(workspace: Workspace, tmp_path: Path) -> None:
    run_id = submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    wait_until_ended(workspace, run_id)
    delete_run(workspace, run_id)
    assert Store.open(workspace).get_run(run_id) is None
    assert not RunFolder.of(workspace, run_id).path.exists()
    assert workspace.find("tokenizer", "mine")


def test_relative_paths_resolve_against_the_submitters_folder(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sentences(tmp_path / "here" / "text.txt")
    monkeypatch.chdir(tmp_path / "here")
    corpus = CorpusConfig(source="files", path="text.txt")
    run_id = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus, vocab_size=80))
    assert wait_until_ended(workspace, run_id).state == "done"


def test_secrets_are_not_stored_with_a_run(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecretvalue")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    run_id = submit(workspace, "tokenizer", quick_config(tmp_path))
    wait_until_ended(workspace, run_id)
    written = [path.read_bytes() for path in workspace.root.rglob("*") if path.is_file()]
    assert not [content for content in written if b"hf_verysecretvalue" in content]
    environment = RunFolder.of(workspace, run_id).read_record().environment
    assert environment["HF_ENDPOINT"] == "http://127.0.0.1:9"


@pytest.mark.slow(4)
def test_database_is_rebuilt_from_the_run_folders(workspace: Workspace, tmp_path: Path) -> None:
    done = submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    corpus = CorpusConfig(source="files", path=str(tmp_path / "nothing.txt"))
    failed = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus))
    for run_id in (done, failed):
        wait_until_ended(workspace, run_id)
    before = {row.id: summary(row) for row in Store.open(workspace).list_runs()}
    stop_worker(workspace)
    for path in workspace.root.glob("studio.db*"):
        path.unlink()
    assert rebuild_database(workspace) == 2
    for run_id in (done, failed):
        wait_until_ended(workspace, run_id)
    after = {row.id: summary(row) for row in Store.open(workspace).list_runs()}
    assert after == before
    assert [row.name for row in Store.open(workspace).list_artifacts()] == ["mine"]
    assert rebuild_database(workspace) == 0


def summary(row: RunRow) -> tuple[object, ...]:
    return (row.stage, row.state, row.exit_code, row.artifact, row.results, row.error, row.attempt)


@pytest.mark.slow(5)
def test_artifact_needed_by_a_queued_run_is_not_deleted(
    workspace: Workspace, tmp_path: Path
) -> None:
    config = quick_config(tmp_path, name="words")
    wait_until_ended(workspace, submit(workspace, "tokenizer", config))
    start_slow_run(workspace, tmp_path)
    shards = ShardConfig(tokenizer="words", corpus=config.corpus, max_seq_length=16)
    waiting = submit(workspace, "shards", shards)
    with pytest.raises(RunError, match=waiting):
        delete_artifact(workspace, "tokenizer", "words")
    request_stop(workspace, waiting)
    delete_artifact(workspace, "tokenizer", "words")
    assert not workspace.list("tokenizer")
    assert not Store.open(workspace).list_artifacts()


def test_worker_that_cannot_start_is_reported_with_its_log_tail(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(workspace: Workspace) -> subprocess.Popen[bytes]:
        with worker_log(workspace).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", "raise SystemExit('no luck')"], stderr=log
            )

    with monkeypatch.context() as patched:
        patched.setattr(client, "start_worker", start)
        with pytest.raises(RunError, match="no luck"):
            submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    # The failed submission left no run behind.
    submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    assert len(Store.open(workspace).list_runs()) == 1


def test_invalid_slots_variable_is_reported_before_a_run_is_queued(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SLOTS", "many")
    with pytest.raises(ConfigError, match="STUDIO_SLOTS=many"):
        submit(workspace, "tokenizer", quick_config(tmp_path))
    assert not Store.open(workspace).pending_requests()


@pytest.mark.slow(11)
def test_following_a_run_survives_a_killed_worker(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0.1)
    run_id, _ = start_slow_run(workspace, tmp_path)
    stop_worker(workspace)
    assert following.follow(workspace, run_id, as_json=True) == 0
    assert Store.open(workspace).find_run(run_id).state == "done"


def test_following_a_deleted_run_ends_with_an_error(workspace: Workspace) -> None:
    with pytest.raises(RunError, match="no longer exists"):
        following.follow(workspace, "train-none", as_json=False)


def test_damaged_record_does_not_block_the_rebuild_of_other_runs(
    workspace: Workspace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = submit(workspace, "tokenizer", quick_config(tmp_path, name="mine"))
    wait_until_ended(workspace, done)
    stop_worker(workspace)
    for path in workspace.root.glob("studio.db*"):
        path.unlink()
    (workspace.runs / "torn").mkdir()
    (workspace.runs / "torn" / "run.json").write_text("{")
    assert rebuild_database(workspace) == 1
    assert "torn" in caplog.text


def test_artifacts_outside_the_workspace_are_not_deleted(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = train_tokenizer(quick_config(tmp_path, name="mine"), Workspace(tmp_path / "other"))
    monkeypatch.chdir(elsewhere.path.parent)
    for name in ("mine", str(elsewhere.path), "../mine"):
        with pytest.raises(ConfigError, match=r"The tokenizer .* was not found"):
            delete_artifact(workspace, "tokenizer", name)
    assert elsewhere.path.is_dir()
