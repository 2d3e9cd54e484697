"""How each cost grows: the corpus ten times as large, the model, the rows four times as long.

Tokenizer and shards: the shell's commands on a tenth of the installed documentation and on all of
it, with the most memory that a process of theirs had. Training: steps of RoBERTa with the same
number of tokens each, 32 rows of 128 or 8 of 512, in float32 and without dropout.

    python -m benchmarks.growth [--sizes mini base] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.corpora import LENGTH, VOCAB_SIZE
from benchmarks.sides import ask_in_turn, describe_machine, open_sides
from benchmarks.throughput import Shapes

TENTHS = (1, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs=2, default=["mini", "base"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    print(json.dumps({"corpus": grow_corpus(), "model": grow_model(options.sizes, options.rounds)}))


def grow_corpus() -> list[dict[str, Any]]:
    """Returns megabytes, seconds and peak memory for a tenth of the text, and for all."""
    from core.config import CorpusConfig
    from core.corpus import open_corpus
    from core.workspace import Workspace

    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = open_corpus(CorpusConfig(source="docs"), Workspace(folder))
        lines = [json.dumps({"text": text}) + "\n" for _, text in corpus.labelled_documents()]
        for tenths in TENTHS:
            file, label = folder / f"{tenths}.jsonl", f"tenths-{tenths}"
            file.write_text("".join(lines[: len(lines) * tenths // 10]), encoding="utf-8")
            read = ["--source", "files", "--path", str(file), "--validation-percent", "5"]
            row: dict[str, Any] = {"megabytes": file.stat().st_size / 1e6}
            for stage, more in (
                ("tokenizer", ["--vocab-size", str(VOCAB_SIZE)]),
                ("shards", ["--tokenizer", label, "--max-seq-length", str(LENGTH)]),
            ):
                command = [stage, "--name", label, "--preset", "custom", *more, *read]
                row[stage] = timed(folder, *command)
            found.append(row)
            print(f"  {row}", flush=True)
    return found


def timed(folder: Path, *arguments: str) -> dict[str, float]:
    """Runs a command of the shell and returns its seconds, and its largest process's megabytes."""
    command = [sys.executable, "-m", "core", *arguments, "--workspace", str(folder)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(said.decode()[-4000:])
    # Kilobytes on Linux.
    return {"seconds": time.perf_counter() - began, "peak_megabytes": usage.ru_maxrss / 1e3}


def grow_model(sizes: list[str], rounds: int) -> list[dict[str, Any]]:
    """Returns the tokens/s of both sizes at both lengths."""
    found = []
    for size in sizes:
        for length in (LENGTH, 4 * LENGTH):
            shapes = replace(
                Shapes(), size=size, length=length, batch=32 * LENGTH // length, dropout=0.0
            )
            with open_sides("benchmarks.throughput", ["ours"], vars(shapes)) as sides:
                ask_in_turn(sides, 2, 1)
                speeds = ask_in_turn(sides, 2 if size == sizes[-1] else 6, rounds)["ours"]
            row = {"size": size, "length": length, "tokens_per_second": median(speeds)}
            found.append(row)
            print(f"  {row}", flush=True)
    return found


if __name__ == "__main__":
    main()
