"""Training throughput: the studio's own step beside transformers on PyTorch, in one run.

Ours is what `core.train` runs for each step: masks drawn by numpy, the batch moved to the device,
forward with the head at the masked positions, cross-entropy, backward, AdamW. The peer is
`RobertaForMaskedLM` (scaled-dot-product attention) called with labels that are -100 but at the same
number of positions, backward, `torch.optim.AdamW`, on a batch that lies ready. Both have the same
dimensions, batch, dropout and precision (on PyTorch bfloat16 means autocast).

Each side has a process of its own. They take turns, so that whatever else the machine does meets
both; a figure is the median over the rounds of the round's median step.

    python -m benchmarks.throughput [--size mini] [--engine tensorflow] [--rounds 5] ...
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

MASK_ID, PAD_ID, SPECIAL_IDS = 4, 3, 5
SIDES = ("ours", "torch")


@dataclass(frozen=True)
class Shapes:
    """What is trained, the same on both sides."""

    size: str
    batch: int
    length: int
    vocab_size: int
    dropout: float
    dtype: str
    engine: str
    steps: int


def main() -> None:
    options = parse_arguments()
    if options.side:
        shapes = Shapes(**json.loads(options.shapes))
        answer_rounds({"ours": prepare_ours, "torch": prepare_torch}[options.side](shapes), shapes)
    else:
        shapes = Shapes(**{name: getattr(options, name) for name in Shapes.__annotations__})
        report(compare(shapes, options.rounds), shapes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    parser.add_argument("--length", type=int, default=128, help="tokens in a row")
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", choices=["float32", "mixed_bfloat16"], default="float32")
    parser.add_argument("--engine", choices=["tensorflow", "jax"], default="tensorflow")
    parser.add_argument("--steps", type=int, default=8, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--shapes", help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(shapes: Shapes, rounds: int) -> dict[str, list[float]]:
    """Returns the tokens/s of each round by side."""
    sides = [side for side in SIDES if side == "ours" or find_spec("torch")]
    if "torch" not in sides:
        print("PyTorch isn't installed: only our side is measured (pip install torch==2.13.0)")
    workers = {side: start(side, shapes) for side in sides}
    try:
        found: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(rounds):
            for side in sides if number % 2 else reversed(sides):
                found[side].append(ask(workers[side]))
        return found
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()


def report(found: dict[str, list[float]], shapes: Shapes) -> None:
    """Prints the figures for people, and on the last line as JSON."""
    medians = {side: statistics.median(rounds) for side, rounds in found.items()}
    names = {"ours": f"ours ({shapes.engine})", "torch": "transformers on PyTorch"}
    packages = {"ours": ("keras", shapes.engine), "torch": ("torch", "transformers")}
    print(f"{shapes.size}, batch {shapes.batch} x {shapes.length}, vocabulary {shapes.vocab_size}, "
          f"dropout {shapes.dropout}, {shapes.dtype}; {describe_machine()}")  # fmt: skip
    for side, rounds in found.items():
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages[side])
        spread = f"{min(rounds):.0f} to {max(rounds):.0f}"
        print(f"  {names[side]:26} {medians[side]:8.0f} tokens/s  (rounds {spread}; {versions})")
    ratio = medians["ours"] / medians["torch"] if "torch" in medians else None
    if ratio:
        print(f"  ratio {ratio:.2f}")
    print(json.dumps({"tokens_per_second": medians, "ratio": ratio, **vars(shapes)}))


def start(side: str, shapes: Shapes) -> subprocess.Popen[str]:
    """Starts a side's process and waits until it has compiled and warmed up."""
    command = [sys.executable, "-m", "benchmarks.throughput", "--side", side]
    worker = subprocess.Popen(
        [*command, "--shapes", json.dumps(vars(shapes))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    ask(worker)
    return worker


def ask(worker: subprocess.Popen[str]) -> float:
    """Lets a side do one round and returns its tokens/s."""
    assert worker.stdin is not None and worker.stdout is not None
    print("round", file=worker.stdin, flush=True)
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"A side ended with exit code {worker.wait()}.")
    return float(line)


def answer_rounds(step: Callable[[int], None], shapes: Shapes) -> None:
    """Does a round for each line of stdin and prints its tokens/s."""
    number = 0
    for _ in sys.stdin:
        seconds = []
        for _ in range(shapes.steps):
            began = time.perf_counter()
            step(number)
            seconds.append(time.perf_counter() - began)
            number += 1
        print(shapes.batch * shapes.length / statistics.median(seconds), flush=True)


def make_rows(shapes: Shapes) -> np.ndarray:
    generator = np.random.default_rng(0)
    shape = (shapes.batch, shapes.length)
    return generator.integers(SPECIAL_IDS, shapes.vocab_size, shape).astype(np.int32)


def prepare_ours(shapes: Shapes) -> Callable[[int], None]:
    """Returns our training step."""
    from core.config import TrainConfig
    from core.objectives.mlm import MaskedLanguageModel
    from core.training.devices import select_engine

    config = TrainConfig(
        preset="classic",
        size=shapes.size,
        engine=shapes.engine,
        device="cpu",
        hidden_dropout_prob=shapes.dropout,
        attention_probs_dropout_prob=shapes.dropout,
        dtype_policy=shapes.dtype,
    )
    devices = select_engine(config)

    from core.models.registry import resolve_architecture
    from core.training.engine import build_for_training, create_engine
    from core.training.recipe import LearningRateSchedule

    architecture = resolve_architecture(
        config, vocab_size=shapes.vocab_size, row_length=shapes.length, pad_id=PAD_ID
    )
    schedule = LearningRateSchedule("linear", config.learning_rate, 100, 10_000)
    engine = create_engine(devices, lambda: build_for_training(config, architecture, schedule))
    special = np.arange(SPECIAL_IDS, dtype=np.int32)
    objective = MaskedLanguageModel(shapes.length, 0.15, MASK_ID, shapes.vocab_size, special)
    rows = make_rows(shapes)

    def step(number: int) -> None:
        batch = engine.put(objective.batch(rows, seed=0, step=number), number)
        engine.fetch([engine.train_step(batch)])

    return step


def prepare_torch(shapes: Shapes) -> Callable[[int], None]:
    """Returns the peer's training step."""
    import torch

    model = peer_model(shapes.size, shapes.vocab_size, shapes.length, PAD_ID, shapes.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-3)
    rows = torch.tensor(make_rows(shapes)).long()
    hidden = torch.rand(rows.shape).argsort(dim=1) < round(0.15 * shapes.length)
    labels = torch.where(hidden, rows, -100)
    inputs = torch.where(hidden, MASK_ID, rows)
    narrow = shapes.dtype == "mixed_bfloat16"

    def step(number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model(inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def peer_model(size: str, vocab_size: int, length: int, pad_id: int, dropout: float) -> Any:
    """Returns the peer's model, ready to train, with the dimensions that ours has at a size."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    from core.models.registry import SIZES

    layers, width = SIZES[size]  # type: ignore[index]
    config = RobertaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=length + pad_id + 1,
        pad_token_id=pad_id,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return RobertaForMaskedLM._from_config(config, attn_implementation="sdpa").train()


def describe_machine() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}"


if __name__ == "__main__":
    main()
