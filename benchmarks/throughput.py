"""Training throughput: the studio's own step beside transformers on PyTorch, in one run.

Ours is what `core.train` runs for each step: masks drawn by numpy, the batch moved to the device,
forward with the head at the masked positions, cross-entropy, backward, AdamW. The peer is
`RobertaForMaskedLM` (scaled-dot-product attention) called with labels that are -100 but at the same
number of positions, backward, `torch.optim.AdamW` (fused), on a batch that lies ready; under
`torch.compile` where that is found to be faster. Both have the same dimensions, batch, dropout and
precision (on PyTorch bfloat16 means autocast). Of a decoder, both predict each next token; its
peer has no dropout on hidden states.

Each side has a process of its own. They take turns, so that whatever else the machine does meets
both; a figure is the median over the rounds of the round's median step.

    python -m benchmarks.throughput [--size mini] [--engine tensorflow] [--rounds 5] ...
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

import numpy as np

from benchmarks.sides import (
    Answer,
    add_side_arguments,
    answer_if_asked,
    ask_in_turn,
    describe_machine,
    open_sides,
)

MASK_ID, PAD_ID, SPECIAL_IDS = 4, 3, 5
DECODERS = ("llama", "qwen3", "gpt2")


@dataclass(frozen=True)
class Shapes:
    """Model and batch, the same on both sides."""

    family: str = "roberta"
    size: str = "mini"
    batch: int = 32
    length: int = 128
    vocab_size: int = 10_000
    dropout: float = 0.1
    dtype: str = "float32"
    engine: str = "tensorflow"
    steps: int = 8


def main() -> None:
    options = parse_arguments()
    if not answer_if_asked(options, SIDES):
        shapes = Shapes(**{name: getattr(options, name) for name in Shapes.__annotations__})
        report(compare(shapes, options.rounds), shapes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=["roberta", *DECODERS], default="roberta")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    parser.add_argument("--length", type=int, default=128, help="tokens in a row")
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", choices=["float32", "mixed_bfloat16"], default="float32")
    parser.add_argument("--engine", choices=["tensorflow", "jax"], default="tensorflow")
    parser.add_argument("--steps", type=int, default=8, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=5)
    add_side_arguments(parser)
    return parser.parse_args()


def compare(shapes: Shapes, rounds: int) -> dict[str, list[float]]:
    """Returns the tokens/s of each round by side."""
    names = [name for name in SIDES if name == "ours" or find_spec("torch")]
    if "torch" not in names:
        print("PyTorch isn't installed: only our side is measured (pip install torch==2.13.0)")
    with open_sides("benchmarks.throughput", names, vars(shapes)) as sides:
        ask_in_turn(sides, 2, 1)
        return ask_in_turn(sides, shapes.steps, rounds)


def report(found: dict[str, list[float]], shapes: Shapes) -> None:
    """Prints the figures for people, and on the last line as JSON."""
    medians = {side: statistics.median(rounds) for side, rounds in found.items()}
    names = {"ours": f"ours ({shapes.engine})", "torch": "transformers on PyTorch"}
    packages = {"ours": ("keras", shapes.engine), "torch": ("torch", "transformers")}
    print(f"{shapes.family} {shapes.size}, batch {shapes.batch} x {shapes.length}, vocabulary "
          f"{shapes.vocab_size}, dropout {shapes.dropout}, {shapes.dtype}; "
          f"{describe_machine()}")  # fmt: skip
    for side, rounds in found.items():
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages[side])
        spread = f"{min(rounds):.0f} to {max(rounds):.0f}"
        print(f"  {names[side]:26} {medians[side]:8.0f} tokens/s  (rounds {spread}; {versions})")
    ratio = medians["ours"] / medians["torch"] if "torch" in medians else None
    if ratio:
        print(f"  ratio {ratio:.2f}")
    print(json.dumps({"tokens_per_second": medians, "ratio": ratio, **vars(shapes)}))


def rounds_of(step: Callable[[int], None], shapes: Shapes) -> Answer:
    """Returns a function that runs a number of steps and returns their median tokens/s."""
    numbers = itertools.count()

    def answer(steps: int) -> float:
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            step(next(numbers))
            seconds.append(time.perf_counter() - began)
        return shapes.batch * shapes.length / statistics.median(seconds)

    return answer


def make_rows(shapes: Shapes) -> np.ndarray:
    generator = np.random.default_rng(0)
    shape = (shapes.batch, shapes.length)
    return generator.integers(SPECIAL_IDS, shapes.vocab_size, shape).astype(np.int32)


def prepare_ours(shapes: Shapes) -> Callable[[int], None]:
    """Returns our training step."""
    from core.backends.selection import select_backend
    from core.config.train import TrainConfig
    from core.objectives.clm import CausalLanguageModel
    from core.objectives.mlm import MaskedLanguageModel
    from core.objectives.objective import Objective

    config = TrainConfig(
        preset="classic",
        family=shapes.family,
        size=shapes.size,
        engine=shapes.engine,
        device="cpu",
        hidden_dropout_prob=shapes.dropout,
        attention_probs_dropout_prob=shapes.dropout,
        dtype_policy=shapes.dtype,
    )
    devices = select_backend(config)

    from core.backends.creation import build_for_training, create_backend
    from core.backends.schedule import LearningRateSchedule
    from core.models.registry import resolve_architecture

    architecture = resolve_architecture(
        config, vocab_size=shapes.vocab_size, row_length=shapes.length, pad_id=PAD_ID
    )
    schedule = LearningRateSchedule("linear", config.learning_rate, 100, 10_000)
    engine = create_backend(devices, lambda: build_for_training(config, architecture, schedule))
    objective: Objective = CausalLanguageModel(shapes.length, shapes.vocab_size, PAD_ID)
    if shapes.family == "roberta":
        special = np.arange(SPECIAL_IDS, dtype=np.int32)
        objective = MaskedLanguageModel(shapes.length, 0.15, MASK_ID, shapes.vocab_size, special)
    rows = make_rows(shapes)

    def step(number: int) -> None:
        batch = engine.put(objective.batch(rows, seed=0, step=number), number)
        engine.fetch([engine.train_step(batch)])

    return step


def prepare_torch(shapes: Shapes) -> Callable[[int], None]:
    """Returns the peer's training step, compiled where that is faster here."""
    import torch

    from benchmarks.peer import Mode, fastest_mode, peer_decoder, peer_model, peer_step

    dimensions = (shapes.size, shapes.vocab_size, shapes.length, PAD_ID, shapes.dropout)
    if shapes.family in DECODERS:
        model = peer_decoder(shapes.family, *dimensions)
    else:
        model = peer_model(*dimensions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-3, fused=True)
    rows = torch.tensor(make_rows(shapes)).long()
    hidden = torch.rand(rows.shape).argsort(dim=1) < round(0.15 * shapes.length)
    labels = torch.where(hidden, rows, -100)
    inputs = torch.where(hidden, MASK_ID, rows)
    if shapes.family in DECODERS:
        inputs = labels = rows

    def step_in(mode: Mode) -> Callable[[], float]:
        step = peer_step(model, optimizer, mode)
        return lambda: step(inputs, labels).item()

    narrow = shapes.dtype == "mixed_bfloat16"
    mode, seconds = fastest_mode(step_in, [Mode(narrow, False), Mode(narrow, True)])
    said = ", ".join(f"{took:.3f} s in {one}" for one, took in seconds.items())
    print(f"PyTorch takes {said}", file=sys.stderr)
    step = step_in(mode)
    return lambda _: step()


SIDES = {
    "ours": lambda setup: rounds_of(prepare_ours(Shapes(**setup)), Shapes(**setup)),
    "torch": lambda setup: rounds_of(prepare_torch(Shapes(**setup)), Shapes(**setup)),
}

if __name__ == "__main__":
    main()
