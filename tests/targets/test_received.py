"""Tests that following or taking over a run does nothing that its description alone asks for."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig, Workspace
from core.corpus.finding import find_files
from core.errors import ConfigError, RunError, StudioError
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.report.page import report_page
from core.runs import client
from core.runs.worker import Worker
from core.stages.registry import STAGES, summarize_results
from core.targets import follower as follower_module
from core.targets.blobs import BLOBS, Inputs, collect_inputs, place_inputs, upload_inputs
from core.targets.follower import Follower
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.schema import Exit, Input, InputFile, RunSpec, parse_document
from core.targets.takeover import take_over, take_over_as_stranger
from core.workspace.manifests import Manifest, describe_files, hash_file, write_manifest
from tests.targets.test_mirror import RUN, event, lines, metrics
from ui.parts.results import finetuning_headline, headline, results_of

HOSTILE = {
    "target": "tpu://v5litepod-8?zone=us-west4-a",
    "max_hours": 5.0,
    "output": "/tmp/escaped",
    "push_to_hub": True,
    "hub_model_id": "stranger/model",
    "hub_private_repo": False,
    "mirror": "gs://stranger/mirror",
}


@pytest.fixture
def mirror(tmp_path: Path) -> RunMirror:
    return RunMirror(open_store(f"file://{tmp_path}/mirror"), RUN)


def describe(mirror: RunMirror, inputs: tuple[Input, ...] = (), /, **fields: Any) -> None:
    config = {**TrainConfig(shards="owner/rows").model_dump(mode="json"), **fields}
    stage = str(config.pop("stage", "train"))
    mirror.write_spec(RunSpec(id=RUN, stage=stage, config=config, created=1.0, inputs=inputs))


def add_shards(mirror: RunMirror, folder: Path, content: bytes) -> Input:
    folder.mkdir(parents=True)
    (folder / "rows.bin").write_bytes(content)
    write_manifest(folder, Manifest("shards", folder.name, "0" * 16, files=describe_files(folder)))
    found = Inputs()
    found.add_folder("shards", "shards", folder)
    upload_inputs(mirror.store, found, None, lambda done, total: None)
    return found.inputs[0]


def test_run_that_is_taken_over_publishes_launches_and_overwrites_nothing(
    mirror: RunMirror, tmp_path: Path
) -> None:
    evaluated = {"evaluate_every": 5, "evaluate_text_path": "/a", "evaluate_text_column": "story"}
    processes = {"process_id": 1, "num_processes": 2, "coordinator_address": "stranger:1"}
    describe(mirror, **HOSTILE, **processes, **evaluated)
    record = take_over(Workspace(tmp_path / "home"), mirror.address, {}, adopt=True)
    defaults = TrainConfig().model_dump(mode="json")
    changed = {name: value for name, value in record.config.items() if value != defaults[name]}
    assert changed == {"shards": "owner/rows", "mirror": mirror.store.address}


def test_run_that_is_followed_launches_no_machine(
    mirror: RunMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(mirror, **HOSTILE)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(client, "_ask", lambda workspace, kind, payload: asked.append(payload))
    client.follow_run(Workspace(tmp_path / "home"), mirror.address)
    assert not set(HOSTILE.values()) & set(map(str, asked[0]["config"].values()))
    config = {**asked[0]["config"], **HOSTILE}
    folder = RunFolder(tmp_path / "home/runs" / RUN)
    folder.write_record(RunRecord(**{**asked[0], "config": config}))
    assert Follower(folder, Workspace(tmp_path / "home"))._launcher is None


@pytest.mark.parametrize("stage", ["push", "tokenizer", "shards", "unknown"])
def test_run_of_a_stage_without_a_mirror_is_refused(
    mirror: RunMirror, tmp_path: Path, stage: str
) -> None:
    describe(mirror, stage=stage)
    for action in (client.follow_run, lambda *both: take_over(*both, {}, adopt=True)):
        with pytest.raises(StudioError, match="can't be executed or shown here"):
            action(Workspace(tmp_path / "home"), mirror.address)


@pytest.mark.parametrize("field", ["shards", "tokenizer", "checkpoint", "model_config_path"])
@pytest.mark.parametrize(
    "form", ["{path}", "file://{path}", "simplecache::file://{path}", "private"]
)
def test_files_that_a_run_did_not_bring_are_refused(
    mirror: RunMirror, tmp_path: Path, field: str, form: str
) -> None:
    workspace = Workspace(tmp_path / "home")
    for kind in ("shards", "tokenizer", "model"):
        (workspace.folder(kind) / "private").mkdir(parents=True)
    private = tmp_path / "private"
    private.mkdir()
    if (field, form) == ("model_config_path", "private"):
        form = "{path}"
    describe(mirror, **{field: form.format(path=private)})
    with pytest.raises(StudioError) as caught:
        take_over(workspace, mirror.address, {}, adopt=True)
    assert field in caught.value.received
    assert not RunFolder.of(workspace, RUN).is_there()


@pytest.mark.parametrize(
    ("stage", "field"), [("evaluate", "path"), ("evaluate", "model"), ("finetune", "train_path"),
                         ("finetune", "validation_path"), ("finetune", "test_path")],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{path}", "{path}*", "file://{path}", "private"])
def test_data_that_a_run_did_not_bring_are_refused(
    mirror: RunMirror, tmp_path: Path, stage: str, field: str, form: str
) -> None:
    workspace = Workspace(tmp_path / "home")
    (workspace.folder("model") / "private").mkdir(parents=True)
    (tmp_path / "private").write_text("a secret")
    if (field, form) == ("model", "{path}*"):
        form = "{path}"
    config = STAGES[stage].config.parse({field: form.format(path=tmp_path / "private")})
    values = config.model_dump(mode="json")
    mirror.write_spec(RunSpec(id=RUN, stage=stage, config=values, created=1.0))
    for action in (partial(take_over, adopt=True), take_over_as_stranger):
        with pytest.raises(StudioError) as caught:
            action(workspace, mirror.address, {})
        assert field in caught.value.received
    assert not list(workspace.runs.glob("*/run.json"))


def test_figures_of_a_followed_run_are_not_taken_for_those_of_a_model_that_is_here(
    mirror: RunMirror, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "home")
    mirror.write_spec(RunSpec(id=RUN, stage="evaluate", config={}, created=1.0))
    mirror.claim(None)
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "evaluation.json").write_text("{}")
    manifest = Manifest(
        "evaluation", "blimp", "0" * 16, inputs={"model": "1" * 16}, counts={"accuracy": 1.0},
        files=describe_files(folder),
    )  # fmt: skip
    write_manifest(folder, manifest)
    mirror.upload_artifact(folder, 1)
    described = {"kind": "evaluation", "name": "blimp", "path": "/etc"}
    events = [event("artifact", artifact=described), event("finished", state="done", reason="")]
    mirror.create_segment(1, 0, lines(*events))
    mirror.write_exit(1, Exit(code=0, time=9.0))
    run = RunFolder.of(workspace, RUN)
    run.write_record(RunRecord(id=RUN, stage="evaluate", config={}, follows=mirror.address))
    Follower(run, workspace).follow()
    (evaluation,) = workspace.list("evaluation")
    assert (evaluation.manifest.counts, evaluation.manifest.inputs) == ({"accuracy": 1.0}, {})


def test_artifact_of_the_same_sizes_is_not_taken_for_the_input(
    mirror: RunMirror, tmp_path: Path
) -> None:
    given = add_shards(mirror, tmp_path / "there/rows", b"rows")
    workspace = Workspace(tmp_path / "home")
    other = RunMirror(open_store(f"file://{tmp_path}/other"), RUN)
    add_shards(other, workspace.folder("shards") / "rows", b"ROWS")
    describe(mirror, (given,), shards="rows")
    with pytest.raises(RunError, match="other shards of the name"):
        take_over(workspace, mirror.address, {}, adopt=True)


def test_inputs_are_found_again_at_the_next_take_over(mirror: RunMirror, tmp_path: Path) -> None:
    given = add_shards(mirror, tmp_path / "there/rows", b"rows")
    describe(mirror, (given,), shards="/elsewhere/rows")
    workspace = Workspace(tmp_path / "home")
    for _ in range(2):
        assert take_over(workspace, mirror.address, {}, adopt=True).config["shards"] == "rows"
        shutil.rmtree(RunFolder.of(workspace, RUN).path)


def test_broken_off_fetch_of_an_input_leaves_no_half_of_it(
    mirror: RunMirror, tmp_path: Path
) -> None:
    given = add_shards(mirror, tmp_path / "there/rows", b"rows")
    describe(mirror, (given,), shards="rows")
    workspace = Workspace(tmp_path / "home")
    mirror.store.remove([f"{BLOBS}/{given.files[-1].sha256}"])
    with pytest.raises(StudioError, match="missing"):
        take_over(workspace, mirror.address, {}, adopt=True)
    assert not (workspace.folder("shards") / "rows").exists()


def test_nameless_inputs_of_two_runs_are_kept_apart(mirror: RunMirror, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home")
    paths = []
    for content in ("{}", "[]"):
        file = tmp_path / "config.json"
        file.write_text(content)
        found = Inputs()
        found.add_files("model_config_path", {"file.json": file})
        upload_inputs(mirror.store, found, None, lambda done, total: None)
        placed = place_inputs(mirror.store, found.inputs, workspace, tmp_path / "cache")
        paths.append(Path(placed["model_config_path"]))
    assert [path.read_text() for path in paths] == ["{}", "[]"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a b.jsonl", ["a b.jsonl"]),
        (".", ["a b.jsonl", "winter/held-out.txt", "\u00e9t\u00e9/held-out.txt"]),
        ("*/held-out.txt", ["winter/held-out.txt", "\u00e9t\u00e9/held-out.txt"]),
        ("*.md", ["[a].md", "b.md"]),
    ],
)
def test_evaluation_files_travel_with_their_names(
    mirror: RunMirror,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    names: list[str],
) -> None:
    files = {
        "a b.jsonl": "{}", "\u00e9t\u00e9/held-out.txt": "un", "winter/held-out.txt": "two",
        "[a].md": "three", "b.md": "four",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    config = TrainConfig(
        target="ssh://host", shards="gs://bucket/rows", evaluate_every=5,
        evaluate_text_path=pattern,
    )  # fmt: skip
    workspace = Workspace(tmp_path / "home [1]")
    found = collect_inputs(config, workspace)
    upload_inputs(mirror.store, found, None, lambda done, total: None)
    placed = place_inputs(mirror.store, found.inputs, workspace, tmp_path / "cache")
    there = [one.path for one in find_files(placed["evaluate_text_path"], field="path").files]
    root = os.path.commonpath([path.parent for path in there])
    sent = {path.relative_to(root).as_posix(): path.read_text() for path in there}
    assert sent == {name: files[name] for name in names}


def test_evaluation_files_that_no_machine_accepts_or_nothing_reads_are_not_sent(
    tmp_path: Path,
) -> None:
    file = tmp_path / "held\nout.txt"
    file.write_text("x")
    values: dict[str, Any] = {"shards": "gs://bucket/rows", "evaluate_text_path": str(file)}
    workspace = Workspace(tmp_path / "home")
    with pytest.raises(ConfigError, match="rename the file"):
        collect_inputs(TrainConfig(**values, evaluate_every=5), workspace)
    assert collect_inputs(TrainConfig(**values), workspace).inputs == []


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/../../escaped", ".hidden", "a\nb"])
def test_input_with_a_name_outside_its_folder_is_refused(
    mirror: RunMirror, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    described = InputFile(name=name, bytes=1, sha256=hash_file(file))
    mirror.store.upload(file, f"{BLOBS}/{described.sha256}")
    given = Input(field="shards", kind="shards", name="rows", files=(described,))
    workspace = Workspace(tmp_path / "home")
    with pytest.raises(StudioError, match="not accepted"):
        place_inputs(mirror.store, [given], workspace, tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped*"))


def test_input_without_files_and_one_for_another_field_are_refused(
    mirror: RunMirror, tmp_path: Path
) -> None:
    empty = Input(field="model_config_path", name="x", files=())
    with pytest.raises(StudioError, match="can't be used"):
        place_inputs(mirror.store, [empty], Workspace(tmp_path / "home"), tmp_path / "cache")
    data = b'{"id": "x", "stage": "train", "config": {}, "created": 1, "inputs": '
    data += b'[{"field": "output", "name": "x", "files": []}]}'
    with pytest.raises(StudioError, match="can't be used"):
        parse_document(RunSpec, data, "run.json")


def test_take_over_copies_the_events_that_came_after_it_was_followed(
    mirror: RunMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "SECONDS_PER_ROUND", 0.01)
    describe(mirror)
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(metrics(1)))
    workspace = Workspace(tmp_path / "home")
    folder = RunFolder.of(workspace, RUN)
    config = TrainConfig(shards="owner/rows").model_dump(mode="json")
    folder.write_record(RunRecord(id=RUN, stage="train", config=config, follows=mirror.address))
    Follower(folder, workspace)._round()
    mirror.create_segment(1, 1, lines(metrics(2)))
    mirror.write_exit(1, Exit(code=0, time=9.0, reason="saved"))
    for _ in range(2):
        folder.write_record(RunRecord(id=RUN, stage="train", config=config, follows=mirror.address))
        record = take_over(workspace, mirror.address, {}, adopt=True)
        assert not record.follows
    steps = [one["step"] for one in read_events(folder.events)[0] if one["kind"] == "metrics"]
    assert steps == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        event("checkpoint", step="7"),
        event("checkpoint", step=7.0),
        event("progress", done="1"),
        event("metrics", step=1, values={"loss": 10**400}),
        event("metrics", step=1, values={"loss": None}),
        {**event("note", message="late"), "t": 1e12},
        event("progress", done=1, eta_seconds=1e300),
    ],
    ids=str,
)
def test_event_of_another_type_is_refused(
    mirror: RunMirror, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    describe(mirror)
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(wrong))
    workspace = Workspace(tmp_path / "home")
    folder = RunFolder.of(workspace, RUN)
    folder.write_record(RunRecord(id=RUN, stage="train", config={}, follows=mirror.address))
    Follower(folder, workspace).follow()
    last = read_events(folder.events)[0][-1]
    assert (last["kind"], last["reason"]) == ("finished", "mirror")


@pytest.mark.parametrize("stage", ["train", "finetune", "evaluate"])
@pytest.mark.parametrize("value", ["<script>", None, [], {"a": 1}, 1e300, True, -1, "x" * 5000])
def test_results_of_any_type_can_be_shown(
    mirror: RunMirror, tmp_path: Path, value: Any, stage: str
) -> None:
    describe(mirror)
    mirror.claim(None)
    names = (
        "eval_loss", "frequency_baseline_loss", "loss", "eval_accuracy", "perplexity", "accuracy",
        "per_seed", "by_source", "by_paradigm", "interval", "pairs", "learning_rate", "model",
        "test_examples", "majority_accuracy", "accuracy_std", "seconds", "step", "baselines",
    )  # fmt: skip
    settings = dict.fromkeys(("engine", "learning_rate", "per_replica_batch_size"), value)
    elsewhere = {"kind": "model", "name": "x", "path": "/etc"}
    results = {**dict.fromkeys(names, value), "task": "text"}
    events = [
        event("started", process={"pid": 1}),
        {**event("resolved", settings=settings), "t": 1.9e11},
        event("progress", done=1e300, total=-5, unit="steps", note="<b>", eta_seconds=1e11),
        event("metrics", step=1, values={"loss": 1e300, "__proto__": 1.0}),
        event("artifact", artifact=elsewhere, made=False),
        event("finished", state="done", reason="<i>", results=results),
    ]
    mirror.create_segment(1, 0, lines(*events))
    mirror.write_exit(1, Exit(code=0, time=9.0))
    workspace = Workspace(tmp_path / "home")
    worker = Worker(workspace)
    config = STAGES[stage].config().model_dump(mode="json")
    record = RunRecord(id=RUN, stage=stage, config=config, created=1.0, follows=mirror.address)
    worker._submit(vars(record))
    worker.store.update_run(RUN, state="running", started=2.0)
    Follower(RunFolder.of(workspace, RUN), workspace).follow()
    worker._look({})
    row = worker.store.find_run(RUN)
    assert (row.state, row.error, row.artifact) == ("done", None, "")
    text = report_page(workspace, worker.store, row)
    worker.store.close()
    assert "<script>" not in text
    assert "<script>" not in results_of(stage, row.results)
    assert isinstance(summarize_results(stage, row.results, ""), str)
    assert isinstance(finetuning_headline(row.results) + headline(row.results), str)
