"""Every benchmark in one run; what comes out is written to benchmarks/results.md.

Each section is written as soon as it is measured, and kept in results.json beside it, for each
machine by itself: `--only` measures some of them anew and leaves the rest as it is, and another
machine's stay. What a GPU is needed for is measured by `benchmarks.time_to_loss --device gpu`.

    python -m benchmarks --text korean.txt [--minutes 15] [--only throughput start]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.corpora import LENGTH, VOCAB_SIZE
from benchmarks.sides import describe_machine
from benchmarks.time_to_loss import SETTINGS, Curve

RESULTS = Path(__file__).parent / "results.md"
FOUND = RESULTS.with_suffix(".json")
PACKAGES = ("tensorflow", "keras", "jax", "openvino",
            "torch", "transformers", "tokenizers", "datasets")  # fmt: skip
VOCABULARIES = (10_000, 50_000)
# Rows in a step, steps in a round, rounds.
STEPS = {"mini": (32, 4, 3), "base": (8, 1, 3)}


class BenchmarkError(Exception):
    """A benchmark came to no end."""


def main() -> None:
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in options.only:
        began = time.time()
        try:
            body = SECTIONS[name][1](options)
        except BenchmarkError as error:
            # Hours of work shall not be lost with one of them.
            failed.append(name)
            print(error, file=sys.stderr, flush=True)
            continue
        # Read anew each time: somebody else may have written, and hours have passed.
        found = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
        found.setdefault(describe_machine(), {})[name] = {
            "body": body,
            "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)),
            "minutes": (time.time() - began) / 60,
            "load": os.getloadavg()[2],
            "packages": describe_packages(),
        }
        FOUND.write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.write_text(render(found), encoding="utf-8")
        print(f"\n{body}\n", flush=True)
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}. See above.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--text", help="the second corpus: a file with a text on each line")
    parser.add_argument("--pairs", type=Path, help="minimal pairs: JSON lines in BLiMP's format")
    parser.add_argument("--minutes", type=float, default=15.0, help="that each peer trains")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS),
        help="how the peers train whose time to loss is measured",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    needed = sorted({package for name in options.only for package in SECTIONS[name][2]})
    if missing := [package for package in needed if not find_spec(package)]:
        parser.error(
            f"the peers need {' and '.join(missing)}: pip install -r requirements-benchmark.txt"
        )
    return options


def describe_packages() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES if find_spec(name))


def render(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Returns the results of all machines as Markdown.

    Args:
        found: For each machine, by its description, for each section by its name: `body`, `when`,
            `minutes`, `load` (None: nobody looked), `packages`.
    """
    parts = [
        "# Benchmarks",
        "The tables are written by `python -m benchmarks`; what is particular about a run was "
        "added by hand. Both sides of a comparison take turns in one run, each in a process of its "
        "own, and figures are medians, but for those that say otherwise. Each benchmark's file "
        "says what its sides do. An aim is what was set before anything was measured; "
        "[trials.md](trials.md) says what limits the speed where one is missed.",
    ]
    for machine, sections in found.items():
        packages = next(iter(sections.values()))["packages"]
        parts += [f"## {machine}", packages]
        for name in SECTIONS:
            if name in sections:
                one = sections[name]
                parts += [
                    f"### {SECTIONS[name][0]}",
                    one["body"],
                    f"*{one['when']} UTC, {one['minutes']:.0f} minutes"
                    + _load_note(one["load"])
                    + ("" if one["packages"] == packages else f"; {one['packages']}")
                    + ".*",
                ]
    return "\n\n".join(parts) + "\n"


def _load_note(load: float | None) -> str:
    return "" if load is None else f"; its load over the last quarter of an hour was {load:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def run(module: str, *arguments: str) -> Any:
    """Runs a benchmark and returns the last line of what it prints, which is JSON."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    last = ""
    for line in done.stdout:
        if last:
            print(last, flush=True)
        last = line.rstrip()
    if done.wait():
        raise BenchmarkError(f"benchmarks.{module} ended with exit code {done.returncode}.")
    return json.loads(last)


def time_to_loss(options: argparse.Namespace) -> str:
    texts = ["--text", options.text] if options.text else ["--corpora", "docs"]
    if not options.text:
        print("On the documentation alone; --text names the second corpus", flush=True)
    found = run("time_to_loss", "--folder", str(options.folder), "--minutes",
                str(options.minutes), "--settings", *options.settings, *texts)  # fmt: skip
    for corpus in found:
        drawn = options.folder / f"time_to_loss_{corpus}.png"
        (RESULTS.parent / picture_of(corpus)).write_bytes(drawn.read_bytes())
    return describe_times(found, options.minutes)


def picture_of(corpus: str) -> str:
    """Returns the file name of a corpus's curves on this machine."""
    machine = re.sub(r"[^a-z0-9]+", "-", describe_machine().lower()).strip("-")
    return f"time_to_loss_{corpus}_{machine}.png"


def describe_times(found: dict[str, Any], minutes: float) -> str:
    """Formats the results of `benchmarks.time_to_loss` as Markdown."""
    rows = [
        [
            corpus,
            row["peer"],
            f"{row['target']:.3f}" + ("" if row["counts"] else " (above the baseline)"),
            f"{row['baseline']:.3f}",
            f"1/{round(minutes * 60 / row['allowed_seconds'])}",
            *describe_time(row["allowed"], minutes),
            *describe_time(row["seconds"], minutes),
        ]
        for corpus, one in found.items()
        for row in one["rows"]
    ]
    head = ["corpus", "peer", "its loss", "baseline", "aim", "`fast` in that time",
            "of its time", "the first of all", "of its time"]  # fmt: skip
    curves = [(corpus, Curve(**one)) for corpus in found for one in found[corpus]["curves"]]
    ran = [
        [corpus, one.name, f"{one.steps:,}", f"{one.seconds[-1]:.0f} s", f"{one.losses[-1]:.3f}"]
        for corpus, one in curves
    ]
    texts = [
        f"RoBERTa `mini`, 32 rows of {LENGTH} tokens a step, vocabulary {VOCAB_SIZE:,}. *docs* is "
        "the documentation of the installed packages, *text* the file that `--text` named. Each "
        f"peer trains for {minutes:g} minutes, once, and each of ours once. A run learns "
        "sooner that is given less time, since its rate falls sooner: `fast` is taken in the run "
        "that has as much as the aim leaves it, and in the one of all that is there first.",
        table(head, rows),
        "All that ran (`fast` and `classic` are ours):",
        table(["corpus", "recipe", "steps", "time", "validation loss"], ran),
        *[_warmup_note(corpus, one) for corpus, one in curves if _is_warming_up(one)],
        *[f"![Validation loss against time]({picture_of(corpus)})" for corpus in found],
    ]
    return "\n\n".join(texts)


def describe_time(seconds: float, minutes: float) -> list[str]:
    """Returns the seconds to a loss, and what part of so many minutes they are."""
    if not 0 < seconds < float("inf"):
        return ["not reached", ""]
    return [f"{seconds:.0f} s", f"1/{minutes * 60 / seconds:.1f}"]


def _is_warming_up(curve: Curve) -> bool:
    setting = SETTINGS.get(curve.name)
    return setting is not None and curve.steps <= (setting.warmup_steps or 0)


def _warmup_note(corpus: str, curve: Curve) -> str:
    warmup = SETTINGS[curve.name].warmup_steps or 0
    # The rise, step / warmup, meets the fall, 1 - step / steps, here.
    share = curve.steps / (curve.steps + warmup)
    return (
        f"On {corpus}, {curve.name} did {curve.steps:,} steps, and its published warm-up takes "
        f"{warmup:,}: its rate came to {share:.0%} of its peak."
    )


def throughput(options: argparse.Namespace) -> str:
    rows = []
    for size, (batch, steps, rounds) in STEPS.items():
        for vocab_size in VOCABULARIES:
            for dtype in ("float32", "mixed_bfloat16"):
                found = run(
                    "throughput", "--size", size, "--vocab-size", str(vocab_size),
                    "--dtype", dtype, "--batch", str(batch), "--steps", str(steps),
                    "--rounds", str(rounds),
                )  # fmt: skip
                speeds = found["tokens_per_second"]
                rows.append([
                    size, f"{batch} x {found['length']}", f"{vocab_size:,}", dtype,
                    f"{speeds['ours']:,.0f}", f"{speeds['torch']:,.0f}", f"{found['ratio']:.2f}",
                    "2.5" if size == "mini" else "1.5",
                ])  # fmt: skip
    head = ["size", "rows", "vocabulary", "precision", "ours", "PyTorch", "ratio", "aim"]
    about = (
        "Tokens a second, AdamW, dropout 0.1. PyTorch runs its head and its last layer at all "
        "positions, as transformers does; ours at those that are predicted, which is most of the "
        "difference where there are many words."
    )
    return f"{about}\n\n{table(head, rows)}"


def tokenizer(options: argparse.Namespace) -> str:
    found = run("tokenizer")
    rows = [
        [name, f"{found['seconds'][side]:.0f} s", f"{found['tokens'][side]:,}"]
        for name, side in (("ours", "ours"), ("SentencePiece", "sentencepiece"))
    ]
    about = (
        f"{found['megabytes']:.1f} MB of text, 25,000 tokens; SentencePiece takes "
        f"{found['ratio']:.1f} times as long. The tokens are those of texts that were held out."
    )
    return f"{about}\n\n{table(['', 'training', 'tokens'], rows)}"


def inputs(options: argparse.Namespace) -> str:
    found = run("inputs", "--folder", str(options.folder))
    speeds = found["rows_per_second"]
    rows = [
        ["rows a second", f"{speeds['ours']:,.0f}", f"{speeds['tf.data']:,.0f}",
         f"{found['ratio']:.1f}", "20"],
        ["waiting, of a step's time", f"{found['waiting_percent']:.3f} %", "", "", "1 %"],
    ]  # fmt: skip
    return table(["", "ours", "tf.data", "ratio", "aim"], rows)


def cleaning(options: argparse.Namespace) -> str:
    found = run("cleaning", *(["--text", options.text] if options.text else []))
    speeds = [[name, f"{speed:.0f}"] for name, speed in found["speeds"].items()]
    stage = [
        [str(row["workers"]), f"{row['seconds']:.0f} s", f"{row['mb_per_second']:.1f}"]
        for row in found["stage"]
    ]
    about = (
        f"{found['megabytes']:.0f} MB. Each step alone on one core, by processor time; the aim is "
        "10 MB/s for all rules of Gopher, C4 and FineWeb together. The stage has these rules and "
        "the default steps, by wall-clock."
    )
    return "\n\n".join(
        [about, table(["step or rule", "MB/s"], speeds), table(["workers", "time", "MB/s"], stage)]
    )


def shards(options: argparse.Namespace) -> str:
    folder = options.folder / "shards-benchmark"
    rows = []
    for documents in ("long", "short"):
        found = run("shards", "--folder", str(folder), "--documents", documents,
                    "--megabytes", "250", "--rounds", "1", "--json")  # fmt: skip
        rows += [
            [documents, "the peer, wall-clock", f"{found['wall_ratio']:.2f}", "6"],
            [documents, "the peer, processor time", f"{found['cpu_ratio']:.2f}", ""],
            [documents, "one core, wall-clock", f"{found['of_one_core']:.2f}", "1.7"],
            [documents, "`encode_batch_fast` alone, wall-clock", f"{found['of_bare']:.2f}", "0.8"],
        ]
    about = "Tokens a second, as a multiple of another side's; 250 MB. Short: 12 words each."
    return f"{about}\n\n{table(['documents', 'beside', 'ratio', 'aim'], rows)}"


def large(options: argparse.Namespace) -> str:
    found = run("large", "--folder", str(options.folder / "large"))
    rows = [
        [one["stage"], f"{one['megabytes']:,.0f} MB", f"{one['seconds'] / 60:.1f} minutes",
         f"{one['mb_per_second']:.1f}", f"{one['peak_megabytes']:,.0f} MB", "1,500 MB"]
        for one in found
    ]  # fmt: skip
    return table(["stage", "text", "time", "MB/s", "peak memory", "aim"], rows)


def fill_mask(options: argparse.Namespace) -> str:
    rows = []
    for dtype in ("float32", "bfloat16", "auto"):
        for size, one in run(
            "fill_mask", "--folder", str(options.folder), "--dtype", dtype
        ).items():
            late, many = one["latency"], one["throughput"]
            rows.append([
                size, dtype, f"{late['ours'] * 1e3:.1f} ms", f"{late['torch'] * 1e3:.1f} ms",
                f"{late['ratio']:.2f}", f"{many['ours']:.0f}", f"{many['torch']:.0f}",
                f"{many['ratio']:.2f}",
            ])  # fmt: skip
    head = ["size", "precision", "one caller: ours", "PyTorch", "ratio (aim 2)",
            "32 callers, answers/s: ours", "PyTorch", "ratio (aim 4)"]  # fmt: skip
    about = "With `auto`, as the Playground asks, PyTorch is as it comes: in float32."
    return f"{about}\n\n{table(head, rows)}"


def generation(options: argparse.Namespace) -> str:
    rows = [
        [*name.split(), f"{one['ours']:.0f}", f"{one['torch']:.0f}", f"{one['ratio']:.2f}", "1.5"]
        for name, one in run("generation").items()
    ]
    head = ["family", "precision", "ours", "PyTorch", "ratio", "aim"]
    return f"Tokens a second, `mini`, greedy, one text at a time.\n\n{table(head, rows)}"


def evaluation(options: argparse.Namespace) -> str:
    data = ["--pairs", str(options.pairs)] if options.pairs else []
    found = run("evaluation", "--folder", str(options.folder), *data)
    rows = [
        [family, f"{one['ours']:.1f}", f"{one['torch']:.1f}", f"{one['ratio']:.1f}", "3"]
        for family, one in found["families"].items()
    ]
    head = ["family", "ours", "PyTorch, sentence by sentence", "ratio", "aim"]
    about = f"Minimal pairs a second, `mini`, float32; {found['pairs']}."
    return f"{about}\n\n{table(head, rows)}"


def finetuning(options: argparse.Namespace) -> str:
    steps = run("finetuning")["steps"]
    row = [f"{steps['ours']:.0f}", f"{steps['torch']:.0f}", f"{steps['ratio']:.2f}", "1.3"]
    about = "Examples a second, `mini`, batches of 32 texts of 32 tokens, float32."
    return f"{about}\n\n{table(['ours', 'PyTorch', 'ratio', 'aim'], [row])}"


def start(options: argparse.Namespace) -> str:
    found = run("start", "--folder", str(options.folder))
    parts = list(next(iter(found.values()))["parts"])
    rows = [
        [engine, f"{one['first']:.1f}", f"{one['warm']:.1f}", "10"]
        + [f"{one['parts'][part]:.1f}" for part in parts]
        for engine, one in found.items()
    ]
    return "The first time is one run, with an empty cache of compiled steps.\n\n" + table(
        ["seconds", "the first time", "warm", "aim, warm", *parts], rows
    )


def growth(options: argparse.Namespace) -> str:
    found = run("growth")
    corpus = [
        [
            f"{row['megabytes']:.1f} MB"
            + (f", {row['times']} times over" if row["times"] > 1 else "")
        ]
        + [
            f"{row[stage][figure]:,.0f} {unit}"
            for stage in ("tokenizer", "shards")
            for figure, unit in (("seconds", "s"), ("peak_megabytes", "MB"))
        ]
        for row in found["corpus"]
    ]
    model = [
        [
            row["size"],
            f"{row['parameters'] / 1e6:.0f} million",
            str(row["length"]),
            f"{row['tokens_per_second']:,.0f}",
        ]
        for row in found["model"]
    ]
    return (
        "One run for each text. The first is less than a batch of either stage.\n\n"
        + table(["text", "tokenizer", "its memory", "shards", "their memory"], corpus)
        + "\n\n"
        + table(
            [
                "size",
                "parameters beside tables",
                "tokens in a row",
                "tokens a second in training",
            ],
            model,
        )
    )


Section = Callable[[argparse.Namespace], str]
# A section's title, its benchmark, and the packages of its peers.
SECTIONS: dict[str, tuple[str, Section, tuple[str, ...]]] = {
    "time-to-loss": (
        "Time to a validation loss, beside transformers on PyTorch", time_to_loss, ("torch",)
    ),
    "throughput": ("Training steps, beside transformers on PyTorch", throughput, ("torch",)),
    "inputs": ("Batches, beside tf.data", inputs, ()),
    "tokenizer": ("A Unigram tokenizer, beside SentencePiece", tokenizer, ("sentencepiece",)),
    "cleaning": ("Cleaning a corpus", cleaning, ()),
    "shards": ("Text to shards, beside datasets.map and tf.train.Example", shards, ()),
    "large": ("Gigabytes of text", large, ()),
    "fill-mask": ("Fill-mask, beside transformers' pipeline", fill_mask, ("torch",)),
    "generation": ("Generation, beside transformers' generate", generation, ("torch",)),
    "evaluation": ("Minimal pairs, beside a loop with PyTorch", evaluation, ("torch",)),
    "finetuning": ("Fine-tuning steps, beside PyTorch", finetuning, ("torch",)),
    "start": ("From the command to the first training step", start, ()),
    "growth": ("How costs grow", growth, ()),
}  # fmt: skip

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
