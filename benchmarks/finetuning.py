"""Measures what pretraining contributes to a task, and fine-tuning steps beside PyTorch.

`--pretrain`, `--train` and `--test` name files: text with a document on each line, and labelled
examples. A tokenizer and a model learn from that text for `--minutes`; then the model is fine-tuned
with several seeds, and so is the same architecture from random weights. The third side is a linear
model on counts of character n-grams (scikit-learn: tf-idf, logistic regression), which gets the
same examples; its n-grams and its regularisation are those with the best result on a tenth of them.

The step: `core.finetuning` as the stage runs it (collating, forward, backward, gradients clipped at
norm 1, AdamW) beside `RobertaForSequenceClassification` on PyTorch with fused AdamW and clipping,
compiled where that is faster, on the same shapes and in the same precision (`--dtype`), in turn.
Without files, only this is measured.

    python -m benchmarks.finetuning [--pretrain text.txt --train train.tsv --test test.tsv]
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import build_shards, core, events_of
from benchmarks.sides import (
    Answer,
    add_side_arguments,
    answer_if_asked,
    describe_machine,
    medians,
    open_sides,
)

PAD_ID, SPECIAL_IDS, CLASSES = 3, 5, 2
DROPOUT = 0.1
SHARDS, TRIAL, MODEL = "text", "trial", "pretrained"
_TRIAL_STEPS = 60
_STEPS = 20
_NGRAMS = (3, 4, 5)
_STRENGTHS = (0.3, 1.0, 3.0, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks/finetuning"))
    parser.add_argument("--pretrain", nargs="+", type=Path, help="text, a document on each line")
    parser.add_argument("--train", type=Path, help="TSV with the columns label and text")
    parser.add_argument("--test", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0, help="of pretraining")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--vocab-size", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rates", default="3e-4", help="empty: the usual three")
    parser.add_argument("--r-drop", type=float, default=2.0, help="doubles the time; 0: off")
    parser.add_argument("--batch", type=int, default=32, help="examples in a step")
    parser.add_argument("--length", type=int, default=32, help="tokens of an example in a step")
    parser.add_argument("--dtype", choices=("float32", "mixed_bfloat16"), default="float32",
                        help="of the steps")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    add_side_arguments(parser)
    options = parser.parse_args()
    if answer_if_asked(options, SIDES):
        return
    print(describe_machine(), flush=True)
    found: dict[str, Any] = {"steps": compare_steps(options)}
    if options.train:
        found["linear"] = linear_accuracy(options.train, options.test)
        print(f"  linear model: accuracy {found['linear']:.4f}", flush=True)
        found["finetuned"] = finetune(options)
    print(json.dumps(found))


def compare_steps(options: argparse.Namespace) -> dict[str, float]:
    """Returns the examples a second of both sides, and their ratio."""
    names = ("size", "vocab_size", "batch", "length", "dtype")
    setup = {name: getattr(options, name) for name in names}
    with open_sides("benchmarks.finetuning", SIDES, setup) as sides:
        medians(sides, _STEPS, 1)
        speeds = medians(sides, _STEPS, options.rounds)
    ratio = speeds["ours"] / speeds["torch"]
    print(f"  steps of {options.batch} x {options.length} in {options.dtype}: "
          f"ours {speeds['ours']:.0f} examples/s, PyTorch {speeds['torch']:.0f}, "
          f"ratio {ratio:.2f}", flush=True)  # fmt: skip
    return {**speeds, "ratio": ratio}


def finetune(options: argparse.Namespace) -> dict[str, Any]:
    """Pretrains a model, fine-tunes it, and returns the metrics."""
    steps = pretrain(options)
    said = core(
        options.folder, "finetune", "--model", MODEL, "--train-path", str(options.train),
        "--test-path", str(options.test), "--num-seeds", str(options.seeds),
        "--max-seq-length", "64", "--learning-rates", options.learning_rates,
        "--r-drop", str(options.r_drop),
    )  # fmt: skip
    metrics = said["metrics"]
    shown = {name: value for name, value in metrics.items() if "accuracy" in name}
    print(f"  pretrained for {options.minutes:g} minutes, {steps} steps: {shown}", flush=True)
    return {"pretraining_steps": steps, **metrics}


def pretrain(options: argparse.Namespace) -> int:
    """Trains a tokenizer and a model for so many minutes; returns the number of steps."""
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "pretraining.txt"
    text.write_text("".join(one.read_text("utf-8") for one in options.pretrain), "utf-8")
    read = ["--source", "files", "--path", str(text), "--text-unit", "line",
            "--validation-percent", "2"]  # fmt: skip
    if not (folder / "tokenizers" / SHARDS).is_dir():
        core(folder, "tokenizer", "--name", SHARDS, "--algorithm", "wordpiece",
             "--vocab-size", str(options.vocab_size), *read)  # fmt: skip
    build_shards(folder, SHARDS, SHARDS, *read, "--max-seq-length", "64")
    # Short documents, read many times: docs/recipe.md has the reasons.
    train = ["train", "--shards", SHARDS, "--size", options.size, "--per-replica-batch-size", "128",
             "--intra-document-masking", "--hidden-dropout-prob", str(DROPOUT),
             "--attention-probs-dropout-prob", str(DROPOUT)]  # fmt: skip
    trial = core(folder, *train, "--num-train-steps", str(_TRIAL_STEPS), "--logging-steps", "10",
                 "--name", f"{TRIAL}-{time.time_ns()}")  # fmt: skip
    steps = round(options.minutes * 60 * steps_per_second(folder, trial["run"]))
    core(folder, *train, "--num-train-steps", str(steps), "--name", MODEL)
    return steps


def steps_per_second(folder: Path, run: str) -> float:
    """Returns the speed of a run after its first logged steps, which compile."""
    logged = [(event["t"], event["step"]) for event in events_of(folder, run, "metrics")
              if "loss" in event["values"]]  # fmt: skip
    (first, step), (last, later) = logged[0], logged[-1]
    return float((later - step) / (last - first))


def linear_accuracy(train: Path, test: Path) -> float:
    """Returns the accuracy of a linear model on character n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = read_examples(train)
    held_out = len(texts) // 10

    def fit(longest: int, strength: float, first: int) -> Any:
        counts = TfidfVectorizer(analyzer="char", ngram_range=(1, longest), sublinear_tf=True)
        model = make_pipeline(counts, LogisticRegression(C=strength, max_iter=1000))
        return model.fit(texts[first:], labels[first:])

    choices = list(itertools.product(_NGRAMS, _STRENGTHS))
    scores = [
        fit(*choice, held_out).score(texts[:held_out], labels[:held_out]) for choice in choices
    ]
    best = choices[int(np.argmax(scores))]
    return float(fit(*best, 0).score(*read_examples(test)))


def read_examples(path: Path) -> tuple[list[str], list[str]]:
    """Returns the texts and the labels of a TSV file without quoting."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def make_examples(setup: Mapping[str, Any]) -> np.ndarray:
    generator = np.random.default_rng(0)
    shape = (setup["batch"], setup["length"])
    return generator.integers(SPECIAL_IDS, setup["vocab_size"], shape).astype(np.int32)


def prepare_ours(setup: Mapping[str, Any]) -> Callable[[int], None]:
    """Returns our fine-tuning step."""
    from core.backends.selection import select_backend
    from core.config.finetune import FinetuneConfig
    from core.config.train import TrainConfig
    from core.finetuning.batches import LabelledSequences
    from core.finetuning.encoding import TokenSequence
    from core.finetuning.saving import ClassifierConfig
    from core.finetuning.session import Session, make_schedule, train_config
    from core.models.registry import resolve_architecture

    config = FinetuneConfig(per_replica_batch_size=setup["batch"], device="cpu")
    devices = select_backend(train_config(config))
    architecture = resolve_architecture(
        TrainConfig(
            preset="classic", size=setup["size"], hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
        ),
        vocab_size=setup["vocab_size"],
        row_length=setup["length"], pad_id=PAD_ID,
    )  # fmt: skip
    labels = tuple(map(str, range(CLASSES)))
    classifier = ClassifierConfig(architecture, "sequence", labels)
    session = Session(config, classifier, devices, setup["length"], setup["dtype"])
    session.start({}, make_schedule(config, 1e-4, 10_000), seed=0)
    examples = make_examples(setup)
    one, chosen = np.ones(1, np.float32), np.arange(len(examples))
    data = LabelledSequences(
        [TokenSequence(ids, position=0) for ids in examples],
        [np.array([number % CLASSES], np.int32) for number in chosen],
        [one] * len(examples),
    )

    def step(number: int) -> None:
        session.fetch([session.step(data, chosen, number)])

    return step


def prepare_torch(setup: Mapping[str, Any]) -> Callable[[int], None]:
    """Returns the peer's fine-tuning step."""
    import torch
    from transformers import RobertaForSequenceClassification

    from benchmarks.peer import Mode, fastest_mode, peer_config

    narrow = setup["dtype"] == "mixed_bfloat16"
    shape = (setup["size"], setup["vocab_size"], setup["length"])
    config = peer_config(*shape, PAD_ID, DROPOUT, num_labels=CLASSES)
    model = RobertaForSequenceClassification._from_config(config, attn_implementation="sdpa")
    model.train()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, eps=1e-6, fused=True)
    ids = torch.tensor(make_examples(setup)).long()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    labels = torch.arange(len(ids)) % CLASSES

    def step_in(mode: Mode) -> Callable[[], float]:
        run = torch.compile(model) if mode.compiled else model

        def step() -> float:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=mode.narrow):
                loss = run(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            return float(loss.item())

        return step

    mode, seconds = fastest_mode(step_in, [Mode(narrow, False), Mode(narrow, True)])
    said = ", ".join(f"{took:.3f} s in {one}" for one, took in seconds.items())
    print(f"PyTorch takes {said}", file=sys.stderr)
    step = step_in(mode)
    return lambda _: step() and None


def measuring(prepare: Callable[[Mapping[str, Any]], Callable[[int], None]]) -> Any:
    """Returns a side that runs so many steps and says the median examples a second."""

    def prepare_side(setup: Mapping[str, Any]) -> Answer:
        step, numbers = prepare(setup), itertools.count(1)

        def answer(steps: int) -> float:
            return setup["batch"] / statistics.median(_seconds(step, numbers, steps))

        return answer

    return prepare_side


def _seconds(step: Callable[[int], None], numbers: Iterator[int], steps: int) -> Sequence[float]:
    found = []
    for _ in range(steps):
        began = time.perf_counter()
        step(next(numbers))
        found.append(time.perf_counter() - began)
    return found


SIDES = {"ours": measuring(prepare_ours), "torch": measuring(prepare_torch)}

if __name__ == "__main__":
    main()
