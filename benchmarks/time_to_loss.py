"""Time to a validation loss: `core train --preset fast` beside transformers on PyTorch.

RoBERTa `mini` on rows of 128, batches of 32, on two corpora without retuning between them: the
documentation of the installed packages, and a text file of your own with 5 % held out.

Both are on the CPU, or both on a GPU. The peer is `RobertaForMaskedLM` (scaled-dot-product
attention, bfloat16 autocast and `torch.compile` where the machine is faster with them, rows that
lie ready in the device's memory, masks drawn by PyTorch) with the numbers of the Flax example, with
plain AdamW at three rates without dropout, and as an expert would have it, at three rates: Muon,
40 % masking, the head at masked positions only, an output bias at the tokens' frequencies. With
`--family`, it is a decoder of that family, without the Flax numbers. Its fastest mode is looked for
before, in a process of its own, which isn't counted. Each gets so many minutes of wall-clock from
its command; its learning rate falls to 0 just then, also where the 1,000 steps of the Flax
example's warm-up aren't done. The validation loss it ends with is the target. Its validations on
the way, which the picture needs, stop its clock.

Ours is the CLI's command, its clock from the command too, start, compilation and validations
included; on a GPU, as for the peer, a run before has kept the compiled programs. It is given an
eighth of the peer's time against the Flax numbers, a quarter against AdamW and a third against the
expert, and less with `--shares`, as a number of steps that a short run before has found to take
that long. It has reached the target when one of its validations is at or below it.

Rows and masks for validation are the same on both sides. A target counts only where it lies below
the unigram baseline, which the output bias alone could give.

    python -m benchmarks.time_to_loss --text korean.txt [--minutes 15] [--corpora docs text] ...
    python -m benchmarks.time_to_loss --corpora docs --device gpu --size base
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.corpora import LENGTH, VOCAB_SIZE, core, events_of, prepare_corpus
from benchmarks.peer import (
    EVERY_MODE,
    ExpertOptimizer,
    Mode,
    fastest_mode,
    peer_decoder,
    peer_model,
    peer_step,
)
from benchmarks.sides import describe_machine

EVAL_BATCH = 64
CURVE_POINTS = 12
CURVE_ROWS = 256
TIMED_STEPS = {"cpu": 60, "gpu": 300}
# Part of our time, for the validation half-way and for a machine that is slower for a while.
SPARE_TIME = {"cpu": 0.1, "gpu": 0.04}
COMPUTES = "Computing in "  # How the trainer's note of the precision begins.


@dataclass(frozen=True)
class Setting:
    """How the peer trains.

    Attributes:
        learning_rate: Peak learning rate; an expert's is Muon's.
        dropout: Rate for hidden states and attention.
        beta2: AdamW's.
        warmup_steps: Steps of the warm-up; None: a twentieth of the time.
        share: Part of the peer's time that ours is given.
        is_expert: Whether an expert has written it.
    """

    learning_rate: float
    dropout: float
    beta2: float
    warmup_steps: int | None
    share: float
    is_expert: bool = False

    @property
    def masking(self) -> float:
        return 0.4 if self.is_expert else 0.15


SETTINGS = {
    "flax": Setting(3e-4, 0.1, 0.98, 1000, 1 / 8),
    "adamw 3e-4": Setting(3e-4, 0.0, 0.999, None, 1 / 4),
    "adamw 1e-3": Setting(1e-3, 0.0, 0.999, None, 1 / 4),
    "adamw 3e-3": Setting(3e-3, 0.0, 0.999, None, 1 / 4),
    "expert 5e-3": Setting(5e-3, 0.0, 0.95, None, 1 / 3, is_expert=True),
    "expert 1e-2": Setting(1e-2, 0.0, 0.95, None, 1 / 3, is_expert=True),
    "expert 2e-2": Setting(2e-2, 0.0, 0.95, None, 1 / 3, is_expert=True),
}
PUBLISHED = ("flax",)
EXPERTS = tuple(name for name, setting in SETTINGS.items() if setting.is_expert)
ENCODER = "roberta"


@dataclass
class Curve:
    """A run: its validation losses against the seconds since its command.

    Attributes:
        name: The recipe.
        seconds: Times of the validations.
        losses: Validation losses, in nats.
        steps: Number of steps.
        baseline: The unigram baseline, in nats.
        mode: Mode of computation.
        utilisation: Percent of the time that the GPU was busy; None: not measured.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    baseline: float = math.nan
    mode: str = ""
    utilisation: float | None = None

    def reached(self, target: float) -> float:
        """Returns the seconds after which a validation was at or below a loss; or infinity."""
        pairs = zip(self.seconds, self.losses, strict=True)
        return next((when for when, loss in pairs if loss <= target), math.inf)


def main() -> None:
    options = parse_arguments()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for corpus in options.corpora:
        path = options.text if corpus == "text" else None
        prepare_corpus(options.folder, shards_of(corpus, options), path, family=options.family)
        found[corpus] = compare(corpus, options)
        (options.folder / "time_to_loss.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


def shards_of(corpus: str, options: argparse.Namespace) -> str:
    """Names the corpus' tokenizer and shards."""
    return corpus if options.family == ENCODER else f"{corpus}-{options.family}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--corpora", nargs="+", choices=["docs", "text"], default=["docs", "text"])
    parser.add_argument("--text", help="a file with a text on each line")
    parser.add_argument("--minutes", type=float, default=15.0, help="that each peer run has")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument(
        "--shares", nargs="*", type=int, default=[16, 24], metavar="N",
        help="to give ours an Nth of the peer's time too, beside what is aimed at",
    )  # fmt: skip
    parser.add_argument("--family", choices=[ENCODER, "gpt2", "llama", "qwen3"], default=ENCODER)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--mode", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.family != ENCODER:
        # An expert would split GPT-2's joint matrix of queries, keys and values.
        left_out = (*PUBLISHED, *(EXPERTS if options.family == "gpt2" else ()))
        options.settings = [name for name in options.settings if name not in left_out]
    if "text" in options.corpora and not options.text and not options.side:
        parser.error("name a file with --text, or leave it out with --corpora docs")
    return options


def compare(corpus: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the peers and ours in turn, says how they compare, and returns the figures."""
    rows = f"batch {options.batch} x {LENGTH}, vocabulary {VOCAB_SIZE}"
    print(f"{corpus}: {options.family} {options.size}, {rows}, {options.minutes:g} minutes a peer; "
          f"{describe_machine(options.device)}", flush=True)  # fmt: skip
    peers: dict[str, Curve] = {}
    ours: dict[float, Curve] = {}
    modes: dict[tuple[float, bool], Mode] = {}

    def note(curve: Curve) -> None:
        say(curve)
        # Hours of work shall not be lost with the last minute.
        so_far = [asdict(one) for one in (*peers.values(), *ours.values())]
        file = options.folder / f"time_to_loss_{shards_of(corpus, options)}.json"
        file.write_text(json.dumps(so_far, indent=1))

    seconds_per_step = time_our_steps(corpus, options)
    for name in options.settings:
        kind = (SETTINGS[name].dropout, SETTINGS[name].is_expert)
        if kind not in modes:
            modes[kind] = Mode(**ask_peer("mode", corpus, name, options))
        peers[name] = run_peer(corpus, name, modes[kind], options)
        note(peers[name])
        share = SETTINGS[name].share
        if share not in ours:
            ours[share] = run_ours(corpus, share, *seconds_per_step, options)
            note(ours[share])
    for number in options.shares:
        ours[1 / number] = run_ours(corpus, 1 / number, *seconds_per_step, options)
        note(ours[1 / number])
    rows = []
    for description, names in (
        ("as published", [name for name in peers if name in PUBLISHED]),
        ("without dropout", [name for name in peers if name.startswith("adamw")]),
        ("an expert's", [name for name in peers if SETTINGS[name].is_expert]),
    ):
        if not names:
            continue
        if len(names) > 1:
            description += f", the best of {len(names)}"
        best = min(names, key=lambda name: peers[name].losses[-1])
        target, share = peers[best].losses[-1], SETTINGS[best].share
        # A run that is given less time learns sooner, as its rate falls sooner.
        when = min(one.reached(target) for one in ours.values())
        allowed = ours[share].reached(target)
        rows.append(
            {
                "peer": f"{best}, {description}",
                "target": target,
                "counts": target < ours[share].baseline,
                "baseline": ours[share].baseline,
                "allowed_seconds": options.minutes * 60 * share,
                "allowed": allowed,
                "seconds": when,
            }
        )
        print(f"  {rows[-1]}", flush=True)
    published = run_ours(corpus, max(ours), *seconds_per_step, options, preset="classic")
    say(published)
    curves = [*peers.values(), *ours.values(), published]
    draw(curves, options.folder / f"time_to_loss_{shards_of(corpus, options)}.png", corpus)
    return {"rows": rows, "curves": [asdict(curve) for curve in curves]}


def say(curve: Curve) -> None:
    busy = "" if curve.utilisation is None else f", GPU busy {curve.utilisation:.0f} %"
    mode = f", {curve.mode}" if curve.mode else ""
    print(f"  {curve.name:24} {curve.steps:5} steps, {curve.seconds[-1]:6.1f} s, validation "
          f"{curve.losses[-1]:.3f}{mode}{busy}", flush=True)  # fmt: skip


def time_our_steps(corpus: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the seconds to the end of a run's validation beside its steps, and for each step.

    As those that count, it finds its programs compiled: a run before it has kept them.
    """
    core(options.folder, *our_command(corpus, 20, 10_000, options))
    steps = TIMED_STEPS[options.device]
    began = time.time()
    said = core(options.folder, *our_command(corpus, steps, 10_000, options))
    events = events_of(options.folder, said["run"], "metrics")
    logged = [(event["t"], event["step"]) for event in events if "loss" in event["values"]]
    (first, at_first), (last, at_last) = logged[len(logged) // 2], logged[-1]
    per_step = (last - first) / (at_last - at_first)
    return events[-1]["t"] - began - steps * per_step, per_step


def our_command(
    corpus: str, steps: int, eval_steps: int, options: argparse.Namespace, preset: str = "fast"
) -> list[str]:
    return [
        "train", "--preset", preset, "--family", options.family, "--size", options.size,
        "--shards", shards_of(corpus, options),
        "--per-replica-batch-size", str(options.batch), "--num-train-steps", str(steps),
        "--eval-steps", str(eval_steps), "--save-steps", str(max(10_000, steps)),
        "--per-replica-eval-batch-size", str(EVAL_BATCH), "--device", options.device,
        "--num-devices", "1",
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
    usable = allowed * (1 - SPARE_TIME[options.device])
    steps = max(20, int((usable - around) / per_step))
    began = time.time()
    # Half-way and at the end: ours count as its time, and take as long as a dozen steps.
    command = our_command(corpus, steps, -(-steps // 2), options, preset)
    with watch_gpu(options.device) as busy:
        said = core(options.folder, *command)
    curve = Curve(f"{preset}, 1/{round(1 / share)} of the time", steps=steps)
    curve.baseline = said["metrics"]["frequency_baseline_loss"]
    curve.utilisation = fmean(busy) if busy else None
    notes = [event["message"] for event in events_of(options.folder, said["run"], "note")]
    found = [note for note in notes if note.startswith(COMPUTES)]
    curve.mode = found[0].removeprefix(COMPUTES).split(",")[0] if found else ""
    for event in events_of(options.folder, said["run"], "metrics"):
        if "eval_loss" in event["values"]:
            curve.seconds.append(event["t"] - began)
            curve.losses.append(event["values"]["eval_loss"])
    return curve


def run_peer(corpus: str, name: str, mode: Mode, options: argparse.Namespace) -> Curve:
    """Lets the peer train in a process of its own."""
    with watch_gpu(options.device) as busy:
        said = ask_peer("torch", corpus, name, options, "--mode", json.dumps(asdict(mode)))
    return Curve(**said, mode=str(mode), utilisation=fmean(busy) if busy else None)


def ask_peer(
    side: str, corpus: str, name: str, options: argparse.Namespace, *more: str
) -> dict[str, Any]:
    """Runs a side of the peer's, which prints JSON."""
    command = [sys.executable, "-m", "benchmarks.time_to_loss", "--side", side]
    command += ["--corpus", corpus, "--setting", name, "--minutes", str(options.minutes)]
    command += ["--family", options.family]
    command += ["--size", options.size, "--batch", str(options.batch), "--device", options.device]
    command += ["--folder", str(options.folder), "--began", str(time.time()), *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def watch_gpu(device: str) -> Iterator[list[float]]:
    """Yields a list that holds in the end, for each second, how busy the GPU was, in percent."""
    busy: list[float] = []
    if device != "gpu":
        yield busy
        return
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    watch = subprocess.Popen([*query, "--id=0", "--loop=1"], stdout=subprocess.PIPE, text=True)
    try:
        yield busy
    finally:
        watch.terminate()
        said, _ = watch.communicate()
        busy += [float(line) for line in said.split()]


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


class Peer:
    """The peer's model, its optimizer, and the sequences it trains on."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from core.config.train import TrainConfig
        from core.training.inputs import open_inputs
        from core.workspace.workspace import Workspace

        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")  # Affects GPUs only.
        self.setting = SETTINGS[options.setting]
        self.is_encoder = options.family == ENCODER
        config = TrainConfig(shards=shards_of(options.corpus, options), family=options.family)
        self.inputs = open_inputs(config, Workspace(options.folder))
        self.device = "cuda" if options.device == "gpu" else "cpu"
        architecture = self.inputs.architecture
        vocab_size = architecture.vocab_size
        shape = (vocab_size, LENGTH, architecture.pad_token_id, self.setting.dropout)
        if self.is_encoder:
            model = peer_model(options.size, *shape)
        else:
            model = peer_decoder(options.family, options.size, *shape)
        self.model = model.to(self.device)
        rows = self.inputs.train_rows.take(np.arange(len(self.inputs.train_rows)))
        self.rows = torch.from_numpy(rows.astype(np.int32)).to(self.device)
        self.optimizer = self._expert(rows) if self.setting.is_expert else self._adamw()
        self._special = torch.zeros(vocab_size, dtype=torch.bool)
        if self.is_encoder:
            objective: Any = self.inputs.objective
            self._mask_id = objective.mask_id
            self._special[torch.from_numpy(objective.special_ids).long()] = True
        self._ordinary = torch.nonzero(~self._special).squeeze(1).to(self.device)
        self._special = self._special.to(self.device)

    @property
    def predicted(self) -> int | None:
        """Positions of a sequence whose logits are computed; None: all."""
        is_sparse = self.setting.is_expert and self.is_encoder
        return round(self.setting.masking * LENGTH) if is_sparse else None

    def _adamw(self) -> Any:
        import torch

        decayed = [one for one in self.model.parameters() if one.dim() > 1]
        rest = [one for one in self.model.parameters() if one.dim() <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
            lr=self.setting.learning_rate,
            betas=(0.9, self.setting.beta2),
            fused=True,
        )
        for group in optimizer.param_groups:
            group["peak"] = self.setting.learning_rate
        return optimizer

    def _expert(self, rows: Any) -> ExpertOptimizer:
        """Sets the output bias of an encoder, and returns the optimizer."""
        import torch

        if self.is_encoder:
            bias = self.model.lm_head.bias
            counts = np.bincount(rows.ravel(), minlength=len(bias)) + 1.0
            with torch.no_grad():
                bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
        return ExpertOptimizer(self.model, self.setting.learning_rate, self.setting.beta2)

    def masked(self, batch: Any) -> tuple[Any, Any]:
        """Returns inputs and labels of rows, (rows, length), as the original's collator does.

        An expert's rows all have the same number of labels.
        """
        import torch

        if not self.is_encoder:
            return batch, batch
        draws = torch.rand(batch.shape, device=self.device).masked_fill(self._special[batch], 2.0)
        if self.predicted is None:
            chosen = draws < self.setting.masking
        else:
            chosen = draws.argsort(dim=1).argsort(dim=1) < self.predicted
        kind = torch.rand(batch.shape, device=self.device)
        inputs = torch.where(chosen & (kind < 0.8), self._mask_id, batch)
        drawn = torch.randint(len(self._ordinary), batch.shape, device=self.device)
        inputs = torch.where(chosen & (kind >= 0.9), self._ordinary[drawn], inputs)
        return inputs, torch.where(chosen, batch, -100)

    def evaluate(self, batches: Any, count: int, mode: Mode) -> float:
        """Returns the loss of the first batches, in nats."""
        import torch

        self.model.eval()
        total = weight = 0.0
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=mode.narrow):
            for number in range(count):
                one = {
                    name: torch.from_numpy(array).to(self.device)
                    for name, array in batches(number).items()
                }
                logits = self._logits(one).float()
                losses = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), one["labels"].long().flatten(), reduction="none"
                )
                total += float((losses * one["label_weights"].flatten()).sum())
                weight += float(one["label_weights"].sum())
        self.model.train()
        return total / weight

    def _logits(self, batch: dict[str, Any]) -> Any:
        ids = batch["input_ids"].long()
        if not self.is_encoder:
            return self.model(ids).logits
        hidden = self.model.roberta(ids)[0]
        index = batch["masked_positions"].long()[..., None].expand(-1, -1, hidden.shape[-1])
        return self.model.lm_head(hidden.gather(1, index))

    def now(self) -> float:
        """Returns the time when all that was asked of the device is done."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.time()


def choose_mode(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the mode in which the peer's step is the fastest here."""
    peer = Peer(options)
    batch = peer.rows[: options.batch].long()

    def step_in(mode: Mode) -> Callable[[], float]:
        step = peer_step(peer.model, peer.optimizer, mode, peer.predicted)
        return lambda: step(*peer.masked(batch)).item()

    # A GPU's tensor cores want bfloat16, whatever else.
    modes = [mode for mode in EVERY_MODE if mode.narrow or options.device == "cpu"]
    mode, seconds = fastest_mode(step_in, modes)
    said = ", ".join(f"{took:.3f} s in {one}" for one, took in seconds.items())
    print(f"  {options.setting}: PyTorch takes {said}", file=sys.stderr, flush=True)
    return asdict(mode)


def train_peer(options: argparse.Namespace) -> dict[str, Any]:
    """Trains the peer's model until its time is over, and returns its curve."""
    import torch

    from core.training.batches import EvalBatches

    peer, mode = Peer(options), Mode(**options.mode)
    setting, optimizer = peer.setting, peer.optimizer
    batches = EvalBatches(peer.inputs.validation_rows, peer.inputs.eval_objective, EVAL_BATCH)
    train_step = peer_step(peer.model, optimizer, mode, peer.predicted)
    budget, paused, step, spent = options.minutes * 60, 0.0, 0, 0.0
    curve = Curve(options.setting)
    order = torch.randperm(len(peer.rows))
    place, next_point = 0, 0.0
    while (spent := time.time() - options.began - paused) < budget:
        if spent >= next_point:
            began = peer.now()
            spent = began - options.began - paused
            count = min(len(batches), CURVE_ROWS // EVAL_BATCH)
            curve.losses.append(peer.evaluate(batches, count, mode))
            curve.seconds.append(spent)
            next_point = spent + budget / CURVE_POINTS
            paused += time.time() - began
        if place + options.batch > len(order):
            order, place = torch.randperm(len(peer.rows)), 0
        taken, place = order[place : place + options.batch], place + options.batch
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * rate_at(setting, step, spent / budget)
        train_step(*peer.masked(peer.rows[taken.to(peer.device)].long()))
        step += 1
    curve.steps = step
    curve.seconds.append(peer.now() - options.began - paused)
    curve.losses.append(peer.evaluate(batches, len(batches), mode))
    return {name: getattr(curve, name) for name in ("name", "seconds", "losses", "steps")}


def rate_at(setting: Setting, step: int, share: float) -> float:
    """Returns the learning rate, relative to its peak, after some steps and a share of time."""
    falling = 1.0 - share
    if setting.warmup_steps is not None:
        return min(step / setting.warmup_steps, falling) if step < setting.warmup_steps else falling
    return min(share / 0.05, falling / 0.95)


SIDES = {"mode": choose_mode, "torch": train_peer}

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
