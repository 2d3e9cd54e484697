"""Training a Unigram tokenizer: ours beside SentencePiece, on the same text.

Both get the documentation of the installed packages, all of it, from a file with a text on each
line, and use all cores. SentencePiece leaves out lines of more than 4,192 bytes unless it is told
otherwise: it is. How many tokens each makes of texts that neither has seen says whether they
learned the same.

    python -m benchmarks.tokenizer [--vocab-size 25000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.sides import (
    Answer,
    Prepare,
    add_side_arguments,
    answer_if_asked,
    describe_machine,
    medians,
    open_sides,
)

# Counts the tokens of a text.
Count = Callable[[str], int]
Train = Callable[[Path, Path, int], Count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=25_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--texts", type=int, help="of the documentation; all of them unless told")
    add_side_arguments(parser)
    options = parser.parse_args()
    if not answer_if_asked(options, SIDES):
        print(json.dumps(measure(options.vocab_size, options.rounds, options.texts)))


def measure(vocab_size: int, rounds: int, texts: int | None) -> dict[str, Any]:
    """Returns the seconds and the tokens of both sides, and the megabytes of text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megabytes = write_texts(folder, texts)
        print(f"{megabytes:.1f} MB, {vocab_size:,} tokens; {describe_machine()}", flush=True)
        setup = {"folder": name, "vocab_size": vocab_size}
        with open_sides("benchmarks.tokenizer", SIDES, setup) as sides:
            seconds = medians(sides, "train", rounds)
            tokens = {side: process.ask("count") for side, process in sides.items()}
    ratio = seconds["sentencepiece"] / seconds["ours"]
    print(f"  ours {seconds['ours']:.1f} s, SentencePiece {seconds['sentencepiece']:.1f} s, ratio "
          f"{ratio:.2f}; tokens {tokens}", flush=True)  # fmt: skip
    return {"megabytes": megabytes, "seconds": seconds, "tokens": tokens, "ratio": ratio}


def write_texts(folder: Path, most: int | None) -> float:
    """Writes what is trained on, and what is held out, and returns the megabytes of the first."""
    from core.config.corpus import CorpusConfig
    from core.corpus.reading import open_corpus
    from core.workspace.workspace import Workspace

    corpus = open_corpus(CorpusConfig(source="docs"), Workspace(folder / "reading"))
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for split, text in corpus.labelled_documents():
        lines = texts[split]
        if most is None or len(lines) < most:
            lines.append(" ".join(text.split()))
    for split, lines in texts.items():
        _file(folder, split).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return _file(folder, "train").stat().st_size / 1e6


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.txt"


def training(train: Train) -> Prepare:
    """Returns a side that trains, and counts the tokens of what was held out."""

    def prepare(setup: dict[str, Any]) -> Answer:
        folder, vocab_size = Path(setup["folder"]), setup["vocab_size"]
        trained: list[Count] = []

        def answer(question: str) -> float:
            if question == "count":
                held_out = _file(folder, "validation").read_text(encoding="utf-8")
                return sum(map(trained[-1], held_out.splitlines()))
            with tempfile.TemporaryDirectory() as output:
                began = time.perf_counter()
                trained.append(train(_file(folder, "train"), Path(output), vocab_size))
                return time.perf_counter() - began

        return answer

    return prepare


def train_ours(text: Path, output: Path, vocab_size: int) -> Count:
    """Trains as a script does."""
    from core import train_tokenizer
    from core.config.corpus import CorpusConfig
    from core.config.tokenizer import TokenizerConfig
    from core.tokenizer.loading import load
    from core.workspace.workspace import Workspace

    corpus = CorpusConfig(source="files", path=str(text), text_unit="line", validation_percent=0.01)
    config = TokenizerConfig(name="benchmark", corpus=corpus, vocab_size=vocab_size)
    made = train_tokenizer(config, Workspace(output))
    backend = load(str(made.path)).backend
    return lambda line: len(backend.encode(line, add_special_tokens=False).ids)


def train_peer(text: Path, output: Path, vocab_size: int) -> Count:
    """Trains SentencePiece's Unigram."""
    import sentencepiece

    from core.processes.cores import usable_cores

    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(output / "peer"),
        vocab_size=vocab_size,
        model_type="unigram",
        character_coverage=1.0,
        max_sentence_length=1 << 20,
        num_threads=usable_cores(),
        minloglevel=1,
    )
    made = sentencepiece.SentencePieceProcessor(model_file=str(output / "peer.model"))
    return lambda line: len(made.encode(line))


SIDES = {"ours": training(train_ours), "sentencepiece": training(train_peer)}

if __name__ == "__main__":
    main()
