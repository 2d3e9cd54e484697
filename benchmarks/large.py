"""Gigabytes of text to shards: seconds and peak memory of each stage.

The text is generated: a Markov chain over the words of the documentation of the installed packages,
in which each word follows another one as often as it does there. So words are distributed as in
real text, no document is repeated, and there is as much as is asked for. Its documents have 20 to
2,000 words, one on each line of a file.

Each stage runs on the command line. Its memory is that of all processes of the workspace (command,
queue, run and pool): what they have alone and their part of what they share (PSS), twice a second.

    python -m benchmarks.large --gigabytes 5 --stages clean tokenizer shards
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.sides import describe_machine

SHORTEST, LONGEST = 20, 2000
NAME = "large"
STAGES: dict[str, list[str]] = {
    "clean": [],
    "tokenizer": ["--preset", "classic", "--vocab-size", "10048"],
    "shards": ["--preset", "custom", "--tokenizer", NAME, "--max-seq-length", "512"],
}
DEFAULT_STAGES = ("tokenizer", "shards")
_CHAINS = 4096
_SAMPLE_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=DEFAULT_STAGES)
    parser.add_argument("--folder", type=Path, help="keeps the text there between calls")
    parser.add_argument("--workers", type=int, help="default: one per core")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        text = write_text(folder, options.gigabytes)
        print(json.dumps(measure(folder, text, options.stages, options.workers)))


def write_text(folder: Path, gigabytes: float) -> Path:
    """Writes the generated documents, unless they exist, and returns the file."""
    path = folder / f"text-{gigabytes:g}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        draft, size = path.with_suffix(".draft"), 0
        with draft.open("wb") as file:
            for document in generate(read_words()):
                size += file.write(json.dumps({"text": document}).encode() + b"\n")
                if size >= gigabytes * 1e9:
                    break
        draft.rename(path)
    return path


def read_words() -> list[str]:
    """Returns the words of the documentation, in its order."""
    from core.config.corpus import CorpusConfig
    from core.corpus.reading import read_documents
    from core.workspace.workspace import Workspace

    with tempfile.TemporaryDirectory() as folder:
        texts = read_documents(CorpusConfig(source="docs"), Workspace(folder))
        return [word for text in texts for word in text.split(" ")]


def generate(words: list[str]) -> Iterator[str]:
    """Yields documents of a first-order Markov chain, without end.

    Args:
        words: Text of which the chain has the transitions.
    """
    random = np.random.default_rng(0)
    distinct, ids = np.unique(np.array(words, dtype=object), return_inverse=True)
    # Places of each word in the text, one word after the other.
    places = np.argsort(ids, kind="stable")
    counts = np.bincount(ids)
    starts = np.cumsum(counts) - counts
    while True:
        lengths = random.integers(SHORTEST, LONGEST, _CHAINS, endpoint=True)
        now = ids[random.integers(len(ids), size=_CHAINS)]
        chains = np.empty((LONGEST, _CHAINS), ids.dtype)
        for row in chains:
            row[:] = now
            occurrence = (random.random(_CHAINS) * counts[now]).astype(np.int64)
            now = ids[(places[starts[now] + occurrence] + 1) % len(ids)]
        for chain, length in zip(chains.T, lengths, strict=True):
            yield " ".join(distinct[chain[:length]])


def measure(
    folder: Path, text: Path, stages: list[str], workers: int | None
) -> list[dict[str, Any]]:
    """Runs the stages one after the other; returns seconds and megabytes of each."""
    found = []
    megabytes = text.stat().st_size / 1e6
    shared = ["--workspace", str(folder / "workspace"), "--name", NAME, "--json"]
    shared += ["--workers", str(workers)] if workers else []
    read = ["--source", "files", "--path", str(text)]
    for stage in stages:
        command = [sys.executable, "-m", "core", stage, *STAGES[stage], *read, *shared]
        seconds, peak = run_measured(command, folder / "workspace")
        row = {"stage": stage, "megabytes": megabytes, "seconds": seconds, "peak_megabytes": peak}
        found.append({**row, "mb_per_second": megabytes / seconds})
        print(f"  {found[-1]}", flush=True)
    return found


def run_measured(command: list[str], workspace: Path) -> tuple[float, float]:
    """Runs a command; returns its seconds and the peak memory of its processes in megabytes."""
    began, peak = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(megabytes_of, processes_of(workspace))))
            time.sleep(_SAMPLE_SECONDS)
        seconds = time.perf_counter() - began
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}.")
    return seconds, peak


def processes_of(workspace: Path) -> set[psutil.Process]:
    """Returns the processes that have a workspace in their arguments, and their descendants."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if str(workspace) in (process.info["cmdline"] or []):
            with suppress(psutil.NoSuchProcess):
                found |= {process, *process.children(recursive=True)}
    return found


def megabytes_of(process: psutil.Process) -> float:
    """Returns the memory of a process, and 0 if it has ended."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.memory_full_info().pss / 1e6
    return 0.0


if __name__ == "__main__":
    main()
