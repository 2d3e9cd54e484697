"""Classifies all Unicode characters in tables that numpy indexes by code point."""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SPACE, LETTER, WORD, SENTENCE_END, LINE_END, BULLET = 1, 2, 4, 8, 16, 32

ELLIPSIS = "…"
_SENTENCE_ENDS = ".?!。！？｡؟۔।॥።"
# C4 and FineWeb count closing quotation marks too.
_LINE_ENDS = _SENTENCE_ENDS + "\"'”’»」』"
_BULLETS = "•‣◦▪●○■-*–"


@lru_cache(maxsize=1)
def character_classes() -> npt.NDArray[np.uint8]:
    """Returns the classes of each code point as bits, (1114112,)."""
    characters = list(map(chr, range(sys.maxunicode + 1)))
    classes = np.zeros(len(characters), np.uint8)
    for bit, test in ((SPACE, str.isspace), (LETTER, str.isalpha), (WORD, str.isalnum)):
        classes[np.fromiter(map(test, characters), bool, len(characters))] |= bit
    for bit, members in (
        (SENTENCE_END, _SENTENCE_ENDS), (LINE_END, _LINE_ENDS), (BULLET, _BULLETS)
    ):  # fmt: skip
        classes[[ord(character) for character in members]] |= bit
    return classes
