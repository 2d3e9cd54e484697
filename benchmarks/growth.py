"""How each cost grows: the corpus ten times as large, the model, the rows four times as long.

Tokenizer and shards: the stages as a script calls them, on a tenth of the installed documentation,
on all of it, and on all of it ten times over, each in a process of its own, with the most memory
that it had. A tenth is less than a batch of theirs, so that it is the last two whose memory should
be alike. Training: steps of RoBERTa with the same number of tokens each, 32 rows of 128 or 8 of
512, in float32 and without dropout; parameters are counted without those of words and positions.

    python -m benchmarks.growth [--sizes mini base] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import resource
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

TENTHS = (1, 10, 100)
STAGES = ("tokenizer", "shards")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs=2, default=["mini", "base"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tenths", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        found = run_stage(options.stage, options.folder, options.tenths, options.vocab_size)
        print(json.dumps(found))
        return
    print(describe_machine(), flush=True)
    print(json.dumps({"corpus": grow_corpus(), "model": grow_model(options.sizes, options.rounds)}))


def grow_corpus() -> list[dict[str, Any]]:
    """Returns megabytes, seconds and peak memory for each part of the text."""
    from core.config.corpus import CorpusConfig
    from core.corpus.reading import open_corpus
    from core.workspace.workspace import Workspace

    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = open_corpus(CorpusConfig(source="docs"), Workspace(folder))
        lines = [json.dumps({"text": text}) + "\n" for _, text in corpus.labelled_documents()]
        for tenths in TENTHS:
            file = text_file(folder, tenths)
            times, rest = divmod(tenths, 10)
            with file.open("w", encoding="utf-8") as texts:
                for _ in range(times):
                    texts.writelines(lines)
                texts.writelines(lines[: len(lines) * rest // 10])
            row: dict[str, Any] = {"megabytes": file.stat().st_size / 1e6, "times": max(1, times)}
            for stage in STAGES:
                command = [sys.executable, "-m", "benchmarks.growth", "--stage", stage]
                command += ["--folder", str(folder), "--tenths", str(tenths)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                row[stage] = json.loads(done.stdout.splitlines()[-1])
            found.append(row)
            print(f"  {row}", flush=True)
    return found


def text_file(folder: Path, tenths: int) -> Path:
    """Returns the path of a part of the text of this size."""
    return folder / f"{tenths}.jsonl"


def run_stage(stage: str, folder: Path, tenths: int, vocab_size: int) -> dict[str, float]:
    """Runs a stage in this process and returns its seconds, and the process's most megabytes."""
    from core import build_shards, train_tokenizer
    from core.config.corpus import CorpusConfig
    from core.config.shards import ShardConfig
    from core.config.tokenizer import TokenizerConfig
    from core.workspace.workspace import Workspace

    corpus = CorpusConfig(
        source="files", path=str(text_file(folder, tenths)), validation_percent=5.0
    )
    workspace, name = Workspace(folder), f"tenths-{tenths}"
    began = time.perf_counter()
    if stage == "tokenizer":
        train_tokenizer(TokenizerConfig(name=name, corpus=corpus, vocab_size=vocab_size), workspace)
    else:
        build_shards(
            ShardConfig(name=name, corpus=corpus, tokenizer=name, max_seq_length=LENGTH), workspace
        )
    return {"seconds": time.perf_counter() - began, "peak_megabytes": peak_megabytes()}


def peak_megabytes() -> float:
    """Returns the most memory that this process has had."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not `ru_maxrss`, in which Linux also counts what the process had before its own program.
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return int(line.split()[1]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


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
            row = {
                "size": size,
                "parameters": body_parameters(size),
                "length": length,
                "tokens_per_second": median(speeds),
            }
            found.append(row)
            print(f"  {row}", flush=True)
    return found


def body_parameters(size: str) -> int:
    """Returns about how many parameters the layers have: 12 squares of the width each."""
    from core.architecture.family import SIZES

    layers, width = SIZES[size]  # type: ignore[index]
    return 12 * layers * width**2


if __name__ == "__main__":
    main()
