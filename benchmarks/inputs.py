"""Batches for training: ours beside the tf.data pipeline of Hugging Face's TPU example.

Both read the same rows of 128 tokens in random order, put 32 of them together and mask 15 %.

Ours is what a run does: rows looked up in memory-mapped shards, masks drawn by numpy, several
batches at once, in two threads that work ahead.

The peer, after Hugging Face's `run_mlm.py`: TFRecord files with int64 features, parsed, shuffled
in a buffer, put together, and masked by TensorFlow as its data collator does (80 % masked, 10 %
random, 10 % left), everything that can be parallel set to AUTOTUNE, and a prefetch at the end.

What a run waits for its input is taken from a run: RoBERTa `mini`, as the CLI trains it, over
several epochs and long after what is made before the first step has been used up.

    python -m benchmarks.inputs [--epochs 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.corpora import LENGTH, build_shards, core, events_of, prepare_corpus
from benchmarks.sides import (
    Answer,
    add_side_arguments,
    answer_if_asked,
    describe_machine,
    medians,
    open_sides,
)

BATCH = 32
INT64 = "docs-int64"
# The example's default.
SHUFFLE_BUFFER = 2**18
PROBABILITY = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    # The peer fills its buffer when an epoch begins: less than one would leave that out.
    parser.add_argument("--epochs", type=int, default=2, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=240, help="of the run whose waiting is shown")
    add_side_arguments(parser)
    options = parser.parse_args()
    if not answer_if_asked(options, SIDES):
        print(json.dumps(measure(options.folder, options.epochs, options.rounds, options.steps)))


def measure(folder: Path, epochs: int, rounds: int, steps: int) -> dict[str, Any]:
    """Returns rows/s of both sides, their ratio, and the share of a run that is spent waiting."""
    prepare_corpus(folder, "docs")
    build_shards(
        folder, INT64, "docs", "--source", "docs", "--max-seq-length", str(LENGTH),
        "--record-format", "int64",
    )  # fmt: skip
    print(f"batches of {BATCH} x {LENGTH}; {describe_machine()}", flush=True)
    with open_sides("benchmarks.inputs", SIDES, str(folder)) as sides:
        found = medians(sides, epochs, rounds)
    waiting = waiting_percent(folder, steps)
    print(f"  ours {found['ours']:,.0f} rows/s, tf.data {found['tf.data']:,.0f}, "
          f"ratio {found['ours'] / found['tf.data']:.1f}; waiting {waiting:.3f} %")  # fmt: skip
    return {"rows_per_second": found, "ratio": found["ours"] / found["tf.data"],
            "waiting_percent": waiting}  # fmt: skip


def waiting_percent(folder: Path, steps: int) -> float:
    """Trains `mini` for several epochs and returns the percentage of its time that it waited."""
    said = core(
        folder, "train", "--shards", "docs", "--size", "mini", "--num-train-steps", str(steps),
        "--per-replica-batch-size", str(BATCH), "--logging-steps", "10", "--device", "cpu",
        "--eval-steps", str(steps), "--save-steps", str(steps), "--max-eval-examples", "64",
        "--max-train-examples", str(steps * BATCH * 2 // 5),
    )  # fmt: skip
    values = [event["values"] for event in events_of(folder, said["run"], "metrics")]
    return fmean(one["data_wait_percent"] for one in values if "data_wait_percent" in one)


def prepare_ours(folder: str) -> Answer:
    """Returns a function that makes batches as a run does, and returns the sequences/s."""
    from core.config.train import TrainConfig
    from core.training.batches import THREADS, BatchPrefetcher, TrainBatches
    from core.training.inputs import open_inputs
    from core.workspace.workspace import Workspace

    config = TrainConfig(shards="docs", mlm_probability=PROBABILITY)
    inputs = open_inputs(config, Workspace(folder))
    make = TrainBatches(inputs.train_rows, inputs.objective, BATCH, seed=0)

    def answer(epochs: int) -> float:
        batches = len(inputs.train_rows) * epochs // BATCH
        began = time.perf_counter()
        with BatchPrefetcher(make.several, 0, batches, make.at_once, THREADS) as feeder:
            for _ in feeder:
                pass
        return batches * BATCH / (time.perf_counter() - began)

    return answer


def prepare_peer(folder: str) -> Answer:
    """Returns a function that reads the example's pipeline, and returns the sequences/s."""
    import tensorflow as tf

    from core.tokenizer.loading import load
    from core.workspace.workspace import Workspace

    workspace = Workspace(folder)
    tokenizer = load("docs", workspace)
    files = sorted(map(str, (workspace.folder("shards") / INT64 / "train").glob("*.tfrecord")))
    features = {
        name: tf.io.FixedLenFeature((LENGTH,), tf.int64) for name in ("input_ids", "attention_mask")
    }

    def parse(record: Any) -> Any:
        return tf.io.parse_single_example(record, features)

    def mask(batch: Mapping[str, Any]) -> dict[str, Any]:
        ids = batch["input_ids"]
        special = ~tf.cast(batch["attention_mask"], tf.bool)
        for one in (tokenizer.cls_id, tokenizer.sep_id):
            special |= ids == one

        def chosen(probability: float) -> Any:
            return tf.random.uniform(tf.shape(ids)) < probability

        hidden = chosen(PROBABILITY) & ~special
        labels = tf.where(hidden, ids, -100)
        masked = chosen(0.8) & hidden
        ids = tf.where(masked, tf.cast(tokenizer.mask_id, tf.int64), ids)
        replaced = chosen(0.5) & hidden & ~masked
        random = tf.random.uniform(tf.shape(ids), maxval=tokenizer.vocab_size, dtype=tf.int64)
        return {**batch, "input_ids": tf.where(replaced, random, ids), "labels": labels}

    dataset = (
        tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(SHUFFLE_BUFFER)
        .batch(BATCH, drop_remainder=True)
        .map(mask, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )

    def answer(epochs: int) -> float:
        began = time.perf_counter()
        batches = sum(1 for _ in dataset.repeat(epochs))
        return batches * BATCH / (time.perf_counter() - began)

    return answer


SIDES = {"ours": prepare_ours, "tf.data": prepare_peer}

if __name__ == "__main__":
    main()
