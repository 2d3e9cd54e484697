"""Fill-mask: ours beside transformers' pipeline on PyTorch, the same checkpoint.

A checkpoint of RoBERTa with random weights and a real tokenizer is asked about sentences of 8 to 40
words with a mask: one after the other, and by 32 callers at a time, each in a thread of its own.
Ours is `core.fill_mask`, as the Playground's process calls it; it computes together what comes
together. The pipeline has scaled-dot-product attention. Where many call it, each may call it when
it likes, or one at a time, since threads that all compute get in each other's way: what counts is
the faster. Both sides are warmed up with the same texts, as often as it takes until nothing is
compiled for them any more, and must give the same best tokens. With
`--dtype auto`, as the Playground asks, the pipeline is as it comes: in float32.

    python -m benchmarks.fill_mask [--sizes mini base] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.corpora import LENGTH, prepare_corpus
from benchmarks.sides import (
    Answer,
    Prepare,
    Side,
    add_side_arguments,
    answer_if_asked,
    describe_machine,
    medians,
    open_sides,
)

CALLERS = 32
SINGLE_TEXTS = 40
TEXTS_A_CALLER = 4
MOST_WARM_UPS = 8
Fill = Callable[[str], list[dict[str, Any]]]
# Waits for what is made ready meanwhile, and tells whether nothing was.
Settle = Callable[[], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--sizes", nargs="+", default=["mini", "base"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "auto"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    add_side_arguments(parser)
    options = parser.parse_args()
    if not answer_if_asked(options, SIDES):
        found = {
            size: measure(options.folder, size, options.rounds, options.dtype)
            for size in options.sizes
        }
        print(json.dumps(found))


def measure(folder: Path, size: str, rounds: int, dtype: str = "float32") -> dict[str, Any]:
    """Returns the latencies and the answers a second of both sides, and their ratios."""
    prepare_corpus(folder, "docs")
    model = folder / f"fill-mask-{size}"
    mask = write_model(folder, model, size)
    print(f"{size}, {dtype}; {describe_machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
    figures: dict[str, Any] = {}
    setup = {"model": str(model), "dtype": dtype, "mask": mask}
    with open_sides("benchmarks.fill_mask", SIDES, setup) as sides:
        alike = {name: side.ask("tokens") for name, side in sides.items()}
        if dtype == "float32" and alike["ours"] != alike["torch"]:
            sys.exit(f"{size}: the sides give different tokens")
        found = warm_medians(sides, "latency", rounds)
        figures["latency"] = {**found, "ratio": found["torch"] / found["ours"]}
        fewer = -(-rounds // 2)
        found = warm_medians(sides, "throughput", fewer)
        in_turn = warm_medians({"torch": sides["torch"]}, "throughput, one at a time", fewer)
        found["torch"] = max(found["torch"], in_turn["torch"])
        figures["throughput"] = {**found, "ratio": found["ours"] / found["torch"]}
    latency, throughput = figures["latency"], figures["throughput"]
    print(f"  one caller: {latency['ours'] * 1e3:.1f} ms, PyTorch {latency['torch'] * 1e3:.1f} "
          f"ms, ratio {latency['ratio']:.2f}; {CALLERS} callers: {throughput['ours']:.0f} and "
          f"{throughput['torch']:.0f} answers/s, ratio {throughput['ratio']:.2f}",
          flush=True)  # fmt: skip
    return figures


def warm_medians(sides: Mapping[str, Side], question: str, rounds: int) -> dict[str, float]:
    """Asks the sides in turn, once each of them has nothing more to make ready for it."""
    for side in sides.values():
        for _ in range(MOST_WARM_UPS):
            side.ask(question)
            if side.ask("settled"):
                break
    return medians(sides, question, rounds)


def write_model(folder: Path, target: Path, size: str) -> str:
    """Writes a checkpoint with random weights, where there is none, and returns its mask token."""
    from core.config.train import TrainConfig
    from core.models.registry import resolve_architecture
    from core.tokenizer.loading import load
    from core.workspace.workspace import Workspace
    from tests.checkpoints import write_model_of

    tokenizer = load("docs", Workspace(folder))
    if target.is_dir():
        return str(tokenizer.mask_token)
    architecture = resolve_architecture(
        TrainConfig(size=size),
        vocab_size=tokenizer.vocab_size,
        row_length=LENGTH,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.cls_id,
        eos_id=tokenizer.sep_id,
    )
    write_model_of(target, tokenizer, architecture)
    return str(tokenizer.mask_token)


def sentences(count: int, mask: str) -> list[str]:
    """Returns sentences of 8 to 40 words, one of which is hidden; always the same ones."""
    choose = random.Random(0)
    words = (__doc__ or "").split()
    made = []
    for _ in range(count):
        chosen = choose.choices(words, k=choose.randint(8, 40))
        chosen[choose.randrange(len(chosen))] = mask
        made.append(" ".join(chosen))
    return made


def answering(load: Callable[[str, str], tuple[Fill, Settle]]) -> Prepare:
    """Returns a side that measures what the question names."""

    def prepare(setup: dict[str, str]) -> Answer:
        fill, wait_until_warm = load(setup["model"], setup["dtype"])
        texts = sentences(CALLERS * TEXTS_A_CALLER, setup["mask"])
        callers = ThreadPoolExecutor(CALLERS)

        def tokens() -> list[int]:
            return [fill(text)[0]["token"] for text in texts[:SINGLE_TEXTS]]

        def latency() -> float:
            return median(seconds_of(fill, text) for text in texts[:SINGLE_TEXTS])

        def throughput(fill: Fill = fill) -> float:
            began = time.perf_counter()
            parts = [texts[number::CALLERS] for number in range(CALLERS)]
            list(callers.map(lambda part: fill_all(fill, part), parts))
            return len(texts) / (time.perf_counter() - began)

        taking_turns = threading.Lock()

        def fill_alone(text: str) -> list[dict[str, Any]]:
            with taking_turns:
                return fill(text)

        questions: dict[str, Callable[[], Any]] = {
            "settled": wait_until_warm,
            "tokens": tokens,
            "latency": latency,
            "throughput": throughput,
            "throughput, one at a time": lambda: throughput(fill_alone),
        }
        return lambda question: questions[question]()

    return prepare


def seconds_of(fill: Fill, text: str) -> float:
    began = time.perf_counter()
    fill(text)
    return time.perf_counter() - began


def fill_all(fill: Fill, texts: Sequence[str]) -> None:
    for text in texts:
        fill(text)


def load_ours(model: str, dtype: str) -> tuple[Fill, Settle]:
    from core.inference.masks import FillMask, fill_mask
    from core.inference.models import force_cpu, keep

    force_cpu()
    shapes: set[Any] = set()

    def wait_until_warm() -> bool:
        filler: FillMask = keep(Path(model), dtype, FillMask)
        filler.model.wait_until_warm()
        known = set(shapes)
        shapes.update(filler.model.ready)
        return shapes == known

    return lambda text: fill_mask(model, text, dtype=dtype), wait_until_warm


def load_peer(model: str, dtype: str) -> tuple[Fill, Settle]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    taken = getattr(torch, "float32" if dtype == "auto" else dtype)
    return transformers.pipeline("fill-mask", model=model, dtype=taken), lambda: True


SIDES = {"ours": answering(load_ours), "torch": answering(load_peer)}

if __name__ == "__main__":
    main()
