"""Generation throughput: ours beside transformers' `generate` on PyTorch, in one run.

Both write greedily with their key-value caches, one text at a time, from the same checkpoint with
random weights and no end token: GPT-2, T5 and BART, in float32 and in bfloat16. Ours is what the
Playground's process runs, on JAX and the CPU. In float32 both must write the same tokens. Each side
has a process of its own; they take turns, so that whatever else the machine does meets both. A
figure is the median over the rounds.

    python -m benchmarks.generation [--size mini] [--new-tokens 96] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.throughput import describe_machine

# With random weights two tokens come to a tie sooner or later, and rounding decides.
SAME_TOKENS = 48
FAMILIES = ("gpt2", "t5", "bart")
DTYPES = ("float32", "bfloat16")
PROMPT = "The small house sleeps in winter, and the old ship never reads a golden letter. "
VOCAB_SIZE, POSITIONS = 10_000, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        answer(SIDES[options.side], options.folder, options.new_tokens)
        return
    with tempfile.TemporaryDirectory() as name:
        write_models(Path(name), options.size)
        compare(Path(name), options)


def write_models(folder: Path, size: str) -> None:
    """Writes a checkpoint for each family, with random weights and without an end token."""
    from core.config import TrainConfig
    from core.models.registry import resolve_architecture
    from core.workspace import Workspace
    from tests.checkpoints import make_tokenizer, write_model_of

    tokenizer = make_tokenizer(Workspace(folder / "workspace"), "byte_level_bpe")
    for family in FAMILIES:
        found = resolve_architecture(
            TrainConfig(family=family, size=size),
            vocab_size=VOCAB_SIZE,
            row_length=POSITIONS,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.cls_id,
            eos_id=tokenizer.sep_id,
        )
        write_model_of(folder / family, tokenizer, replace(found, eos_token_id=None))


def compare(folder: Path, options: argparse.Namespace) -> None:
    """Prints the figures as they come, for people, and on the last line as JSON."""
    workers = {side: start(side, folder, options.new_tokens) for side in SIDES}
    print(f"{options.size}, vocabulary {VOCAB_SIZE}, {options.new_tokens} new tokens, greedy; "
          f"{describe_machine()}; load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    summary = {}
    try:
        for dtype in options.dtypes:
            for family in options.families:
                figures = measure(workers, family, dtype, options.rounds)
                ours, theirs = (statistics.median(figures[side]) for side in ("ours", "torch"))
                spread = f"{min(figures['ours']):.0f} to {max(figures['ours']):.0f}"
                print(f"  {family:5} {dtype:9} ours {ours:6.0f} tokens/s ({spread}), "
                      f"PyTorch {theirs:6.0f}, ratio {ours / theirs:.2f}", flush=True)  # fmt: skip
                figure = {"ours": ours, "torch": theirs, "ratio": ours / theirs}
                summary[f"{family} {dtype}"] = figure
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()
    print(json.dumps(summary))


def measure(
    workers: dict[str, subprocess.Popen[str]], family: str, dtype: str, rounds: int
) -> dict[str, list[float]]:
    """Returns the tokens/s of each round by side; in float32 both must begin alike."""
    written = {side: ask(workers[side], family, dtype)[1][:SAME_TOKENS] for side in SIDES}
    if dtype == "float32" and written["ours"] != written["torch"]:
        sys.exit(f"{family}: the sides write different tokens: {written}")
    figures: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else reversed(SIDES):
            figures[side].append(ask(workers[side], family, dtype)[0])
    return figures


def start(side: str, folder: Path, new_tokens: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.generation", "--side", side]
    return subprocess.Popen(
        [*command, "--folder", str(folder), "--new-tokens", str(new_tokens)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )


def ask(worker: subprocess.Popen[str], family: str, dtype: str) -> tuple[float, list[int]]:
    """Lets a side write once, and returns its tokens/s and the tokens."""
    assert worker.stdin and worker.stdout
    print(json.dumps([family, dtype]), file=worker.stdin, flush=True)
    seconds, ids = json.loads(worker.stdout.readline())
    return len(ids) / seconds, ids


Write = Callable[[Path, str, int], list[int]]


def answer(write: Write, folder: Path, new_tokens: int) -> None:
    """Writes whenever it is asked to; the first time includes loading and compiling."""
    for line in sys.stdin:
        family, dtype = json.loads(line)
        started = time.perf_counter()
        ids = write(folder / family, dtype, new_tokens)
        print(json.dumps([time.perf_counter() - started, ids]), flush=True)


def write_ours(folder: Path, dtype: str, new_tokens: int) -> list[int]:
    from core.inference import generate, stay_on_cpu

    stay_on_cpu()
    found = generate(folder, PROMPT, max_new_tokens=new_tokens, do_sample=False, dtype=dtype)
    return list(found["token_ids"])


_loaded: dict[tuple[Path, str], tuple[object, object]] = {}


def write_torch(folder: Path, dtype: str, new_tokens: int) -> list[int]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if (folder, dtype) not in _loaded:
        (name,) = json.loads((folder / "config.json").read_text())["architectures"]
        model = getattr(transformers, name).from_pretrained(folder, dtype=getattr(torch, dtype))
        _loaded[folder, dtype] = model.eval(), transformers.AutoTokenizer.from_pretrained(folder)
    model, tokenizer = _loaded[folder, dtype]
    given = tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(
            **given, max_new_tokens=new_tokens, do_sample=False, forced_eos_token_id=None
        )[0].tolist()
    return ids[given.input_ids.shape[1] if "gpt2" in folder.name else 1 :]


SIDES = {"ours": write_ours, "torch": write_torch}

if __name__ == "__main__":
    main()
