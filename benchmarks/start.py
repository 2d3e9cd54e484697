"""From the command to the first training step, and where the seconds go.

RoBERTa `mini` on rows of 128, batches of 32, as the CLI trains it. The first run compiles what
the ones after it find in the workspace's cache; what counts is the median of those.

    python -m benchmarks.start [--engines tensorflow jax] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.corpora import core, events_of, prepare_corpus
from benchmarks.sides import describe_machine
from core.workspace.workspace import Workspace

PARTS = (
    "shell, settings and shards",
    "engine",
    "precision, model and optimizer",
    "tracing, compiling and the first step",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--engines", nargs="+", default=["tensorflow", "jax"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps({name: measure(options.folder, name, options.rounds)
                      for name in options.engines}))  # fmt: skip


def measure(folder: Path, engine: str, rounds: int) -> dict[str, Any]:
    """Returns the seconds to the first step, first and later, and those of each part later."""
    prepare_corpus(folder, "docs")
    shutil.rmtree(Workspace(folder).cache / "compiled", ignore_errors=True)
    runs = [start(folder, engine) for _ in range(rounds + 1)]
    first, *later = runs
    parts = {name: median(run[name] for run in later) for name in PARTS}
    found = {"first": sum(first.values()), "warm": median(sum(run.values()) for run in later)}
    said = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    print(f"{engine}: {found['first']:.1f} s, and then {found['warm']:.1f} s ({said}); "
          f"{describe_machine()}", flush=True)  # fmt: skip
    return {**found, "parts": parts}


def start(folder: Path, engine: str) -> dict[str, float]:
    """Trains one step and returns the seconds of each part up to its end."""
    began = time.time()
    said = core(
        folder, "train", "--shards", "docs", "--size", "mini", "--engine", engine,
        "--device", "cpu",
        "--per-replica-batch-size", "32", "--num-train-steps", "2", "--logging-steps", "1",
        "--eval-steps", "2", "--save-steps", "2", "--max-eval-examples", "32",
    )  # fmt: skip
    return parts_of(events_of(folder, said["run"]), began)


def parts_of(events: Sequence[dict[str, Any]], began: float) -> dict[str, float]:
    """Returns how long each part took, from what a run reported."""
    marks = [
        began,
        next(event["t"] for event in events if event["kind"] == "started"),
        next(event["t"] for event in events if event["kind"] == "note"),
        next(event["t"] for event in events if event.get("note", "").startswith("compiling")),
        next(event["t"] for event in events if "loss" in event.get("values", {})),
    ]
    gaps = [after - before for before, after in pairwise(marks)]
    return dict(zip(PARTS, gaps, strict=True))


if __name__ == "__main__":
    main()
