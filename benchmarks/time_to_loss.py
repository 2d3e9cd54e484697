"""Time to a validation loss: `core train --preset fast` beside transformers on PyTorch.

RoBERTa `mini` on rows of 128, batches of 32, on two corpora without retuning between them: the
documentation of the installed packages, and a text file of your own with 5 % held out.

Both are on the CPU. The peer is `RobertaForMaskedLM` (scaled-dot-product attention, bfloat16
autocast where the machine is faster with it, batches that lie ready in memory, masks drawn by
PyTorch) with the numbers of the Flax example, and with plain AdamW at three rates without dropout.
Each gets so many minutes of wall-clock from its command; its learning rate falls to 0 just then,
also where the 1,000 steps of the Flax example's warm-up aren't done. The validation loss it ends
with is the target. Its validations on the way, which the picture needs, stop its clock.

Ours is the shell's command, its clock from the command too, start, compilation, validations and
checkpoints included. It is given an eighth of the peer's time against the Flax numbers and a
quarter against AdamW, as a number of steps that a short run before has found to take that long. It
has reached the target when one of its validations is at or below it.

Rows and masks for validation are the same on both sides. A target counts only where it lies below
the frequency baseline, which the output bias alone could give.

    python -m benchmarks.time_to_loss --text korean.txt [--minutes 15] [--corpora docs text] ...
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.corpora import LENGTH, VOCAB_SIZE, core, events_of, prepare_corpus
from benchmarks.sides import describe_machine
from benchmarks.throughput import peer_model

BATCH, EVAL_BATCH = 32, 64
CURVE_POINTS = 12
CURVE_ROWS = 256


@dataclass(frozen=True)
class Setting:
    """How the peer trains.

    Attributes:
        learning_rate: At its peak.
        dropout: Of hidden states and attention.
        beta2: AdamW's.
        warmup_steps: Steps of the warm-up; None: a twentieth of the time.
        share: Of its time that ours has to do with.
    """

    learning_rate: float
    dropout: float
    beta2: float
    warmup_steps: int | None
    share: float


SETTINGS = {
    "flax": Setting(3e-4, 0.1, 0.98, 1000, 1 / 8),
    "adamw 3e-4": Setting(3e-4, 0.0, 0.999, None, 1 / 4),
    "adamw 1e-3": Setting(1e-3, 0.0, 0.999, None, 1 / 4),
    "adamw 3e-3": Setting(3e-3, 0.0, 0.999, None, 1 / 4),
}
PUBLISHED = ("flax",)


@dataclass
class Curve:
    """A run: its validation losses against the seconds since its command."""

    name: str
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    baseline: float = math.nan

    def reached(self, target: float) -> float:
        """Returns the seconds after which a validation was at or below a loss; or infinity."""
        pairs = zip(self.seconds, self.losses, strict=True)
        return next((when for when, loss in pairs if loss <= target), math.inf)


def main() -> None:
    options = parse_arguments()
    if options.side:
        train_peer(options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for corpus in options.corpora:
        path = options.text if corpus == "text" else None
        prepare_corpus(options.folder, corpus, path)
        found[corpus] = compare(corpus, options)
        (options.folder / "time_to_loss.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--corpora", nargs="+", choices=["docs", "text"], default=["docs", "text"])
    parser.add_argument("--text", help="a file with a text on each line")
    parser.add_argument("--minutes", type=float, default=15.0, help="that each peer run has")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--side", choices=["torch"], help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "text" in options.corpora and not options.text and not options.side:
        parser.error("name a file with --text, or leave it out with --corpora docs")
    return options


def compare(corpus: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the peers and ours in turn, says how they compare, and returns the figures."""
    print(f"{corpus}: RoBERTa mini, batch {BATCH} x {LENGTH}, vocabulary {VOCAB_SIZE}, "
          f"{options.minutes:g} minutes a peer; {describe_machine()}", flush=True)  # fmt: skip
    peers: dict[str, Curve] = {}
    ours: dict[float, Curve] = {}
    seconds_per_step = time_our_steps(corpus, options)
    for name in options.settings:
        peers[name] = run_peer(corpus, name, options)
        say(peers[name])
        share = SETTINGS[name].share
        if share not in ours:
            ours[share] = run_ours(corpus, share, *seconds_per_step, options)
            say(ours[share])
    rows = []
    for kind, names in (
        ("(a) flax", [name for name in peers if name in PUBLISHED]),
        ("(b) AdamW", [name for name in peers if name not in PUBLISHED]),
    ):
        if not names:
            continue
        kind += f", the best of {len(names)}" if len(names) > 1 else ""
        best = min(names, key=lambda name: peers[name].losses[-1])
        target, share = peers[best].losses[-1], SETTINGS[best].share
        when = ours[share].reached(target)
        rows.append(
            {
                "peer": f"{kind}: {best}",
                "target": target,
                "counts": target < ours[share].baseline,
                "baseline": ours[share].baseline,
                "allowed_seconds": options.minutes * 60 * share,
                "seconds": when,
                "share": when / (options.minutes * 60),
            }
        )
        print(f"  {rows[-1]}", flush=True)
    published = run_ours(corpus, max(ours), *seconds_per_step, options, preset="classic")
    say(published)
    curves = [*peers.values(), *ours.values(), published]
    draw(curves, options.folder / f"time_to_loss_{corpus}.png", corpus)
    return {"rows": rows, "curves": [asdict(curve) for curve in curves]}


def say(curve: Curve) -> None:
    print(f"  {curve.name:24} {curve.steps:5} steps, {curve.seconds[-1]:6.1f} s, validation "
          f"{curve.losses[-1]:.3f}", flush=True)  # fmt: skip


def time_our_steps(corpus: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the seconds that a run takes beside its steps, and for each step."""
    times = []
    for steps in (20, 60):
        began = time.time()
        core(options.folder, *our_command(corpus, steps, 10_000))
        times.append(time.time() - began)
    per_step = (times[1] - times[0]) / 40
    return times[0] - 20 * per_step, per_step


def our_command(corpus: str, steps: int, eval_steps: int, preset: str = "fast") -> list[str]:
    return [
        "train", "--preset", preset, "--size", "mini", "--shards", corpus,
        "--per-replica-batch-size", str(BATCH), "--num-train-steps", str(steps),
        "--eval-steps", str(eval_steps), "--save-steps", "10000",
        "--per-replica-eval-batch-size", str(EVAL_BATCH), "--device", "cpu",
    ]  # fmt: skip


def run_ours(
    corpus: str,
    share: float,
    around: float,
    per_step: float,
    options: argparse.Namespace,
    preset: str = "fast",
) -> Curve:
    """Trains with as many steps as fit into a share of the peer's time."""
    allowed = options.minutes * 60 * share
    # What validations on the way take is left room for.
    steps = max(20, int((allowed * 0.9 - around) / per_step))
    began = time.time()
    # Half-way and at the end: ours count as its time, and take as long as a dozen steps.
    said = core(options.folder, *our_command(corpus, steps, -(-steps // 2), preset))
    curve = Curve(f"{preset}, 1/{round(1 / share)} of the time", steps=steps)
    curve.baseline = said["metrics"]["frequency_baseline_loss"]
    for event in events_of(options.folder, said["run"], "metrics"):
        if "eval_loss" in event["values"]:
            curve.seconds.append(event["t"] - began)
            curve.losses.append(event["values"]["eval_loss"])
    return curve


def run_peer(corpus: str, name: str, options: argparse.Namespace) -> Curve:
    """Lets the peer train in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.time_to_loss", "--side", "torch"]
    command += ["--corpus", corpus, "--setting", name, "--minutes", str(options.minutes)]
    command += ["--folder", str(options.folder), "--began", str(time.time())]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Curve(**json.loads(done.stdout.splitlines()[-1]))


def draw(curves: list[Curve], path: Path, corpus: str) -> None:
    """Draws the curves against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for curve in curves:
        ours = curve.name.startswith(("fast", "classic"))
        label = f"ours, {curve.name}" if ours else f"transformers on PyTorch, {curve.name}"
        first = 0 if ours else 1  # The peer's first is before it has learned anything.
        axes.plot(curve.seconds[first:], curve.losses[first:], label=label, lw=2.5 if ours else 1.2)
    axes.axhline(curves[-1].baseline, color="grey", ls=":", label="frequency baseline")
    axes.set(xlabel="seconds since the command", ylabel="validation loss, nats", title=corpus)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def train_peer(options: argparse.Namespace) -> None:
    """Trains `RobertaForMaskedLM` until its time is over, and prints its curve as JSON."""
    import torch

    from core.config import TrainConfig
    from core.training.batches import EvalBatches
    from core.training.inputs import open_inputs
    from core.workspace import Workspace

    setting = SETTINGS[options.setting]
    inputs = open_inputs(TrainConfig(shards=options.corpus), Workspace(options.folder))
    pad = inputs.architecture.pad_token_id
    vocab_size = inputs.architecture.vocab_size
    torch.manual_seed(0)
    model = peer_model("mini", vocab_size, LENGTH, pad, setting.dropout)
    decayed = [one for one in model.parameters() if one.dim() > 1]
    rest = [one for one in model.parameters() if one.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=setting.learning_rate,
        betas=(0.9, setting.beta2),
        fused=True,
    )
    rows = torch.from_numpy(inputs.train_rows.take(np.arange(len(inputs.train_rows))))
    objective: Any = inputs.objective
    special = torch.zeros(vocab_size, dtype=torch.bool)
    special[torch.from_numpy(objective.special_ids).long()] = True
    ordinary = torch.nonzero(~special).squeeze(1)
    mask_id = objective.mask_id
    batches = EvalBatches(inputs.validation_rows, inputs.eval_objective, EVAL_BATCH)
    narrow = is_faster_narrow(model, rows[:BATCH].long())

    def masked(batch: Any) -> tuple[Any, Any]:
        chosen = (torch.rand(batch.shape) < 0.15) & ~special[batch]
        kind = torch.rand(batch.shape)
        inputs = torch.where(chosen & (kind < 0.8), mask_id, batch)
        random = ordinary[torch.randint(len(ordinary), batch.shape)]
        inputs = torch.where(chosen & (kind >= 0.9), random, inputs)
        return inputs, torch.where(chosen, batch, -100)

    def evaluate(count: int) -> float:
        model.eval()
        total = weight = 0.0
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            for number in range(count):
                one = batches(number)
                hidden = model.roberta(torch.from_numpy(one["input_ids"]).long())[0]
                places = torch.from_numpy(one["masked_positions"]).long()
                index = places[..., None].expand(-1, -1, hidden.shape[-1])
                logits = model.lm_head(hidden.gather(1, index)).float()
                losses = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1),
                    torch.from_numpy(one["labels"]).long().flatten(),
                    reduction="none",
                )
                weights = torch.from_numpy(one["label_weights"]).flatten()
                total += float((losses * weights).sum())
                weight += float(weights.sum())
        model.train()
        return total / weight

    budget, paused, step, spent = options.minutes * 60, 0.0, 0, 0.0
    curve = Curve(options.setting)
    order = torch.randperm(len(rows))
    place, next_point = 0, 0.0
    while (spent := time.time() - options.began - paused) < budget:
        if spent >= next_point:
            began = time.time()
            curve.losses.append(evaluate(min(len(batches), CURVE_ROWS // EVAL_BATCH)))
            curve.seconds.append(spent)
            next_point = spent + budget / CURVE_POINTS
            paused += time.time() - began
        if place + BATCH > len(order):
            order, place = torch.randperm(len(rows)), 0
        taken, place = order[place : place + BATCH], place + BATCH
        ids, labels = masked(rows[taken].long())
        for group in optimizer.param_groups:
            group["lr"] = setting.learning_rate * rate_at(setting, step, spent / budget)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        step += 1
    curve.steps = step
    curve.losses.append(evaluate(len(batches)))
    curve.seconds.append(spent)
    print(json.dumps(asdict(curve)))


def rate_at(setting: Setting, step: int, share: float) -> float:
    """Returns the part of the peak rate after so many steps and such a share of the time."""
    falling = 1.0 - share
    if setting.warmup_steps is not None:
        return min(step / setting.warmup_steps, falling) if step < setting.warmup_steps else falling
    return min(share / 0.05, falling / 0.95)


def is_faster_narrow(model: Any, ids: Any) -> bool:
    """Whether PyTorch's step is faster under bfloat16 autocast here."""
    import torch

    found = {}
    for narrow in (False, True, False, True):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                model(ids, labels=ids).loss.backward()
            times.append(time.perf_counter() - began)
        found[narrow] = median(times)
    model.zero_grad(set_to_none=True)
    return found[True] < found[False]


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
