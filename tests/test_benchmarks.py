"""The benchmarks start, measure both sides, and render their results."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import benchmarks.__main__ as runner
from benchmarks.__main__ import FOUND, RESULTS, SECTIONS, describe_times, render, table
from benchmarks.growth import STAGES, text_file
from benchmarks.large import LONGEST, SHORTEST, generate
from benchmarks.start import PARTS, parts_of
from benchmarks.time_to_loss import watch_gpu
from core.corpus.cleaning.rules import RULES
from tests.core.corpus.cleaning.support import pages, write_documents
from tests.texts import write_sentences

_ROOT = Path(__file__).parents[1]
_MODULES = sorted(
    ".".join(file.relative_to(_ROOT).with_suffix("").parts)
    for file in (_ROOT / "benchmarks").rglob("*.py")
    if 'if __name__ == "__main__"' in file.read_text() and file.stem != "__main__"
)


def _run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("module", ["benchmarks", "benchmarks.soak", *_MODULES])
def test_each_benchmark_has_a_help_text(module: str) -> None:
    assert "--help" in _run(module, "--help")


@pytest.mark.long
@pytest.mark.thorough
def test_both_sides_of_a_training_step_are_measured() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    tiny = ["--size", "tiny", "--batch", "2", "--length", "16", "--vocab-size", "64"]
    said = json.loads(
        _run("benchmarks.throughput", *tiny, "--steps", "1", "--rounds", "1").splitlines()[-1]
    )
    ours, theirs = (said["tokens_per_second"][side] for side in ("ours", "torch"))
    assert ours > 0
    assert said["ratio"] == pytest.approx(ours / theirs)


def test_the_peer_is_timed_in_its_fastest_mode(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    from torch._dynamo.exc import TorchDynamoException

    from benchmarks.peer import EVERY_MODE, Mode, fastest_mode

    seconds = {Mode(False, False): 0.02, Mode(True, False): 0.001, Mode(True, True): 0.01}

    def step_in(mode: Mode) -> Callable[[], float]:
        def step() -> float:
            if mode not in seconds:
                raise TorchDynamoException("No compiler here")
            time.sleep(seconds[mode])
            return 0.0

        return step

    fastest, found = fastest_mode(step_in, EVERY_MODE)
    assert fastest == Mode(narrow=True, compiled=False)
    assert found.keys() == seconds.keys()
    assert "PyTorch in float32, compiled fails: No compiler here" in capsys.readouterr().err


def test_gpu_utilisation_is_read_from_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nfor busy in 50 70 90; do echo $busy; done\nexec sleep 60\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with watch_gpu("gpu") as busy:
        time.sleep(0.5)
    assert busy == [50.0, 70.0, 90.0]
    with watch_gpu("cpu") as busy:
        pass
    assert busy == []


def test_results_have_a_section_for_each_measured_benchmark() -> None:
    one = {
        "body": table(["a", "b"], [["1", "2"]]),
        "when": "now",
        "minutes": 1.0,
        "load": 0.5,
        "packages": "jax 1.2",
    }
    text = render({"A machine": {"start": one}, "Another": {"start": one, "inputs": one}})
    section = f"### {SECTIONS['start'][0]}\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert f"## A machine\n\njax 1.2\n\n{section}" in text
    assert text.index("## A machine") < text.index("## Another")
    assert text.count(section) == 2
    assert SECTIONS["growth"][0] not in text


def test_failed_benchmark_keeps_the_results_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: argparse.Namespace) -> str:
        raise runner.BenchmarkError("it ended with exit code 3")

    monkeypatch.setattr(runner, "FOUND", tmp_path / "found.json")
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "found.md")
    sections = {"start": ("Start", fail, ()), "growth": ("Growth", lambda options: "fine", ())}
    monkeypatch.setattr(runner, "SECTIONS", sections)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(tmp_path / "folder")])
    with pytest.raises(SystemExit, match="Not measured: start"):
        runner.main()
    assert "### Growth\n\nfine" in (tmp_path / "found.md").read_text()


@pytest.mark.slow
def test_the_experts_step_learns_from_the_masked_positions_as_transformers_does() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    from benchmarks.peer import ExpertOptimizer, Mode, peer_model, peer_step

    torch.manual_seed(0)
    model = peer_model("tiny", 99, 16, pad_id=1, dropout=0.0)
    ids = torch.randint(5, 99, (4, 16))
    is_hidden = torch.rand(ids.shape).argsort(dim=1) < 6
    inputs, labels = torch.where(is_hidden, 4, ids), torch.where(is_hidden, ids, -100)
    expected = model(inputs, labels=labels).loss.item()
    optimizer = ExpertOptimizer(model, 0.01, beta2=0.95)
    muon, adamw = ({id(one) for one in group["params"]} for group in optimizer.param_groups)
    assert len(muon | adamw) == len(muon) + len(adamw) == len(list(model.parameters()))
    embeddings = {id(one) for one in model.roberta.embeddings.parameters()}
    assert embeddings <= adamw and id(model.roberta.encoder.layer[0].output.dense.weight) in muon
    step = peer_step(model, optimizer, Mode(narrow=False, compiled=False), predicted=6)
    losses = [step(inputs, labels).item() for _ in range(30)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0] / 2


def test_missing_peers_are_reported_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = ("Start", lambda options: "", ("no_such_peer",))
    monkeypatch.setattr(runner, "SECTIONS", {"start": section})
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "the peers need no_such_peer: pip install -r" in capsys.readouterr().err


@pytest.mark.long
def test_each_stage_is_measured_in_its_own_process(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"A text about the number {number}."}) for number in range(400)]
    text_file(tmp_path, 1).write_text("\n".join(lines), encoding="utf-8")
    found = {
        stage: json.loads(
            _run(
                "benchmarks.growth",
                "--stage",
                stage,
                "--folder",
                str(tmp_path),
                "--tenths",
                "1",
                "--vocab-size",
                "60",
            )
        )
        for stage in STAGES
    }
    assert all(one["seconds"] > 0 for one in found.values())
    # More than an interpreter takes, and less than one with a backend.
    assert all(20 < one["peak_megabytes"] < 400 for one in found.values())


@pytest.mark.long
def test_minimal_pairs_are_compared_with_a_loop_on_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    text = str(write_sentences(tmp_path / "text.txt"))
    pairs = tmp_path / "sample.jsonl"
    row = {"sentence_good": "the ship runs", "sentence_bad": "the run ships", "UID": "order"}
    pairs.write_text(f"{json.dumps(row)}\n\n" * 9)
    asked = ["--folder", str(tmp_path), "--text", text, "--size", "tiny", "--vocab-size", "200"]
    few = ["--count", "4", "--families", "roberta", "--rounds", "1", "--pairs", str(pairs)]
    said = _run("benchmarks.evaluation", *asked, *few).splitlines()
    found = json.loads(said[-1])
    assert re.fullmatch(r"4 of the 9 pairs of sample\.jsonl \(sha256 \w{12}\)", found["pairs"])
    assert found["pairs"] in said[0]
    one = found["families"]["roberta"]
    assert one["ours"] > 0
    assert one["ratio"] == pytest.approx(one["ours"] / one["torch"])
    asked_for: list[str] = []

    def run(module: str, *arguments: str) -> dict:
        asked_for.extend(arguments)
        return found

    monkeypatch.setattr(runner, "run", run)
    options = argparse.Namespace(folder=tmp_path, pairs=pairs)
    assert found["pairs"] in runner.evaluation(options)
    assert asked_for[-2:] == ["--pairs", str(pairs)]


@pytest.mark.slow(4)
def test_every_step_and_rule_of_cleaning_is_measured(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "text.jsonl", pages(30))
    asked = ["--text", str(path), "--megabytes", "0.05", "--rounds", "1"]
    found = json.loads(_run("benchmarks.cleaning", *asked).splitlines()[-1])
    measured = {name.removeprefix("rule ") for name in found["speeds"]}
    assert {rule.option for rule in RULES} < measured
    assert {"near_duplicates", "languages", "all rules"} < measured
    one, two = found["stage"]
    assert one["fingerprint"] == two["fingerprint"]


@pytest.mark.long
@pytest.mark.thorough
def test_tokenizer_training_is_compared_with_its_peer() -> None:
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install sentencepiece")
    asked = ["--vocab-size", "400", "--texts", "300", "--rounds", "1"]
    found = json.loads(_run("benchmarks.tokenizer", *asked).splitlines()[-1])
    ours, theirs = found["tokens"]["ours"], found["tokens"]["sentencepiece"]
    assert ours == pytest.approx(theirs, rel=0.1)
    assert min(found["seconds"].values()) > 0


def test_the_committed_results_are_rendered_from_the_committed_figures() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    assert render(found) == RESULTS.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", RESULTS.read_text(encoding="utf-8"))
    assert pictures
    assert all((RESULTS.parent / name).is_file() for name in pictures)


def test_time_to_the_first_step_is_split_into_parts() -> None:
    events = [
        {"t": 3.0, "kind": "started"},
        {"t": 7.0, "kind": "note", "message": "TensorFlow on 1 CPU"},
        {"t": 7.5, "kind": "note", "message": "more"},
        {"t": 8.0, "kind": "progress", "note": "compiling the training step"},
        {"t": 10.0, "kind": "metrics", "step": 1, "values": {"loss": 4.0}},
        {"t": 11.0, "kind": "metrics", "step": 2, "values": {"loss": 3.0}},
    ]
    assert parts_of(events, 1.0) == dict(zip(PARTS, (2.0, 4.0, 1.0, 2.0), strict=True))


def test_time_to_loss_lists_the_runs_and_peers_that_never_reached_their_learning_rate() -> None:
    curves = [("flax", 6.7, 1000), ("adamw 1e-3", 6.4, 1000), ("fast, 1/8 of the time", 6.2, 180)]
    row = {"peer": "flax, as published", "target": 6.7, "counts": True, "baseline": 6.9,
           "allowed_seconds": 112.5, "allowed": 60.0, "seconds": 45.0}  # fmt: skip
    found = {
        "docs": {
            "rows": [row, {**row, "allowed": float("inf")}],
            "curves": [
                {"name": name, "seconds": [1.0, 900.0], "losses": [9.0, loss], "steps": steps}
                for name, loss, steps in curves
            ],
        }
    }
    text = describe_times(found, 15.0)
    first = "| docs | flax, as published | 6.700 | 6.900 | 1/8 |"
    assert f"{first} 60 s | 1/15.0 | 45 s | 1/20.0 |" in text
    assert f"{first} not reached |  | 45 s | 1/20.0 |" in text
    assert "| docs | adamw 1e-3 | 1,000 | 900 s | 6.400 |" in text
    assert text.count("warm-up") == 1
    assert "flax did 1,000 steps, and its published warm-up takes 1,000" in text
    assert "50% of its peak" in text


@pytest.mark.slow(28)
@pytest.mark.thorough
def test_gpu_training_step_is_compared_with_its_peer(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    asked = ["--device", "cpu", "--size", "tiny", "--lengths", "32", "--tokens", "256"]
    asked += ["--vocab-size", "100", "--steps", "2", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.gpu.train_step", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["shapes"]["batch"] == 8
    assert found["tokens_per_second"].keys() == {"ours", "torch"}
    assert min(found["tokens_per_second"].values()) > 0


def test_generated_text_follows_the_words_of_a_real_one() -> None:
    words = " ".join(f"{one} follows" for one in "abcde").split()
    documents = generate(words)
    text = [next(documents).split() for _ in range(2)]
    assert text[0] != text[1]
    for document in text:
        assert SHORTEST <= len(document) <= LONGEST
        pairs = set(pairwise(document))
        assert pairs <= {*pairwise(words), (words[-1], words[0])}
