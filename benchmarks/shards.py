"""Text to shards: the studio against `datasets.map` and `tf.train.Example`.

Both sides get the documentation of the installed packages (real text, not repeated), the same
Unigram tokenizer, and cut rows of 512 tokens.

The studio: `core.build_shards` as a user calls it, from a .jsonl file to the committed artifact:
reading, splitting, encoding, packing, writing, hashing, syncing.

The peer, after Hugging Face's `prepare_tfrecord_shards.py`: a `datasets.Dataset` that is in memory
already, `map` with `num_proc=2` that tokenises with transformers' fast tokenizer, `map` with
`num_proc=2` that groups batches of 1,000 (with `itertools.chain`, where the original's `sum` of
lists takes quadratic time), then one `tf.train.Example` a row through `tf.io.TFRecordWriter`. The
loss of every batch's last incomplete row is the original's too.

A third side shows the limit: `encode_batch_fast` with all cores, and nothing done with its tokens.

Each side runs in a process of its own, in turn, several rounds; imports of the peer aren't counted.
What is compared is tokens written per second of wall-clock. Tokens per second of processor time, of
all threads and processes, stand beside it: on a machine that does other things too they vary less.

    python benchmarks/shards.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROW_LENGTH = 512
VOCAB_SIZE = 10_048
SHARD_ROWS = 16_384
TOKENIZER_DOCUMENTS = 6_000
TEXT_FILE = "docs.jsonl"
TOKENIZER = "benchmark"


def main() -> None:
    """Prepares the text and the tokenizer once, then runs both sides in turn."""
    options = _options()
    if options.side:
        print(json.dumps(_SIDES[options.side](options.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        _prepare(folder)
        results = _compare(folder, options.rounds)
    if options.json:
        print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times that each side runs")
    parser.add_argument("--folder", type=Path, help="keep text and tokenizer there between calls")
    parser.add_argument("--json", action="store_true", help="print the results as one object")
    parser.add_argument("--side", choices=sorted(_SIDES), help=argparse.SUPPRESS)
    return parser.parse_args()


def _compare(folder: Path, rounds: int) -> dict[str, float]:
    size = (folder / TEXT_FILE).stat().st_size
    print(f"{size / 1e6:.1f} MB of documentation, {os.cpu_count()} cores, load {os.getloadavg()}")
    walls: dict[str, list[float]] = {side: [] for side in _SIDES}
    processors: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(1, rounds + 1):
        for side in _SIDES:
            result = _run(side, folder)
            walls[side].append(result["tokens"] / result["seconds"])
            processors[side].append(result["tokens"] / result["processor_seconds"])
            print(
                f"round {number}  {side:7}{walls[side][-1]:12,.0f} tokens/s"
                f"{processors[side][-1]:12,.0f} tokens per processor second",
                flush=True,
            )
    bare = [mine / theirs for mine, theirs in zip(walls["studio"], walls["bare"], strict=True)]
    print(f"beside encode_batch_fast alone, wall-clock: median {median(bare):.2f}")
    return {
        "wall_ratio": _report("wall-clock", walls),
        "cpu_ratio": _report("processor", processors),
        "of_bare": median(bare),
    }


def _report(clock: str, speeds: dict[str, list[float]]) -> float:
    ours, peer = speeds["studio"], speeds["peer"]
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    print(
        f"{clock}: median {median(ours):,.0f} against {median(peer):,.0f} tokens/s; ratios "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}, median {median(ratios):.2f}"
    )
    return median(ratios)


def _run(side: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "true"}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def _prepare(folder: Path) -> None:
    """Writes the documentation to a file and trains the tokenizer, where that isn't done yet."""
    from core.config import CorpusConfig, TokenizerConfig
    from core.corpus import open_corpus
    from core.tokenizer import train
    from core.workspace import Workspace

    workspace = Workspace(folder / "workspace")
    text = folder / TEXT_FILE
    if not text.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        corpus = open_corpus(CorpusConfig(source="docs"), workspace)
        with text.with_suffix(".draft").open("w", encoding="utf-8") as file:
            for _, document in corpus.labelled_documents():
                file.write(json.dumps({"text": document}) + "\n")
        text.with_suffix(".draft").rename(text)
    if not (workspace.folder("tokenizer") / TOKENIZER).is_dir():
        sample = CorpusConfig(source="files", path=str(text), limit=TOKENIZER_DOCUMENTS)
        config = TokenizerConfig(name=TOKENIZER, corpus=sample, vocab_size=VOCAB_SIZE)
        train(config, workspace)


class Clock:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._processor = _processor_seconds()

    def read(self) -> dict[str, float]:
        """Returns the seconds of wall-clock and of processors since then."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "processor_seconds": _processor_seconds() - self._processor,
        }


def _processor_seconds() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_studio(folder: Path) -> dict[str, float]:
    """Builds shards as a user does and returns tokens and seconds."""
    from core.config import CorpusConfig, ShardConfig
    from core.shards.build import build
    from core.workspace import Workspace

    workspace = Workspace(folder / "workspace")
    config = ShardConfig(
        corpus=CorpusConfig(source="files", path=str(folder / TEXT_FILE)),
        tokenizer=TOKENIZER,
        max_seq_length=ROW_LENGTH,
        shard_size=SHARD_ROWS,
    )
    clock = Clock()
    counts = build(config, workspace).manifest.counts
    return {"tokens": counts["train_tokens"] + counts["validation_tokens"], **clock.read()}


def run_peer(folder: Path) -> dict[str, float]:
    """Does what the original script does and returns tokens and seconds."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    datasets.disable_caching()
    with (folder / TEXT_FILE).open(encoding="utf-8") as file:
        texts = datasets.Dataset.from_dict({"text": [json.loads(line)["text"] for line in file]})
    tokenizer = AutoTokenizer.from_pretrained(folder / "workspace" / "tokenizers" / TOKENIZER)
    import tensorflow  # noqa: F401 - not part of the time

    with tempfile.TemporaryDirectory() as output:
        clock = Clock()
        tokenized = texts.map(
            lambda examples: tokenizer(examples["text"]),
            batched=True,
            num_proc=2,
            remove_columns=["text"],
        )
        grouped = tokenized.map(_group, batched=True, batch_size=1000, num_proc=2)
        tokens = sum(
            _write_shard(grouped[first : first + SHARD_ROWS], f"{output}/dataset-{first}.tfrecord")
            for first in range(0, len(grouped), SHARD_ROWS)
        )
        return {"tokens": tokens, **clock.read()}


def run_bare(folder: Path) -> dict[str, float]:
    """Encodes the texts with all cores, does nothing else, and returns tokens and seconds."""
    import tokenizers

    with (folder / TEXT_FILE).open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    file_name = folder / "workspace" / "tokenizers" / TOKENIZER / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file_name))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    clock, tokens = Clock(), 0
    for first in range(0, len(texts), 1000):
        encoded = tokenizer.encode_batch_fast(texts[first : first + 1000])
        tokens += sum(map(len, encoded))
    return {"tokens": tokens, **clock.read()}


def _group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    joined = {name: list(chain.from_iterable(lists)) for name, lists in examples.items()}
    total = len(joined["input_ids"]) // ROW_LENGTH * ROW_LENGTH
    return {
        name: [values[start : start + ROW_LENGTH] for start in range(0, total, ROW_LENGTH)]
        for name, values in joined.items()
    }


def _write_shard(rows: dict[str, list[list[int]]], path: str) -> int:
    import tensorflow as tf

    names = ("input_ids", "attention_mask")
    with tf.io.TFRecordWriter(path) as writer:
        for values in zip(*(rows[name] for name in names), strict=True):
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                for name, value in zip(names, values, strict=True)
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return sum(map(len, rows["input_ids"]))


_SIDES = {"studio": run_studio, "peer": run_peer, "bare": run_bare}

if __name__ == "__main__":
    main()
