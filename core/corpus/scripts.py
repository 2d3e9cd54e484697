"""Counts the scripts (writing systems) of characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import regex

SYMBOLS = "Symbols"
OTHER = "Other"
# The scripts of Unicode that living languages use; the rest counts as other.
_SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana",
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada",
    "Malayalam", "Sinhala", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Ethiopic",
    "Cherokee", "Canadian_Aboriginal", "Han", "Hiragana", "Katakana", "Bopomofo", "Hangul", "Yi",
    "Javanese", "Balinese", "Sundanese", "Tifinagh", "Nko", "Adlam",
)  # fmt: skip
# In these, words have no spaces between them.
WITHOUT_SPACES = (
    "Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan",
    "Javanese", "Balinese",
)  # fmt: skip
# Emoji, pictures and arrows; punctuation and digits belong to all scripts.
_SYMBOL = regex.compile("(?!\ufffd)[\\p{So}\\p{Co}]")
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_MOST_EXAMPLES = 12
# A text has few different characters, which are classified once.
_COUNTED = 0x110000

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ScriptCount:
    """Characters of one script.

    Attributes:
        name: Its name in Unicode, or Symbols or Other.
        examples: The most frequent ones.
    """

    name: str
    characters: int
    documents: int
    examples: str


def count_scripts(texts: Sequence[str]) -> list[ScriptCount]:
    """Counts letters by script, and symbols, the most frequent script first."""
    characters = np.zeros(_COUNTED, np.int64)
    documents: dict[str, int] = {}
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
        distinct, counts = np.unique(codes, return_counts=True)
        characters[distinct] += counts
        for name in {script_of(chr(code)) for code in distinct.tolist()} - {""}:
            documents[name] = documents.get(name, 0) + 1
    by_script: dict[str, list[tuple[int, str]]] = {}
    for code in np.flatnonzero(characters).tolist():
        if name := script_of(chr(code)):
            by_script.setdefault(name, []).append((int(characters[code]), chr(code)))
    return sorted(
        _scripts(by_script, documents), key=lambda script: (-script.characters, script.name)
    )


def _scripts(
    by_script: dict[str, list[tuple[int, str]]], documents: dict[str, int]
) -> Iterator[ScriptCount]:
    for name, letters in by_script.items():
        letters.sort(key=lambda letter: (-letter[0], letter[1]))
        examples = "".join(character for _, character in letters[:_MOST_EXAMPLES])
        yield ScriptCount(name, sum(count for count, _ in letters), documents[name], examples)


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """Returns a letter's script, or Symbols; empty for what belongs to all scripts."""
    if _SYMBOL.match(character):
        return SYMBOLS
    if not _LETTER.match(character):
        return ""
    for name, pattern in _patterns():
        if pattern.match(character):
            return name
    return "" if _is_common().match(character) else OTHER


@lru_cache(maxsize=1)
def _is_common() -> regex.Pattern[str]:
    return regex.compile(r"[\p{Script=Common}\p{Script=Inherited}]")


@lru_cache(maxsize=1)
def _patterns() -> list[tuple[str, regex.Pattern[str]]]:
    return [(name.replace("_", " "), regex.compile(rf"\p{{Script={name}}}")) for name in _SCRIPTS]
