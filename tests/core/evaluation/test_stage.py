"""The stage `evaluate`: command line, artifact, checkpoints of runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from core import EvaluateConfig, evaluate, fill_mask
from core.__main__ import main
from core.artifacts.checkpoint import STATE_FILE, Checkpoints, EvalResults, TrainingState
from core.artifacts.evaluations import find_evaluations, fingerprint_of_weights
from core.artifacts.subject import open_subject
from core.errors import CheckpointError, ConfigError, StudioError
from core.publishing.card_evaluations import describe_evaluations
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.workspace.manifests import read_manifest
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.runs.support import stop_worker

ROOT = Path(__file__).parents[3]
RUN = "train-20250102-030405-ab12"
_KINDS = ("good", "bad")
PAIRS = [
    {"sentence_good": "The ship runs.", "sentence_bad": "The ship run.", "UID": "agreement",
     "linguistics_term": "subject_verb_agreement"},
    {"sentence_good": "A horse reads.", "sentence_bad": "A reads horse.", "UID": "order"},
]  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, tokenizer)
    write_run(workspace)
    yield workspace
    stop_worker(workspace)


def write_run(workspace: Workspace) -> None:
    """Writes a stopped run with checkpoints of steps 10, 20 and 30; step 20 has the best loss."""
    run = RunFolder.of(workspace, RUN)
    run.write_record(RunRecord(id=RUN, stage="train", config={}))
    checkpoints = Checkpoints(run.path / "checkpoints")
    tokenizer = make_tokenizer(Workspace(workspace.root / "other"), "byte_level_bpe")
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0)):
        results = EvalResults(step, loss, 0.5, 2.0, 4.0)
        state = TrainingState(
            step=step, next_batch=step, seconds=1.0, seed=0, config={}, plan={}, fingerprints={},
            engine="jax", evaluated=results,
        )  # fmt: skip

        def write(folder: Path, seed: int = step) -> None:
            write_checkpoint(folder, tokenizer, seed)

        checkpoints.write(state, {}, write)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in PAIRS))
    return path


@pytest.mark.slow
def test_command_prints_the_figures_at_the_top_level(
    workspace: Workspace, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "--model", "words", "--workspace", str(workspace.root), "--json"]
    assert main([*words, "--task", "minimal_pairs", "--path", str(pairs)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"accuracy", "official_accuracy", "pairs", "by_paradigm"} <= found.keys()
    assert found["pairs"] == 2 and list(found["by_paradigm"]) == ["agreement", "order"]
    assert (found["state"], found["score"]) == ("done", "pseudo_log_likelihood")
    folder = Path(found["artifact"])
    lines = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    assert [line["difference"] for line in lines] == [line["good"] - line["bad"] for line in lines]
    right = sum(line["difference"] > 0 for line in lines)
    assert found["accuracy"] == right / 2
    (pairs.parent / "text.txt").write_text("The ship runs.\nA horse reads.\n")
    assert main([*words, "--task", "text", "--path", str(pairs.parent / "text.txt")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"loss", "perplexity", "bits_per_byte", "tokens", "by_source"} <= found.keys()
    assert found["documents"] == 2 and found["bytes"] == 28


@pytest.mark.slow
def test_command_prints_tables(
    workspace: Workspace, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "--model", "words", "--workspace", str(workspace.root)]
    assert main([*words, "--path", str(pairs)]) == 0
    printed = capsys.readouterr().out
    assert "agreement" in printed and "2 pairs" in printed and "Published" not in printed
    assert main([*words, "--task", "text", "--path", str(pairs), "--text-column", "UID"]) == 0
    assert "all text" in capsys.readouterr().out


def test_evaluation_is_an_artifact_with_its_inputs(workspace: Workspace, pairs: Path) -> None:
    config = EvaluateConfig(name="mine", model="words", path=str(pairs))
    artifact = evaluate(config, workspace)
    manifest = read_manifest(artifact.path)
    folder = workspace.folder("model") / "words"
    assert manifest.inputs["model"] == fingerprint_of_weights(folder)
    assert manifest.counts["pairs"] == 2 and artifact.path.name == "mine"
    assert manifest in find_evaluations(folder, workspace)
    with pytest.raises(ConfigError, match="'mine' is taken"):
        evaluate(config, workspace)


def test_newest_evaluation_with_each_choice_of_options_is_found(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace.folder("model") / "words"
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.csv").write_text("id,text,story\n1,A ship runs.,A horse reads.\n")
        monkeypatch.chdir(tmp_path / place)
        for column in ("text", "story", "story"):
            path = "a.csv" if place == "one" else f"{tmp_path}/other/a.csv"
            config = EvaluateConfig(model="words", task="text", path=path, text_column=column)
            evaluate(config, workspace)
    (tmp_path / "third").mkdir()
    shutil.copy("a.csv", tmp_path / "third")
    monkeypatch.chdir(tmp_path / "third")
    for path in ("a.csv", f"{tmp_path}/third/a.csv"):
        evaluate(EvaluateConfig(model="words", task="text", path=path), workspace)
    found = [one for one in find_evaluations(folder, workspace) if "a.csv" in one.config["path"]]
    assert len(found) == 5
    card = describe_evaluations(found)
    assert "| a.csv |" in card and card.count(r"| a.csv (text\_column=story) |") == 2


def test_checkpoints_of_a_run_are_named_by_step(workspace: Workspace) -> None:
    steps = {}
    for form in ("", "@newest", "@best", "@10", "@20"):
        with open_subject(f"{RUN}{form}", workspace) as subject:
            steps[form] = subject.step
            assert (subject.folder / "tokenizer.json").is_file()
            assert not (subject.folder / "training_state.safetensors").exists()
        assert not subject.folder.exists()
    assert steps == {"": 30, "@newest": 30, "@best": 20, "@10": 10, "@20": 20}


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the variables that the commands set."""
    for name, value in (("CUDA_VISIBLE_DEVICES", "-1"), ("JAX_PLATFORMS", "cpu")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("form", "step"), [("@best", 20), ("", 30), ("@newest", 30), ("@10", 10)])
def test_models_are_queried_by_a_checkpoint_of_a_run(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], form: str, step: int
) -> None:
    folder = workspace.runs / RUN / "checkpoints" / f"step-{step:08}"
    text = "The ship <mask>."
    assert fill_mask(f"{RUN}{form}", text, workspace=workspace) == fill_mask(folder, text)
    for command in ("fill-mask", "perplexity"):
        found = []
        for model in (f"{RUN}{form}", str(folder)):
            place = ["--workspace", str(workspace.root), "--json"]
            assert main([command, "--model", model, "--text", text, *place]) == 0
            found.append(capsys.readouterr().out)
        assert found[0] == found[1]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("command", ["fill-mask", "generate", "perplexity", "classify", "tag"])
def test_each_command_resolves_checkpoints_and_names_missing_ones(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    place = ["--text", "The ship <mask>.", "--workspace", str(workspace.root)]
    assert main([command, "--model", f"{RUN}@11", *place]) == ConfigError.exit_code
    assert "newest, best, or one of the steps 30, 20, 10" in capsys.readouterr().err
    main([command, "--model", f"{RUN}@best", *place])
    # An encoder neither writes nor classifies; the error is about the checkpoint that was found.
    said = capsys.readouterr()
    assert not said.err or "step-00000020" in said.err, said.err


def test_evaluated_checkpoint_may_be_deleted_by_its_run(workspace: Workspace, pairs: Path) -> None:
    folder = workspace.runs / RUN / "checkpoints" / "step-00000010"
    with open_subject(f"{RUN}@10", workspace) as subject:
        copy = folder.with_name("copy")
        shutil.move(folder, copy)
        try:
            assert len(subject.fingerprint) == 16
            config = EvaluateConfig(model=str(subject.folder), path=str(pairs))
            assert evaluate(config, workspace).manifest.counts["pairs"] == 2
        finally:
            shutil.move(copy, folder)


def test_checkpoint_of_a_running_run_is_evaluated_at_once(
    workspace: Workspace, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.of(workspace, RUN)
    run.write_processes(run=ProcessIdentity.of_this())
    words = ["evaluate", "--model", f"{RUN}@best", "--path", str(pairs), "--json"]
    try:
        assert main([*words, "--workspace", str(workspace.root)]) == 0
    finally:
        (run.path / "process.json").unlink()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["model_run"], found["step"], found["model"]) == (RUN, 20, f"{RUN}@20")
    # No worker was started for it.
    process = RunFolder.of(workspace, found["run"]).read_process()
    assert process == ProcessIdentity.of_this()


@pytest.mark.slow
@pytest.mark.long
def test_interrupted_evaluation_is_stopped(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    # Distinct sentences, because equal ones are scored once.
    rows = (
        {**row, **{f"sentence_{kind}": f"{number} {row[f'sentence_{kind}']}" for kind in _KINDS}}
        for number in range(50_000)
        for row in PAIRS
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = RunFolder.of(workspace, RUN)
    run.write_processes(run=ProcessIdentity.of_this())
    words = ["evaluate", "--model", RUN, "--path", str(path), "--name", "interrupted", "--json"]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "core", *words, "--workspace", str(workspace.root)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Shells let background commands ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        while not any(b"reading pairs" in file.read_bytes() for file in events_of(workspace)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=100)
    finally:
        (run.path / "process.json").unlink()
    assert process.returncode == 130, errors
    found = json.loads(out.splitlines()[-1])
    assert (found["state"], "error" in found, found["artifact"]) == ("stopped", False, None)
    assert not (workspace.folder("evaluation") / "interrupted").exists()


def events_of(workspace: Workspace) -> list[Path]:
    folders = workspace.runs.glob("evaluate-*")
    return [
        one / "events.jsonl"
        for one in folders
        if (one / "events.jsonl").exists() and b"interrupted" in (one / "run.json").read_bytes()
    ]


@pytest.mark.parametrize(
    ("reference", "kind", "words"),
    [
        (f"{RUN}@11", ConfigError, "newest, best, or one of the steps 30, 20, 10"),
        (f"{RUN}@-1", ConfigError, "has no checkpoint '-1'"),
        ("train-20250102-030405-0000@5", StudioError, "was not found|can't be reached"),
        ("", ConfigError, "No model was given"),
    ],
)
def test_missing_model_is_reported(
    reference: str, kind: type[StudioError], words: str, workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(kind, match=words), open_subject(reference, workspace):
        pass


@pytest.mark.parametrize(
    ("stage", "words"),
    [("train", "no checkpoint yet"), ("finetune", "not a training run.*runs show finetune-2025")],
)
def test_run_without_checkpoints_is_reported(stage: str, words: str, workspace: Workspace) -> None:
    run = f"{stage}-20250102-030405-cd34"
    RunFolder.of(workspace, run).write_record(RunRecord(id=run, stage=stage, config={}))
    with pytest.raises(CheckpointError, match=words), open_subject(run, workspace):
        pass


def test_best_of_a_run_that_was_not_validated_is_reported(
    workspace: Workspace, tmp_path: Path
) -> None:
    other = Workspace(tmp_path)
    shutil.copytree(workspace.runs / RUN, other.runs / RUN)
    for step in (10, 20):
        shutil.rmtree(other.runs / RUN / "checkpoints" / f"step-{step:08}")
    file = other.runs / RUN / "checkpoints" / "step-00000030" / STATE_FILE
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "evaluated": None}))
    with (
        pytest.raises(ConfigError, match=r"Expected: newest, or one of the steps 30\.") as caught,
        open_subject(f"{RUN}@best", other),
    ):
        pass
    assert "no checkpoint with a validation loss" in caught.value.problem


def test_damaged_checkpoint_is_reported(workspace: Workspace, tmp_path: Path) -> None:
    other = Workspace(tmp_path)
    shutil.copytree(workspace.runs / RUN, other.runs / RUN)
    path = other.runs / RUN / "checkpoints" / "step-00000030" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="is damaged"), open_subject(RUN, other):
        pass
