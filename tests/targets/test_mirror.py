"""Tests that what a mirror holds is checked, and that a superseded process changes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig, Workspace
from core.errors import StudioError
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.targets import follower as follower_module
from core.targets import publisher as publisher_module
from core.targets.errors import MirrorError
from core.targets.follower import Follower
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.publisher import Publisher
from core.targets.schema import CheckpointReference, Exit, Heartbeat, RunSpec, StopRequest
from core.workspace.manifests import MANIFEST_FILE, Manifest, describe_files, write_manifest
from tests.core.runs.support import begin_run, wait_for

RUN = "train-20260101-000000-abcd"


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "SECONDS_PER_ROUND", 0.02)
    monkeypatch.setattr(publisher_module, "SECONDS_PER_ROUND", 0.02)


@pytest.fixture
def mirror(tmp_path: Path) -> RunMirror:
    mirror = RunMirror(open_store(f"file://{tmp_path}/mirror"), RUN)
    config = TrainConfig(shards="rows").model_dump(mode="json")
    mirror.write_spec(RunSpec(id=RUN, stage="train", config=config, created=1.0))
    return mirror


def raw(mirror: RunMirror, name: str, data: bytes) -> None:
    """Writes an object of the run as a stranger could."""
    path = Path(mirror.address.removeprefix("file://"), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"n": 1, "t": 5.0, "kind": kind, **fields}


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in events)


def home_folder(mirror: RunMirror, tmp_path: Path) -> tuple[Workspace, RunFolder]:
    workspace = Workspace(tmp_path / "home")
    folder = RunFolder.of(workspace, RUN)
    folder.write_record(RunRecord(id=RUN, stage="train", config={}, follows=mirror.address))
    return workspace, folder


def follow(mirror: RunMirror, tmp_path: Path) -> list[dict[str, Any]]:
    workspace, folder = home_folder(mirror, tmp_path)
    Follower(folder, workspace).follow()
    return read_events(folder.events)[0]


def metrics(step: int) -> dict[str, Any]:
    return event("metrics", step=step, values={"loss": 1.5})


STOPPED = event("finished", state="stopped", reason="saved")


def test_incarnations_are_read_in_order_and_never_again(mirror: RunMirror, tmp_path: Path) -> None:
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(metrics(10), metrics(20)))
    mirror.claim(CheckpointReference(incarnation=1, step=10))
    mirror.create_segment(2, 0, lines(event("resumed", step=10), metrics(20), STOPPED))
    mirror.write_exit(2, Exit(code=1, time=9.0, reason="saved"))
    found = follow(mirror, tmp_path)
    assert [one["step"] for one in found if "step" in one] == [10, 20, 10, 20]
    assert [one["n"] for one in found] == list(range(1, len(found) + 1))
    # What the first incarnation writes afterwards, perhaps after it was frozen, is ignored.
    mirror.create_segment(1, 1, lines(metrics(30)))
    mirror.claim(CheckpointReference(incarnation=1, step=10))
    mirror.create_segment(3, 0, lines(event("resumed", step=10), STOPPED))
    mirror.write_exit(3, Exit(code=1, time=9.0, reason="saved"))
    assert not [one for one in follow(mirror, tmp_path) if one.get("step") == 30]


def test_incarnation_without_a_checkpoint_starts_the_curves_over(
    mirror: RunMirror, tmp_path: Path
) -> None:
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(metrics(10)))
    mirror.claim(None)
    mirror.create_segment(2, 0, lines(metrics(10), STOPPED))
    mirror.write_exit(2, Exit(code=1, time=9.0, reason="saved"))
    kinds = [(one["kind"], one.get("step")) for one in follow(mirror, tmp_path)]
    steps = [one for one in kinds if one[0] in ("metrics", "resumed")]
    assert steps == [("metrics", 10), ("resumed", -1), ("metrics", 10)]


HOSTILE: dict[str, Callable[[RunMirror], object]] = {
    "large segment": lambda mirror: raw(
        mirror, "incarnations/000001/events/000000.jsonl", b"x" * (9 << 20)
    ),
    "many events": lambda mirror: (
        [
            raw(
                mirror,
                f"incarnations/000001/events/{number:06d}.jsonl",
                lines(event("note", message="x" * 90_000)) * 12,
            )
            for number in range(3)
        ]
        and None
    ),
    "no JSON": lambda mirror: mirror.create_segment(1, 0, b"\xff\n"),
    "deep JSON": lambda mirror: mirror.create_segment(1, 0, b"[" * 90_000 + b"\n"),
    "no kind": lambda mirror: mirror.create_segment(1, 0, b'{"t": 1}\n'),
    "infinite time": lambda mirror: (
        mirror.create_segment(1, 0, b'{"t":1e999,"kind":"note"}\n') and None
    ),
    "wrong step": lambda mirror: (
        mirror.create_segment(1, 0, lines(event("metrics", step="../../x", values={"loss": 1})))
        and None
    ),
    "text as a value": lambda mirror: (
        mirror.create_segment(1, 0, lines(event("metrics", step=1, values={"loss": "<script>"})))
        and None
    ),
    "error with other fields": lambda mirror: (
        mirror.create_segment(
            1, 0, lines(event("finished", state="failed", error={"problem": "x", "exit_code": 0}))
        )
        and None
    ),
    "another claim": lambda mirror: raw(
        mirror, "claims/000002.json", b'{"incarnation": 7, "nonce": "0123456789abcdef", "time": 1}'
    ),
    "wrong exit": lambda mirror: raw(mirror, "incarnations/000001/exit.json", b'{"code": "rm"}'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_mirror_ends_the_run_with_an_error(
    mirror: RunMirror, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "MOST_EVENTS_BYTES", 2 << 20)
    mirror.claim(None)
    HOSTILE[case](mirror)
    found = follow(mirror, tmp_path)
    assert found[-1]["kind"] == "finished"
    assert found[-1]["reason"] == "mirror"
    assert found[-1]["error"]["fix"]


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", "sub/../../escaped"])
def test_artifact_with_a_name_outside_its_folder_is_refused(
    mirror: RunMirror, tmp_path: Path, name: str
) -> None:
    mirror.claim(None)
    made = tmp_path / "made"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    files = describe_files(made)
    manifest = Manifest("model", "x", "0" * 16, files={name: files["model.safetensors"]})
    write_manifest(made, manifest)
    mirror.upload_artifact(made, 1)
    described = {"kind": "model", "name": "x", "path": "/elsewhere"}
    done = event("finished", state="done", results={})
    mirror.create_segment(1, 0, lines(event("artifact", artifact=described), done))
    mirror.write_exit(1, Exit(code=0, time=9.0))
    found = follow(mirror, tmp_path)
    assert (found[-1]["kind"], found[-1]["reason"]) == ("finished", "mirror")
    assert not list(tmp_path.rglob("escaped*"))
    assert not (tmp_path / "home/models/x").exists()


def test_artifact_whose_content_differs_from_its_manifest_is_refused(
    mirror: RunMirror, tmp_path: Path
) -> None:
    mirror.claim(None)
    made = tmp_path / "made"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    write_manifest(made, Manifest("model", "x", "0" * 16, files=describe_files(made)))
    mirror.upload_artifact(made, 1)
    raw(mirror, "incarnations/000001/artifact/model.safetensors", b"weighty")
    described = {"kind": "model", "name": "x"}
    mirror.create_segment(1, 0, lines(event("artifact", artifact=described)))
    mirror.write_exit(1, Exit(code=0, time=9.0))
    assert "another content" in follow(mirror, tmp_path)[-1]["error"]["received"]


def test_restarted_follower_copies_no_event_twice(mirror: RunMirror, tmp_path: Path) -> None:
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(metrics(1), metrics(2)))
    workspace, folder = home_folder(mirror, tmp_path)
    first = Follower(folder, workspace)
    assert first._round() is False
    mirror.create_segment(1, 1, lines(metrics(3), STOPPED))
    mirror.write_exit(1, Exit(code=1, time=9.0, reason="saved"))
    found = follow(mirror, tmp_path)
    assert [one["step"] for one in found if one["kind"] == "metrics"] == [1, 2, 3]


def test_silent_machine_is_reported_and_its_run_can_be_given_up(
    mirror: RunMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "SILENT_AFTER_SECONDS", 0.1)
    mirror.claim(None)
    workspace, folder = home_folder(mirror, tmp_path)
    following = Follower(folder, workspace)
    wait_for(lambda: following._round() is False and following._is_silent)
    alerts = [one.get("alert") for one in read_events(folder.events)[0]]
    assert "silent" in alerts
    folder.request_stop("abort")
    following.follow()
    last = read_events(folder.events)[0][-1]
    assert (last["state"], last["reason"]) == ("stopped", "aborted")
    assert folder.read_exit() is not None


def test_superseded_publisher_kills_the_run_and_writes_nothing_more(
    mirror: RunMirror, tmp_path: Path
) -> None:
    folder, reporter = begin_run(Workspace(tmp_path / "machine"), RUN)
    killed: list[float] = []
    record = folder.read_record()
    publisher = Publisher(folder, record, mirror.store.address, lambda: killed.append(1.0))
    publisher.start()
    wait_for(lambda: mirror.look().segments(1))
    mirror.claim(None)
    wait_for(lambda: killed)
    before = mirror.look().objects
    reporter.metrics(5, {"loss": 1.0})
    publisher.finish(None, 9)
    reporter.close()
    assert mirror.look().objects == before


def test_stop_request_reaches_only_incarnations_up_to_its_number(
    mirror: RunMirror, tmp_path: Path
) -> None:
    mirror.claim(None)
    mirror.write_stop(StopRequest(mode="abort", up_to_incarnation=1))
    folder, reporter = begin_run(Workspace(tmp_path / "machine"), RUN)
    publisher = Publisher(folder, folder.read_record(), mirror.store.address, lambda: None)
    publisher.start()
    wait_for(lambda: mirror.read_heartbeat(2))
    time.sleep(0.2)
    assert not folder.stop_file.exists()
    mirror.write_stop(StopRequest(mode="save", up_to_incarnation=2))
    wait_for(lambda: folder.stop_file.exists())
    publisher.finish(1, None)
    reporter.close()
    assert mirror.read_exit(2) is not None


def test_unreachable_mirror_does_not_end_the_run_and_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of the process lies on a disk that is full, too.
    log = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", closefd=False)
    monkeypatch.setattr("sys.stderr", log)
    blocked = tmp_path / "mirror"
    blocked.write_text("a file where the folder should be")
    folder, reporter = begin_run(Workspace(tmp_path / "machine"), RUN)
    publisher = Publisher(folder, folder.read_record(), f"file://{blocked}", lambda: None)
    publisher.start()
    reporter.metrics(1, {"loss": 1.0})
    time.sleep(0.2)
    blocked.unlink()
    mirror = RunMirror(open_store(f"file://{blocked}"), RUN)
    wait_for(lambda: mirror.look().segments(1))
    publisher.finish(0, None)
    reporter.close()
    assert b'"metrics"' in mirror.read_segment(1, 0)


@pytest.mark.parametrize("run_id", ["../x", "", ".", "a/b", "x\ny"])
def test_invalid_run_ids_are_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StudioError, match="can't be a run's id"):
        RunMirror(open_store(f"file://{tmp_path}"), run_id)


def test_damaged_checkpoint_is_passed_over_for_an_older_one(
    mirror: RunMirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.claim(None)
    for step in (10, 20):
        made = tmp_path / f"step-{step:08d}"
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"weights")
        manifest = Manifest(
            "checkpoint", made.name, "0" * 16, counts={"step": step}, files=describe_files(made)
        )
        write_manifest(made, manifest)
        mirror.upload_checkpoint(made, 1, step)
    raw(mirror, "incarnations/000001/checkpoints/step-00000020/model.safetensors", b"weighty")
    mirror.create_segment(1, 0, lines(STOPPED))
    mirror.write_exit(1, Exit(code=1, time=9.0, reason="saved"))
    follow(mirror, tmp_path)
    folder = tmp_path / "home/runs" / RUN / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["step-00000010"]
    assert (folder / "step-00000010" / MANIFEST_FILE).is_file()
    assert "step-00000020 in the mirror is damaged" in capsys.readouterr().err

    listing = mirror.look()
    for checkpoint in mirror.find_checkpoints(listing):
        mirror.remove_checkpoint(checkpoint)
    assert mirror.fetch_newest_checkpoint(listing, tmp_path / "other") is None
    assert capsys.readouterr().err == ""


def test_second_follower_ends_quietly_and_leaves_the_run_to_the_first(
    mirror: RunMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its handler of SIGTERM would stay, and end the tests without a word.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    _, folder = home_folder(mirror, tmp_path)
    with folder.lock():
        assert follower_module.main([str(folder.path)]) == 0
    assert not folder.events.exists()


def test_event_may_have_any_field(mirror: RunMirror, tmp_path: Path) -> None:
    mirror.claim(None)
    fields = {"_time": 1, "self": 2, "seconds": 3, "from": 4, "fields": 5}
    mirror.create_segment(1, 0, lines(event("note", message="one", **fields), STOPPED))
    mirror.write_exit(1, Exit(code=1, time=9.0, reason="saved"))
    (note,) = [one for one in follow(mirror, tmp_path) if one["kind"] == "note"]
    assert (note["_time"], note["self"], note["from"]) == (1, 2, [1, 0, 0])


def test_file_fetched_from_a_folder_does_not_change_with_it(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/mirror")
    store.write("a/one", b"verified")
    store.download("a/one", tmp_path / "copy", 100)
    with Path(tmp_path, "mirror/a/one").open("r+b") as file:
        file.write(b"replaced")
    assert (tmp_path / "copy").read_bytes() == b"verified"


def test_times_of_a_launch_are_when_its_own_objects_were_stored(mirror: RunMirror) -> None:
    began = time.time() - 1
    mirror.claim(None, launch=1)
    mirror.write_heartbeat(1, Heartbeat(number=1, time=5.0))
    mirror.claim(None, launch=2)
    mirror.write_exit(2, Exit(code=0, time=1e11))
    for launch, before in ((1, 0), (2, 1)):
        first, last = mirror.times_of(launch, before) or (0.0, 0.0)
        assert began < first <= last < time.time() + 1
    assert mirror.times_of(3, 2) is None


def test_machine_runs_only_the_description_that_was_launched(mirror: RunMirror) -> None:
    spec = mirror.read_spec()
    launched = sha256(spec.to_bytes()).hexdigest()
    assert mirror.read_spec(launched) == spec
    mirror.write_spec(spec.model_copy(update={"config": {**spec.config, "push_to_hub": True}}))
    with pytest.raises(MirrorError, match="was changed"):
        mirror.read_spec(launched)


def keep_model(folder: RunFolder, words: int, content: bytes) -> Path:
    path = folder.path / "checkpoints" / f"words-{words}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(content)
    write_manifest(path, Manifest("checkpoint", path.name, "0" * 16, files=describe_files(path)))
    return path


def test_models_kept_at_words_arrive_and_others_do_not(mirror: RunMirror, tmp_path: Path) -> None:
    there, reporter = begin_run(Workspace(tmp_path / "there"), RUN)
    keep_model(there, 1000, b"a thousand")
    keep_model(there, 3000, b"nobody asked")
    damaged = keep_model(there, 2000, b"two thousand")
    (damaged / "model.safetensors").write_bytes(b"TWO THOUSAND")
    publisher = Publisher(there, there.read_record(), mirror.store.address, kill=lambda: None)
    publisher.start()
    wait_for(lambda: len(mirror.look().kept_models()) == 3, 20)
    reporter.event("kept", words=1000, path="/there")
    reporter.event("finished", state="stopped", reason="saved")
    reporter.close()
    publisher.finish(0, None)

    workspace = Workspace(tmp_path / "here")
    here = RunFolder.of(workspace, RUN)
    config = TrainConfig(shards="rows", checkpoint_words="1k 2k 4k").model_dump(mode="json")
    here.write_record(RunRecord(RUN, "train", config, follows=mirror.address))
    Follower(here, workspace).follow()
    kept = here.path / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["words-1000"]
    assert (kept / "words-1000/model.safetensors").read_bytes() == b"a thousand"
    (event,) = [one for one in read_events(here.events)[0] if one["kind"] == "kept"]
    assert event["path"] == str(kept / "words-1000")


def test_kept_model_under_another_name_is_refused(
    mirror: RunMirror, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = keep_model(RunFolder(tmp_path / "run"), 1000, b"x")
    mirror.upload_kept_model(folder, 1, 2000)
    mirror.fetch_kept_models(mirror.look(), {2000}, tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())
    assert "not what its name says" in capfd.readouterr().err
