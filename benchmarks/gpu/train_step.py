"""Training on one GPU: tokens/s and utilisation, ours beside transformers on PyTorch, in one run.

Ours is the step that `core.train` runs on JAX: masks drawn by numpy, batches moved ahead of need,
forward with the head at the masked positions, backward, AdamW. The peer is `RobertaForMaskedLM`
with scaled-dot-product attention under `torch.compile` and bfloat16 autocast, with fused AdamW, on
a batch that lies ready. Dimensions, batch and dropout are the same.

Utilisation is what the model's matrices and attention need, 6 operations a weight and token, of the
bfloat16 peak measured here with a product of two square matrices. The head counts where it is
needed: at the predictions.

    python -m benchmarks.gpu.train_step [--size base] [--lengths 128 512] [--tokens 65536]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

_MASK_ID, _PAD_ID, _SPECIAL_IDS = 4, 3, 5
_WARM_UP_STEPS = 3
_PEAK_SIZE = {"gpu": 8192, "cpu": 512}


@dataclass(frozen=True)
class Shapes:
    """Model and batch, the same on both sides."""

    size: str
    batch: int
    length: int
    vocab_size: int
    dropout: float
    steps: int
    device: str

    @property
    def predictions(self) -> int:
        """Predictions of a row."""
        return round(0.15 * self.length)


def main() -> None:
    options = parse_arguments()
    if options.side:
        print(json.dumps(SIDES[options.side](Shapes(**json.loads(options.shapes)))))
        return
    peak = ask("peak", shapes_of(options, options.lengths[0]))["flops_per_second"]
    print(f"bfloat16 peak measured here: {peak / 1e12:.1f} TFLOP/s")
    for length in options.lengths:
        report(shapes_of(options, length), peak, options.rounds)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=65_536, help="in a step")
    parser.add_argument("--vocab-size", type=int, default=50_304)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=30, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="cpu: to try it")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--shapes", help=argparse.SUPPRESS)
    return parser.parse_args()


def shapes_of(options: argparse.Namespace, length: int) -> Shapes:
    return Shapes(
        options.size,
        max(1, options.tokens // length),
        length,
        options.vocab_size,
        options.dropout,
        options.steps,
        options.device,
    )


def report(shapes: Shapes, peak: float, rounds: int) -> None:
    """Lets the sides take turns, and prints the medians."""
    sides = [side for side in ("ours", "torch") if side == "ours" or find_spec("torch")]
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            found[side].append(ask(side, shapes)["tokens_per_second"])
    flops = flops_per_token(shapes)
    medians = {side: statistics.median(speeds) for side, speeds in found.items()}
    for side, speed in medians.items():
        share = speed * flops / peak
        print(f"{shapes.size} {shapes.batch} x {shapes.length}  {side:6} {speed:12,.0f} tokens/s  "
              f"{100 * share:5.1f} % of the peak  (rounds {found[side]})")  # fmt: skip
    print(json.dumps({"shapes": asdict(shapes), "peak": peak, "tokens_per_second": medians}))


def ask(side: str, shapes: Shapes) -> dict[str, float]:
    """Runs a side in a process of its own, so that each has the whole device."""
    command = [sys.executable, "-m", "benchmarks.gpu.train_step", "--side", side]
    done = subprocess.run(
        [*command, "--shapes", json.dumps(asdict(shapes))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def flops_per_token(shapes: Shapes) -> float:
    """Returns the operations of a training step for a token; see the module's docstring."""
    from core.architecture.family import SIZES

    layers, width = SIZES[shapes.size]  # type: ignore[index]
    weights = layers * 12 * width * width
    attention = 12 * layers * width * shapes.length
    head = (width * width + shapes.vocab_size * width) * shapes.predictions / shapes.length
    return 6 * (weights + head) + attention


def measure_ours(shapes: Shapes) -> dict[str, float]:
    """Times our step, with the input that training has."""
    from core.backends.selection import select_backend
    from core.config.train import TrainConfig

    config = TrainConfig(
        preset="classic",
        size=shapes.size,  # type: ignore[arg-type]
        engine="jax",
        device=shapes.device,  # type: ignore[arg-type]
        num_devices=1,
        hidden_dropout_prob=shapes.dropout,
        attention_probs_dropout_prob=shapes.dropout,
        dtype_policy="mixed_bfloat16",
    )
    devices = select_backend(config)

    from core.backends.creation import build_for_training, create_backend
    from core.backends.schedule import LearningRateSchedule
    from core.models.registry import resolve_architecture
    from core.objectives.mlm import MaskedLanguageModel
    from core.training.batches import BatchPrefetcher

    architecture = resolve_architecture(
        config, vocab_size=shapes.vocab_size, row_length=shapes.length, pad_id=_PAD_ID
    )
    schedule = LearningRateSchedule("linear", 1e-4, 100, 10_000)
    engine = create_backend(devices, lambda: build_for_training(config, architecture, schedule))
    special = np.arange(_SPECIAL_IDS, dtype=np.int32)
    objective = MaskedLanguageModel(shapes.length, 0.15, _MASK_ID, shapes.vocab_size, special)
    rows = make_rows(shapes)

    def prepare(numbers: range) -> list[Any]:
        return [engine.put(objective.batch(rows, seed=0, step=one), one) for one in numbers]

    with BatchPrefetcher(prepare, 0, _WARM_UP_STEPS + shapes.steps) as feeder:
        return measure(
            shapes,
            step=lambda: engine.train_steps([feeder.next()]),
            wait=lambda loss: engine.fetch([loss]),
        )


def measure_torch(shapes: Shapes) -> dict[str, float]:
    """Times the peer's step."""
    import torch

    from benchmarks.peer import Mode, peer_model, peer_step

    device = "cuda" if shapes.device == "gpu" else "cpu"
    torch.set_float32_matmul_precision("high")
    model = peer_model(shapes.size, shapes.vocab_size, shapes.length, _PAD_ID, shapes.dropout)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-3, fused=True)
    rows = torch.tensor(make_rows(shapes)).long()
    hidden = torch.rand(rows.shape).argsort(dim=1) < shapes.predictions
    labels = torch.where(hidden, rows, -100).to(device)
    inputs = torch.where(hidden, _MASK_ID, rows).to(device)
    train_step = peer_step(model, optimizer, Mode(narrow=True, compiled=shapes.device == "gpu"))
    return measure(shapes, step=lambda: train_step(inputs, labels), wait=lambda loss: loss.item())


def measure_peak(shapes: Shapes) -> dict[str, float]:
    """Times a product of two large square matrices in bfloat16, the best of several."""
    import jax
    import jax.numpy as jnp

    size = _PEAK_SIZE[shapes.device]
    matrix = jnp.ones((size, size), jnp.bfloat16)
    product = jax.jit(lambda one, other: one @ other)
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return {"flops_per_second": 2 * size**3 / min(seconds)}


def measure(
    shapes: Shapes, *, step: Callable[[], Any], wait: Callable[[Any], Any]
) -> dict[str, float]:
    """Returns tokens/s over a round of steps of which only the last is waited for."""
    for _ in range(_WARM_UP_STEPS):
        loss = step()
    wait(loss)
    began = time.perf_counter()
    for _ in range(shapes.steps):
        loss = step()
    wait(loss)
    seconds = time.perf_counter() - began
    return {"tokens_per_second": shapes.steps * shapes.batch * shapes.length / seconds}


def make_rows(shapes: Shapes) -> np.ndarray:
    generator = np.random.default_rng(0)
    shape = (shapes.batch, shapes.length)
    return generator.integers(_SPECIAL_IDS, shapes.vocab_size, shape).astype(np.int32)


SIDES: dict[str, Callable[[Shapes], dict[str, float]]] = {
    "ours": measure_ours,
    "torch": measure_torch,
    "peak": measure_peak,
}


if __name__ == "__main__":
    main()
