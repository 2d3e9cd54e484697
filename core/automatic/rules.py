"""Rules by which settings follow from the amount of text: docs/recipe.md has the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from core.messages.values import byte_count

_LEAST_VOCABULARY = 256
MOST_VOCABULARY = 16_384
_VOCABULARY_STEP = 32
# Tokens, besides the alphabet, for each square root of a character.
_TOKENS_PER_ROOT = 3.5

# Held-out text that gives a steady figure, and the limits of its share.
_VALIDATION_BYTES = 500_000
_LEAST_PERCENT, _MOST_PERCENT = 0.2, 10.0
USUAL_PERCENT = 5.0

USUAL_LENGTH = 128
# Tokens per sequence, from a size of the text on.
_SEQUENCE_LENGTHS = {0: 64, 30_000_000: 128}


@dataclass(frozen=True)
class Choice:
    """The value of an automatic option, and why."""

    value: Any
    reason: str


def choose_vocab_size(characters: int, alphabet: int, special_tokens: int = 5) -> Choice:
    """Chooses the size of a vocabulary, special tokens included.

    Args:
        characters: Length of the text without white space.
        alphabet: Different characters, or bytes, that are tokens in any case.
    """
    learned = _TOKENS_PER_ROOT * math.sqrt(max(0, characters))
    wanted = special_tokens + alphabet + learned
    size = math.ceil(wanted / _VOCABULARY_STEP) * _VOCABULARY_STEP
    size = max(_LEAST_VOCABULARY, min(size, MOST_VOCABULARY))
    return Choice(size, f"{size:,} tokens for {characters:,} letters, {alphabet:,} different ones")


def choose_validation_percent(stored_bytes: int | None) -> Choice:
    """Chooses the percentage of documents that are held out.

    Args:
        stored_bytes: Size of the text; None: unknown.
    """
    if not stored_bytes:
        return Choice(USUAL_PERCENT, "usual for text of unknown size")
    percent = 100 * _VALIDATION_BYTES / stored_bytes
    percent = float(f"{max(_LEAST_PERCENT, min(percent, _MOST_PERCENT)):.2g}")
    held_out = stored_bytes * percent / 100
    return Choice(percent, f"{byte_count(held_out)} of {byte_count(stored_bytes)} are held out")


def choose_sequence_length(stored_bytes: int | None) -> Choice:
    """Chooses the number of tokens per sequence.

    Args:
        stored_bytes: Size of the text; None: unknown.
    """
    if not stored_bytes:
        return Choice(USUAL_LENGTH, f"{USUAL_LENGTH} tokens, usual for text of unknown size")
    length = max(tokens for least, tokens in _SEQUENCE_LENGTHS.items() if stored_bytes >= least)
    return Choice(length, f"{length} tokens for {byte_count(stored_bytes)} of text")
