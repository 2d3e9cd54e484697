"""Compares the `fast` preset with variants of it in which one setting is changed.

Every variant trains a small model for the same number of tokens, on two corpora and with two
seeds: the documentation of the installed packages, and a text file of your own with 5 % held out.
The figure is the last validation loss, on masks that are always the same, 15 % of the tokens. A
variant is better or worse than the preset if all differences have one sign.

    python -m benchmarks.recipe --text korean.txt [--size tiny] [--steps 400] [--seeds 0 1]
    python -m benchmarks.recipe --family gpt2 --variants fast "half the rate" "AdamW, 1e-3"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.corpora import prepare_corpus
from benchmarks.sides import describe_machine
from core.families import list_family_names

BATCH, LENGTH, VOCAB_SIZE = 32, 64, 4096
# Changes to the preset; `steps` and `rate` are factors.
VARIANTS: dict[str, Mapping[str, Any]] = {
    "fast": {},
    "output bias at zeros": {"output_bias": "zeros"},
    "a random table of words": {"word_embeddings": "random"},
    "random attention kernels": {"attention_kernels": "random"},
    "AdamW, 1e-3": {"optimizer": "adamw", "learning_rate": 1e-3},
    "AdamW, 3e-3": {"optimizer": "adamw", "learning_rate": 3e-3},
    "15 % masking": {"mlm_probability": 0.15},
    "30 % masking": {"mlm_probability": 0.3},
    "50 % masking": {"mlm_probability": 0.5},
    "dropout 0.1": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "a quarter of the rate": {"rate": 0.25},
    "half the rate": {"rate": 0.5},
    "twice the rate": {"rate": 2},
    "four times the rate": {"rate": 4},
    "a smaller share for AdamW's weights": {"adam_learning_rate_ratio": 0.15},
    "momentum 0.95": {"muon_momentum": 0.95},
    "beta2 0.95": {"adam_beta2": 0.95},
    "beta2 0.999": {"adam_beta2": 0.999},
    "weight decay 0.1": {"weight_decay": 0.1},
    "warm-up, stable, decay": {"lr_scheduler_type": "warmup_stable_decay"},
    "cosine": {"lr_scheduler_type": "cosine"},
    "half the batch, twice the steps": {"per_replica_batch_size": BATCH // 2, "steps": 2},
    "twice the batch, half the steps": {"per_replica_batch_size": BATCH * 2, "steps": 0.5},
}


def main() -> None:
    options = parse_arguments()
    corpora = {f"docs-{options.family}": None}
    if options.text:
        corpora[f"text-{options.family}"] = options.text
    for corpus, path in corpora.items():
        prepare_corpus(options.folder, corpus, path, VOCAB_SIZE, LENGTH, options.family)
    losses: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    file = options.folder / "recipe.json"
    for name in options.variants:
        for corpus in corpora:
            for seed in options.seeds:
                loss, took = train(name, corpus, seed, options)
                losses.setdefault(name, []).append(loss)
                seconds.setdefault(name, []).append(took)
                print(f"{name:40} {corpus:12} seed {seed}: {loss:.3f}, {took:.0f} s", flush=True)
        file.write_text(json.dumps({"losses": losses, "seconds": seconds}, indent=1))
    runs = [f"{corpus}, seed {seed}" for corpus in corpora for seed in options.seeds]
    table(losses, seconds, runs, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks/recipe"))
    parser.add_argument("--text", help="a file with a text on each line")
    parser.add_argument("--family", choices=list_family_names(), default="roberta")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    return parser.parse_args()


def train(name: str, corpus: str, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """Trains a variant; returns its last validation loss, and the seconds that it took."""
    from core import TrainConfig, Workspace
    from core import train as train_model
    from core.models.registry import resolve_architecture
    from core.training.recipe import resolve_learning_rate

    values = dict(VARIANTS[name])
    steps = int(options.steps * values.pop("steps", 1))
    common = {
        "preset": "fast",
        "shards": corpus,
        "family": options.family,
        "size": options.size,
        "seed": seed,
        "per_replica_batch_size": BATCH,
        "num_train_steps": steps,
        "eval_steps": steps,
        "save_steps": steps,
        "per_replica_eval_batch_size": 64,
    }
    factor = values.pop("rate", 1)
    config = TrainConfig(**{**common, **values})
    if factor != 1:
        architecture = resolve_architecture(
            config, vocab_size=VOCAB_SIZE, row_length=LENGTH, pad_id=0, bos_id=1, eos_id=2
        )
        own = resolve_learning_rate(config, architecture).learning_rate or 0.0
        config = config.model_copy(update={"learning_rate": factor * own})
    began = time.perf_counter()
    model = train_model(config, Workspace(options.folder))
    took = time.perf_counter() - began
    loss = float(model.manifest.counts["eval_loss"])
    shutil.rmtree(model.path)
    return loss, took


def table(
    losses: Mapping[str, list[float]],
    seconds: Mapping[str, list[float]],
    runs: list[str],
    options: argparse.Namespace,
) -> None:
    """Prints what was found as Markdown."""
    print(f"\n{options.family} {options.size}, {options.steps} steps of {BATCH} x {LENGTH} tokens, "
          f"vocabulary {VOCAB_SIZE}; {describe_machine()}\n")  # fmt: skip
    print("| | " + " | ".join(runs) + " | beside `fast` | verdict | time |")
    print("|---" * (len(runs) + 4) + "|")
    own = losses.get("fast")
    for name, found in losses.items():
        row = [name, *(f"{loss:.3f}" for loss in found)]
        if own and name != "fast":
            gaps = [one - other for one, other in zip(found, own, strict=True)]
            verdict = "worse" if min(gaps) > 0 else "better" if max(gaps) < 0 else "undecided"
            row += [f"{mean(gaps):+.3f}", verdict]
        else:
            row += ["", ""]
        ratio = mean(seconds[name]) / mean(seconds["fast"]) if own else 1.0
        print("| " + " | ".join([*row, f"{ratio:.2f}"]) + " |")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
