"""Minimal pairs a second: ours beside a plain loop with transformers on PyTorch.

Checkpoints with random weights score the same pairs: RoBERTa by pseudo-log-likelihood, GPT-2 by
log-likelihood, T5 and BART by the likelihood of each token given a source that masks it. The loop
takes one sentence after the other: a decoder reads it once; for other models the copies in which a
token is masked are one batch. Its logits are those of all positions, as transformers computes them.
Ours is `core.evaluation`, as the command `evaluate` runs it. Each side has a process of its own;
they take turns. Loading and the first round, which compiles, are not counted. The differences of
both sides must agree within 1e-3.

    python -m benchmarks.evaluation [--pairs blimp.jsonl] [--size mini] [--rounds 3]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corpora import LENGTH, VOCAB_SIZE, core
from benchmarks.sides import (
    Answer,
    Prepare,
    add_side_arguments,
    answer_if_asked,
    describe_machine,
    medians,
    open_sides,
)

FAMILIES = ("roberta", "gpt2", "t5", "bart")
MOST_DIFFERENCE = 1e-3

Sentences = Sequence[tuple[str, str]]
Score = Callable[[Sentences], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=Path, help="JSON lines in BLiMP's format")
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--text", help="what the tokenizers learn from; default: documentation")
    parser.add_argument("--count", type=int, default=200, help="pairs that are scored")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--rounds", type=int, default=3)
    add_side_arguments(parser)
    options = parser.parse_args()
    if answer_if_asked(options, SIDES):
        return
    with tempfile.TemporaryDirectory() as name:
        write_models(Path(name), options)
        print(json.dumps(compare(Path(name), options)))


def write_models(folder: Path, options: argparse.Namespace) -> None:
    """Writes a checkpoint for each family, with random weights and a real tokenizer."""
    from core.config.train import TrainConfig
    from core.models.registry import resolve_architecture
    from core.tokenizer.loading import load
    from core.workspace.workspace import Workspace
    from tests.checkpoints import write_model_of

    for family in options.families:
        name = train_tokenizer(options, "t5" if family == "t5" else "roberta")
        tokenizer = load(name, Workspace(options.folder))
        found = resolve_architecture(
            TrainConfig(family=family, size=options.size),
            vocab_size=tokenizer.vocab_size,
            row_length=LENGTH,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.cls_id,
            eos_id=tokenizer.sep_id,
        )
        write_model_of(folder / family, tokenizer, found, size=0.05)


def train_tokenizer(options: argparse.Namespace, family: str) -> str:
    """Trains a tokenizer for a family, unless it exists, and returns its name."""
    name = f"pairs-{family}-{options.vocab_size}"
    if not (options.folder / "tokenizers" / name).is_dir():
        read = ["--path", options.text] if options.text else ["--source", "docs"]
        core(options.folder, "tokenizer", "--name", name, "--family", family, "--vocab-size",
             str(options.vocab_size), *read)  # fmt: skip
    return name


def read_pairs(path: Path | None, count: int) -> list[tuple[str, str]]:
    """Returns pairs of a file, evenly chosen, or pairs of random words: one has two swapped."""
    if path is not None:
        rows = list(map(json.loads, lines_of(path)))
        chosen = rows[:: max(1, len(rows) // count)][:count]
        return [(row["sentence_good"], row["sentence_bad"]) for row in chosen]
    choose = random.Random(0)
    words = (__doc__ or "").split()
    pairs = []
    for _ in range(count):
        good = choose.choices(words, k=choose.randint(5, 12))
        place = choose.randrange(len(good) - 1)
        bad = [*good[:place], good[place + 1], good[place], *good[place + 2 :]]
        pairs.append((" ".join(good), " ".join(bad)))
    return pairs


def describe_pairs(path: Path | None, pairs: Sentences) -> str:
    """Names the pairs in results, by the file's name and checksum."""
    if path is None:
        return f"{len(pairs):,} pairs of random words"
    whole, checksum = len(lines_of(path)), hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{len(pairs):,} of the {whole:,} pairs of {path.name} (sha256 {checksum[:12]})"


def lines_of(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if line.strip()]


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Prints the pairs a second of each side; returns them by family, and which pairs they are."""
    pairs = read_pairs(options.pairs, options.count)
    named = describe_pairs(options.pairs, pairs)
    about = f"{options.size}, vocabulary {options.vocab_size}, {named}"
    print(f"{about}; {describe_machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
    found = {}
    for family in options.families:
        setup = {"folder": str(folder / family), "pairs": pairs}
        with open_sides("benchmarks.evaluation", SIDES, setup) as sides:
            ours, theirs = (sides[name].ask("differences") for name in ("ours", "torch"))
            check_equal(family, ours, theirs)
            speeds = medians(sides, "speed", options.rounds)
        ratio = speeds["ours"] / speeds["torch"]
        print(f"  {family:8} ours {speeds['ours']:7.1f} pairs/s, PyTorch {speeds['torch']:7.1f}, "
              f"ratio {ratio:.1f}", flush=True)  # fmt: skip
        found[family] = {**speeds, "ratio": ratio}
    return {"pairs": named, "families": found}


def check_equal(family: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    largest = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    print(f"  {family:8} largest disagreement {largest:.1e}", flush=True)
    if largest > MOST_DIFFERENCE:
        sys.exit(f"{family}: the sides disagree by {largest:.4f}")


def answering(load: Callable[[Path], Score]) -> Prepare:
    """Returns a side that scores the pairs and measures its speed."""

    def prepare(setup: Mapping[str, Any]) -> Answer:
        score = load(Path(setup["folder"]))
        pairs = [(good, bad) for good, bad in setup["pairs"]]

        def answer(question: str) -> Any:
            began = time.perf_counter()
            differences = score(pairs)
            seconds = time.perf_counter() - began
            return differences if question == "differences" else len(pairs) / seconds

        return answer

    return prepare


def load_ours(folder: Path) -> Score:
    from core.evaluation.minimal_pairs import score_pairs
    from core.evaluation.pairs import Pair
    from core.inference.likelihood import TokenScorer

    scorer = TokenScorer(folder)

    def score(pairs: Sentences) -> list[float]:
        scored = score_pairs(scorer, [Pair(good, bad, "", "", "") for good, bad in pairs])
        return [one.difference for one in scored]

    return score


def load_torch(folder: Path) -> Score:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    family = model.config.model_type

    def score_sentence(sentence: str) -> float:
        ids = torch.tensor(tokenizer(sentence).input_ids)
        if family == "gpt2":
            logs = model(ids[None]).logits[0, :-1].log_softmax(-1)
            return float(logs.gather(1, ids[1:, None]).sum())
        places = torch.arange(0 if family == "t5" else 1, len(ids) - 1)
        targets, rows = ids[places], torch.arange(len(places))
        source = ids.repeat(len(places), 1)
        at, more = places, {}
        if family == "t5":
            mask = tokenizer.convert_tokens_to_ids("<extra_id_0>")
            at = torch.ones_like(places)
            more = {"labels": torch.stack([torch.full_like(targets, mask), targets], dim=1)}
        else:
            mask = tokenizer.mask_token_id
            more = {"labels": ids.repeat(len(places), 1)} if family == "bart" else {}
        source[rows, places] = mask
        logs = model(source, **more).logits[rows, at].log_softmax(-1)
        return float(logs[rows, targets].sum())

    def score(pairs: Sentences) -> list[float]:
        with torch.inference_mode():
            return [score_sentence(good) - score_sentence(bad) for good, bad in pairs]

    return score


SIDES = {"ours": answering(load_ours), "torch": answering(load_torch)}

if __name__ == "__main__":
    main()
