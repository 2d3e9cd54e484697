"""Text to shards: the studio against `datasets.map` and `tf.train.Example`.

All sides get the documentation of the installed packages (real text, not repeated), the same
Unigram tokenizer, and sequences of 512 tokens. With `--documents short`, each line of the
documentation is a document of its own. With `--megabytes`, the text is that of `benchmarks.large`;
its short documents have 12 words.

The studio: `core.build_shards` as a user calls it, from a .jsonl file to the committed artifact:
reading, splitting, encoding, packing, writing, hashing, syncing. A second side does the same on one
core.

The peer, after Hugging Face's `prepare_tfrecord_shards.py`: a `datasets.Dataset` that is in memory
already, `map` with `num_proc=2` that tokenises with transformers' fast tokenizer, `map` with
`num_proc=2` that groups batches of 1,000 (with `itertools.chain`, where the original's `sum` of
lists takes quadratic time), then one `tf.train.Example` per sequence through
`tf.io.TFRecordWriter`. The loss of every batch's last incomplete sequence is the original's too.

A last side shows the limit: `encode_batch_fast` with all cores, and nothing done with its tokens.

Each side runs in a process of its own, in turn, several rounds; imports of the peer aren't counted.
What is compared is tokens written per second of wall-clock. Tokens per second of processor time, of
all threads and processes, stand beside it: on a machine that does other things too they vary less.

    python -m benchmarks.shards --documents short --rounds 5
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
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.large import generate, read_words

if TYPE_CHECKING:
    from core.workspace.workspace import Workspace

SEQUENCE_LENGTH = 512
VOCAB_SIZE = 10_048
SHARD_SIZE = 16_384
TOKENIZER_DOCUMENTS = 6_000
DOCUMENTS = ("long", "short")
TOKENIZER = "benchmark"
_WORDS_OF_SHORT = 12


def main() -> None:
    """Prepares the text and the tokenizer once, then runs both sides in turn."""
    options = _options()
    if options.side:
        print(json.dumps(_SIDES[options.side](options.folder, options.documents)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        _prepare(folder, options.documents, options.megabytes)
        results = _compare(folder, options.documents, options.rounds)
    if options.json:
        print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times that each side runs")
    parser.add_argument("--documents", choices=DOCUMENTS, default="long")
    parser.add_argument("--megabytes", type=float, help="size of a generated text")
    parser.add_argument("--folder", type=Path, help="keep text and tokenizer there between calls")
    parser.add_argument("--json", action="store_true", help="print the results as one object")
    parser.add_argument("--side", choices=sorted(_SIDES), help=argparse.SUPPRESS)
    return parser.parse_args()


def _text_file(folder: Path, documents: str) -> Path:
    return folder / f"{documents}.jsonl"


def _compare(folder: Path, documents: str, rounds: int) -> dict[str, float]:
    size = _text_file(folder, documents).stat().st_size
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()}"
    print(f"{size / 1e6:.1f} MB in {documents} documents, {machine}")
    walls: dict[str, list[float]] = {side: [] for side in _SIDES}
    processors: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(1, rounds + 1):
        for side in _SIDES:
            result = _run(side, folder, documents)
            walls[side].append(result["tokens"] / result["seconds"])
            processors[side].append(result["tokens"] / result["processor_seconds"])
            print(
                f"round {number}  {side:11}{walls[side][-1]:12,.0f} tokens/s"
                f"{processors[side][-1]:12,.0f} tokens per processor second",
                flush=True,
            )
    bare = [mine / theirs for mine, theirs in zip(walls["studio"], walls["bare"], strict=True)]
    print(f"beside encode_batch_fast alone, wall-clock: median {median(bare):.2f}")
    pairs = zip(walls["studio"], walls["one_core"], strict=True)
    workers = [all_cores / one for all_cores, one in pairs]
    print(f"beside one core, wall-clock: median {median(workers):.2f}")
    return {
        "wall_ratio": _report("wall-clock", walls),
        "cpu_ratio": _report("processor", processors),
        "of_bare": median(bare),
        "of_one_core": median(workers),
    }


def _report(clock: str, speeds: dict[str, list[float]]) -> float:
    ours, peer = speeds["studio"], speeds["peer"]
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    print(
        f"{clock}: median {median(ours):,.0f} against {median(peer):,.0f} tokens/s; ratios "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}, median {median(ratios):.2f}"
    )
    return median(ratios)


def _run(side: str, folder: Path, documents: str) -> dict[str, float]:
    # A script's own processes would run it again, so a script gets none.
    command = [sys.executable, "-m", "benchmarks.shards", "--side", side, "--folder", str(folder)]
    command += ["--documents", documents]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "true"}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def _prepare(folder: Path, documents: str, megabytes: float | None) -> None:
    """Writes the text to a file and trains the tokenizer, unless they exist."""
    from core.config.corpus import CorpusConfig
    from core.config.tokenizer import TokenizerConfig
    from core.tokenizer.training import train
    from core.workspace.workspace import Workspace

    workspace = Workspace(folder / "workspace")
    text = _text_file(folder, documents)
    if not text.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with text.with_suffix(".draft").open("w", encoding="utf-8") as file:
            for document in _documents(workspace, documents, megabytes):
                file.write(json.dumps({"text": document}) + "\n")
        text.with_suffix(".draft").rename(text)
    if not (workspace.folder("tokenizer") / TOKENIZER).is_dir():
        sample = CorpusConfig(source="files", path=str(text), limit=TOKENIZER_DOCUMENTS)
        config = TokenizerConfig(name=TOKENIZER, corpus=sample, vocab_size=VOCAB_SIZE)
        train(config, workspace)


def _documents(workspace: Workspace, documents: str, megabytes: float | None) -> Iterator[str]:
    if megabytes:
        left = megabytes * 1e6
        for document in generate(read_words()):
            if left <= 0:
                return
            left -= len(document)
            yield from [document] if documents == "long" else _in_pieces(document)
        return
    from core.config.corpus import CorpusConfig
    from core.corpus.reading import open_corpus

    corpus = open_corpus(CorpusConfig(source="docs"), workspace)
    for _, document in corpus.labelled_documents():
        for part in [document] if documents == "long" else document.splitlines():
            if part.strip():
                yield part


def _in_pieces(document: str) -> Iterator[str]:
    words = document.split(" ")
    for first in range(0, len(words), _WORDS_OF_SHORT):
        yield " ".join(words[first : first + _WORDS_OF_SHORT])


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


def run_studio(folder: Path, documents: str, workers: int | None = None) -> dict[str, float]:
    """Builds shards as a user does and returns tokens and seconds."""
    from core.config.corpus import CorpusConfig
    from core.config.shards import ShardConfig
    from core.shards.build import build
    from core.workspace.workspace import Workspace

    workspace = Workspace(folder / "workspace")
    config = ShardConfig(
        corpus=CorpusConfig(source="files", path=str(_text_file(folder, documents))),
        tokenizer=TOKENIZER,
        max_seq_length=SEQUENCE_LENGTH,
        shard_size=SHARD_SIZE,
        workers=workers,
    )
    clock = Clock()
    counts = build(config, workspace).manifest.counts
    return {"tokens": counts["train_tokens"] + counts["validation_tokens"], **clock.read()}


def run_one_core(folder: Path, documents: str) -> dict[str, float]:
    """Builds shards with one worker on one core and returns tokens and seconds."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return run_studio(folder, documents, workers=1)


def run_peer(folder: Path, documents: str) -> dict[str, float]:
    """Does what the original script does and returns tokens and seconds."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    datasets.disable_caching()
    with _text_file(folder, documents).open(encoding="utf-8") as file:
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
            _write_shard(grouped[first : first + SHARD_SIZE], f"{output}/dataset-{first}.tfrecord")
            for first in range(0, len(grouped), SHARD_SIZE)
        )
        return {"tokens": tokens, **clock.read()}


def run_bare(folder: Path, documents: str) -> dict[str, float]:
    """Encodes the texts with all cores, does nothing else, and returns tokens and seconds."""
    import tokenizers

    with _text_file(folder, documents).open(encoding="utf-8") as file:
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
    total = len(joined["input_ids"]) // SEQUENCE_LENGTH * SEQUENCE_LENGTH
    starts = range(0, total, SEQUENCE_LENGTH)
    return {
        name: [values[first : first + SEQUENCE_LENGTH] for first in starts]
        for name, values in joined.items()
    }


def _write_shard(sequences: dict[str, list[list[int]]], path: str) -> int:
    import tensorflow as tf

    names = ("input_ids", "attention_mask")
    with tf.io.TFRecordWriter(path) as writer:
        for values in zip(*(sequences[name] for name in names), strict=True):
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                for name, value in zip(names, values, strict=True)
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return sum(map(len, sequences["input_ids"]))


_SIDES = {
    "studio": run_studio,
    "one_core": run_one_core,
    "peer": run_peer,
    "bare": run_bare,
}

if __name__ == "__main__":
    main()
