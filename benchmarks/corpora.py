"""Prepares the corpora of the benchmarks and calls the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from core.families import objectives_of_family
from core.records.events import EVENTS_FILE, read_events

LENGTH, VOCAB_SIZE = 128, 10_048


def prepare_corpus(
    folder: Path,
    name: str,
    path: str | None = None,
    vocab_size: int = VOCAB_SIZE,
    length: int = LENGTH,
    family: str = "roberta",
) -> None:
    """Trains a tokenizer and builds shards of the same name, unless they exist.

    Args:
        folder: The workspace.
        path: File with one document per line, of which 5 % are held out; None: the documentation
            of the installed packages.
        length: Tokens per sequence.
    """
    read = ["--source", "docs"]
    if path:
        read = ["--source", "files", "--path", path, "--text-unit", "line"]
        read += ["--validation-percent", "5"]
    if not (folder / "tokenizers" / name).is_dir():
        core(folder, "tokenizer", "--name", name, "--preset", "classic", "--family", family,
             "--vocab-size", str(vocab_size), *read)  # fmt: skip
    build_shards(folder, name, name, *read, "--max-seq-length", str(length),
                 "--objective", objectives_of_family(family)[0])  # fmt: skip


def build_shards(folder: Path, name: str, tokenizer: str, *arguments: str) -> None:
    """Builds shards where there are none of that name."""
    if not (folder / "shards" / name).is_dir():
        core(folder, "shards", "--name", name, "--preset", "custom",
             "--tokenizer", tokenizer, *arguments)  # fmt: skip


def core(folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs a command and returns the last line of its output."""
    command = [sys.executable, "-m", "core", *arguments, "--workspace", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def events_of(folder: Path, run: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Returns the events of a run, or those of one kind."""
    events, _ = read_events(folder / "runs" / run / EVENTS_FILE)
    return [event for event in events if kind in (None, event["kind"])]
