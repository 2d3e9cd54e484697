"""Generation throughput: ours beside transformers' `generate` on PyTorch, in one run.

Both write greedily with their key-value caches, one text at a time, from the same checkpoint with
random weights and no end token, of each family that writes, in float32 and in bfloat16. Ours is
what the Playground's process runs, on JAX and the CPU. In float32 both must write the same tokens.
Each side has a process of its own; they take turns, so that whatever else the machine does meets
both. A figure is the median over the rounds.

    python -m benchmarks.generation [--size mini] [--new-tokens 96] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sides import (
    Answer,
    Prepare,
    Side,
    add_side_arguments,
    answer_if_asked,
    ask_in_turn,
    describe_machine,
    open_sides,
)

# With random weights two tokens come to a tie sooner or later, and rounding decides.
SAME_TOKENS = 48
FAMILIES = ("gpt2", "llama", "qwen3", "t5", "bart")
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
    add_side_arguments(parser)
    options = parser.parse_args()
    if answer_if_asked(options, SIDES):
        return
    with tempfile.TemporaryDirectory() as name:
        write_models(Path(name), options.size)
        compare(Path(name), options)


def write_models(folder: Path, size: str) -> None:
    """Writes a checkpoint for each family, with random weights and without an end token."""
    from core.config.train import TrainConfig
    from core.models.registry import resolve_architecture
    from core.workspace.workspace import Workspace
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
    print(f"{options.size}, vocabulary {VOCAB_SIZE}, {options.new_tokens} new tokens, greedy; "
          f"{describe_machine()}; load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    summary = {}
    setup = {"folder": str(folder), "new_tokens": options.new_tokens}
    with open_sides("benchmarks.generation", SIDES, setup) as sides:
        for dtype in options.dtypes:
            for family in options.families:
                figures = measure(sides, family, dtype, options.rounds)
                ours, theirs = (statistics.median(figures[side]) for side in ("ours", "torch"))
                spread = f"{min(figures['ours']):.0f} to {max(figures['ours']):.0f}"
                print(f"  {family:5} {dtype:9} ours {ours:6.0f} tokens/s ({spread}), "
                      f"PyTorch {theirs:6.0f}, ratio {ours / theirs:.2f}", flush=True)  # fmt: skip
                figure = {"ours": ours, "torch": theirs, "ratio": ours / theirs}
                summary[f"{family} {dtype}"] = figure
    print(json.dumps(summary))


def measure(
    sides: Mapping[str, Side], family: str, dtype: str, rounds: int
) -> dict[str, list[float]]:
    """Returns the tokens/s of each round by side; in float32 both must begin alike."""
    question = [family, dtype]
    written = {name: side.ask(question)[1][:SAME_TOKENS] for name, side in sides.items()}
    if dtype == "float32" and written["ours"] != written["torch"]:
        sys.exit(f"{family}: the sides write different tokens: {written}")
    found = ask_in_turn(sides, question, rounds)
    return {name: [len(ids) / seconds for seconds, ids in all] for name, all in found.items()}


Write = Callable[[Path, str, int], list[int]]


def answering(write: Write) -> Prepare:
    """Returns a side that writes whenever it is asked to; the first time it loads and compiles."""

    def prepare(setup: Mapping[str, Any]) -> Answer:
        def answer(question: list[str]) -> tuple[float, list[int]]:
            family, dtype = question
            started = time.perf_counter()
            ids = write(Path(setup["folder"]) / family, dtype, setup["new_tokens"])
            return time.perf_counter() - started, ids

        return answer

    return prepare


def write_ours(folder: Path, dtype: str, new_tokens: int) -> list[int]:
    from core.inference.generation import generate
    from core.inference.models import force_cpu

    force_cpu()
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


SIDES = {"ours": answering(write_ours), "torch": answering(write_torch)}

if __name__ == "__main__":
    main()
