"""The benchmarks start, and two sides are measured in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import SECTIONS, render, table
from benchmarks.start import PARTS, parts_of

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
@pytest.mark.parametrize("module", ["benchmarks", *_MODULES])
def test_each_benchmark_says_what_it_takes(module: str) -> None:
    assert "--help" in _run(module, "--help")


@pytest.mark.long
def test_both_sides_of_a_training_step_are_measured() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    tiny = ["--size", "tiny", "--batch", "2", "--length", "16", "--vocab-size", "64"]
    said = json.loads(
        _run("benchmarks.throughput", *tiny, "--steps", "1", "--rounds", "1").splitlines()[-1]
    )
    ours, theirs = (said["tokens_per_second"][side] for side in ("ours", "torch"))
    assert ours > 0
    assert said["ratio"] == pytest.approx(ours / theirs)


def test_the_results_have_a_section_for_what_was_measured() -> None:
    one = {"body": table(["a", "b"], [["1", "2"]]), "when": "now", "minutes": 1.0, "load": 0.5}
    text = render({"start": one})
    assert f"## {SECTIONS['start'][0]}\n\n| a | b |\n| --- | --- |\n| 1 | 2 |" in text
    assert SECTIONS["growth"][0] not in text


def test_the_seconds_to_the_first_step_are_shared_out() -> None:
    events = [
        {"t": 3.0, "kind": "started"},
        {"t": 7.0, "kind": "note", "message": "TensorFlow on 1 CPU"},
        {"t": 7.5, "kind": "note", "message": "more"},
        {"t": 8.0, "kind": "progress", "note": "compiling the training step"},
        {"t": 10.0, "kind": "metrics", "step": 1, "values": {"loss": 4.0}},
        {"t": 11.0, "kind": "metrics", "step": 2, "values": {"loss": 3.0}},
    ]
    assert parts_of(events, 1.0) == dict(zip(PARTS, (2.0, 4.0, 1.0, 2.0), strict=True))
