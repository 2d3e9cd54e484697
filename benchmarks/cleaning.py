"""Cleaning a corpus: MB/s per step and rule, on one core; then the stage with 1 and 2 workers.

The text is the documentation of the installed packages, or the file that `--text` names (a document
on each line), repeated with other words in places so that no copy is a duplicate, up to
`--megabytes`. Each step and each rule is measured alone, in processor seconds of this process, and
so are all rules of Gopher, C4 and FineWeb together; the aim is 10 MB/s per core. A rule alone pays
for measures that the rules share, such as finding the words: the whole is less than the sum.

    python -m benchmarks.cleaning [--megabytes 50] [--text FILE] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.sides import describe_machine
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.cleaning.blocks import Block, block_ranges
from core.corpus.cleaning.lines import count_lines
from core.corpus.cleaning.parts import TRAIN, Batch
from core.corpus.cleaning.report import Tally
from core.corpus.cleaning.rules import RULES, Rule, judge
from core.corpus.cleaning.steps import filter_texts, near_keys, normalize_texts, text_keys
from core.corpus.reading import read_documents
from core.workspace.workspace import Workspace

SETS = ("gopher", "gopher_repetition", "c4", "fineweb")
NO_STEP: dict[str, Any] = {
    "fix_encoding": False, "unicode_form": "none", "exact_duplicates": False,
    "near_duplicates": False,
}  # fmt: skip
WORKERS = (1, 2)
NO_LINES = np.zeros(0, np.uint64)
# Each copy of the text has its number in every so many words.
_COPIED_WORDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=50.0, help="of text")
    parser.add_argument("--text", help="a file of documents")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    texts = read_texts(options.megabytes, options.text)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{megabytes:.1f} MB in {len(texts):,} documents", flush=True)
    speeds = measure_steps(texts, megabytes, options.rounds)
    print(json.dumps({"megabytes": megabytes, "speeds": speeds, "stage": measure_stage(texts)}))


def read_texts(megabytes: float, path: str | None = None) -> list[str]:
    """Returns documents of so many megabytes."""
    corpus = CorpusConfig(path=path) if path else CorpusConfig(source="docs")
    with tempfile.TemporaryDirectory() as folder:
        texts = list(read_documents(corpus, Workspace(folder)))
    found: list[str] = []
    size = 0
    for text in copies(texts):
        if size >= megabytes * 1e6:
            break
        found.append(text)
        size += len(text.encode())
    return found


def copies(texts: Sequence[str]) -> Iterator[str]:
    """Yields the texts again and again, with other words in places."""
    yield from texts
    for number in count(1):
        for text in texts:
            words = text.split(" ")
            words[::_COPIED_WORDS] = [f"{word}{number}" for word in words[::_COPIED_WORDS]]
            yield " ".join(words)


def measure_steps(texts: Sequence[str], megabytes: float, rounds: int) -> dict[str, float]:
    """Returns the MB/s of each step and rule, per processor second."""
    speeds = {}
    for name, run in [*steps(texts), *rules(texts)]:
        run()  # Loads models and tables.
        seconds = median(processor_seconds(run) for _ in range(rounds))
        speeds[name] = megabytes / seconds
        print(f"  {name:45} {speeds[name]:8.1f} MB/s", flush=True)
    return speeds


def steps(texts: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the steps, each alone."""
    batch = Batch(texts, np.arange(len(texts)), np.full(len(texts), TRAIN, np.uint8))
    for option in ({"fix_encoding": True}, {"unicode_form": "nfc"}):
        config = CleanConfig(**{**NO_STEP, **option})
        yield next(iter(option)), lambda config=config: normalize_texts(batch, config, Tally())
    yield "exact_duplicates", lambda: text_keys(texts)
    yield "near_duplicates", lambda: near_keys(texts, CleanConfig())
    yield "boilerplate_lines (counting)", lambda: count_lines(texts)
    options: list[dict[str, Any]] = [
        {"languages": "en"}, {"replace_emails": True}, {"replace_phones": True},
        {"replace_ip_addresses": True}, *({one: True} for one in SETS), dict.fromkeys(SETS, True),
    ]  # fmt: skip
    for option in options:
        config = CleanConfig(**{**NO_STEP, **option})
        name = " + ".join(option)
        yield name, lambda config=config: filter_texts(batch, config, NO_LINES, Tally())


def rules(texts: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the rules for documents, each alone."""
    config = CleanConfig(**{**NO_STEP, **dict.fromkeys(SETS, True)})
    for rule in RULES:
        yield f"rule {rule.option}", lambda rule=rule: judge_all(texts, [rule], config)
    yield "all rules", lambda: judge_all(texts, RULES, config)


def judge_all(texts: Sequence[str], chosen: Sequence[Rule], config: CleanConfig) -> None:
    for place in block_ranges(texts):
        judge(Block(texts[place]), chosen, config)


def processor_seconds(run: Callable[[], object]) -> float:
    began = resource.getrusage(resource.RUSAGE_SELF)
    run()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def measure_stage(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Cleans the text with all rules and the default steps; returns seconds and MB/s."""
    from core.corpus.cleaning.stage import clean

    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.jsonl")
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        for workers in WORKERS:
            config = CleanConfig(
                name=f"workers-{workers}", corpus=CorpusConfig(path=str(path)), workers=workers,
                **dict.fromkeys(SETS, True),
            )  # fmt: skip
            began = time.perf_counter()
            corpus = clean(config, Workspace(folder))
            seconds = time.perf_counter() - began
            read = corpus.manifest.counts["read"]["bytes"]
            row = {"workers": workers, "seconds": seconds, "mb_per_second": read / 1e6 / seconds}
            found.append({**row, "fingerprint": corpus.fingerprint})
            print(f"  stage, {workers} workers: {seconds:.1f} s", flush=True)
    return found


if __name__ == "__main__":
    main()
