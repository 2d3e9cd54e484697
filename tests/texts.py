"""Small deterministic texts: sentences of random words from a list."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from core.corpus.sentences import sentence_ends

WORDS = """
the a this that small large old new river mountain garden window teacher captain letter morning
evening winter summer runs walks reads writes finds loses opens closes slowly quickly never always
under over behind near red green blue quiet loud house horse ship bridge story song bread water
fire stone silver golden and but because while after before
""".split()
SCRIPTS = ("english", "korean", "code", "dna")
# Pieces at whose borders tokenizers differ.
PIECES = (
    *("word", "Word", "don't", "I'LL", "we'Ve", "THEY'RE", "x'S", "'ſ", "naïve", "e\u0301te\u0301"),
    *("7", "42", "365", "1234", "1234567890123", "3.14", "½²", "Ⅷ", "٣٤٥", "x2y", "ﬁ"),
    *(" ", "  ", "     ", "\t", "\t\t", "\n", "\n\n\n", "\r\n", "\r\n\r\n", " \n "),
    *("\u00a0", "\u3000", "\u2028", "\x85", "\x0b", "\x1c", "\x7f", "\u200b", "\ufeff", "\u00ad"),
    *(".", ",", "...", "?!", "(", ")", "--", "_", "#$%", "€+=~^`|", "«»", "。", "'", '"'),
    *("🎉", "👩\u200d👩\u200d👧\u200d👦", "🇰🇷", "👍🏽", "❤\ufe0f", "서울은 수도", "中文かな"),
    *("العربية", "हिन्दी", "ภาษาไทย", "Ωμέγα", "Жук", "http://a.b/c?d=1&e=2", "if(a[i]!=b){i++;}"),
    *("def f(x):\n    return x ** 2  # 12", "<s>", " </s>", "<unk>", " <mask> ", "<pad>x", "<mask"),
)  # fmt: skip


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


def varied_texts(count: int = 200) -> list[str]:
    """Returns different texts of pieces in many scripts, beginning with each piece alone."""
    chance = random.Random(0)
    joined = ("".join(chance.choices(PIECES, k=chance.randrange(2, 12))) for _ in range(count))
    return list(dict.fromkeys(["", *PIECES, *joined]))[:count]


def split_sentences(text: str) -> list[str]:
    """Splits a text at the ends of its sentences."""
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def write_sentences(path: Path, count: int = 400, seed: int = 0) -> Path:
    """Writes `count` sentences, one per line, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(sentences(count, seed)) + "\n", "utf-8")
    return path


def write_scripts(folder: Path, size: int) -> dict[str, Path]:
    """Writes a file of random lines for each of `SCRIPTS`, of about `size` bytes."""
    chance = random.Random(0)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randrange(2, 9))) for _ in range(400)]
    syllables = [chr(0xAC00 + chance.randrange(2000)) for _ in range(300)]
    lines = {
        "english": lambda: " ".join(chance.choices(words, k=chance.randrange(3, 40))),
        "korean": lambda: " ".join(
            "".join(chance.choices(syllables, k=chance.randrange(1, 5)))
            for _ in range(chance.randrange(3, 20))
        ),
        "code": lambda: f"    def {chance.choice(words)}(self, {chance.choice(words)}=1):",
        "dna": lambda: "".join(chance.choices("ACGT", k=chance.randrange(50, 3000))),
    }
    found = {name: folder / f"{name}.txt" for name in SCRIPTS}
    for name, path in found.items():
        with path.open("w", encoding="utf-8") as file:
            while file.tell() < size:
                file.write(lines[name]() + "\n")
    return found
