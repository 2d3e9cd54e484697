"""Small deterministic texts: sentences of random words from a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.corpus.sentences import sentence_ends

WORDS = """
the a this that small large old new river mountain garden window teacher captain letter morning
evening winter summer runs walks reads writes finds loses opens closes slowly quickly never always
under over behind near red green blue quiet loud house horse ship bridge story song bread water
fire stone silver golden and but because while after before
""".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    """Returns `count` sentences of 4 to 12 words."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(4, 13, count)
    words = generator.integers(0, len(WORDS), int(lengths.sum()))
    ends = np.cumsum(lengths)
    return [
        " ".join(WORDS[index] for index in words[end - length : end]).capitalize() + "."
        for length, end in zip(lengths, ends, strict=True)
    ]


def split_sentences(text: str) -> list[str]:
    """Splits a text at the ends of its sentences."""
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def write_sentences(path: Path, count: int = 400, seed: int = 0) -> Path:
    """Writes `count` sentences, one per line, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(sentences(count, seed)) + "\n", "utf-8")
    return path
