"""Folds text for comparisons, so that copies in other case, width, quotes or spaces are equal.

Characters are composed and replaced by their compatibility forms (NFKC), case is folded, invisible
characters are dropped, and spaces, dashes, quotation marks and other punctuation become those of
ASCII.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_DROPPED = 0
_SEVERAL = sys.maxunicode + 1
# Planes above hold Han without case, and characters that are not drawn.
_LAST_FOLDED = 0x1FFFF
_TAGS_AND_SELECTORS = range(0xE0000, 0xE1000)
# Neither drawn nor in the category of formats: a joiner, fillers and variation selectors.
_INVISIBLE = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164,
              *range(0xFE00, 0xFE10), 0xFFA0)  # fmt: skip
_QUOTES = "‘’‚‛′‹›ʹʻʼʽˈ´`"
_DOUBLE_QUOTES = "“”„‟″«»〝〞〟"
_DASHES = "‐‑‒–—―−⸺⸻﹘"


class _Folding(NamedTuple):
    """The folded character of each code point, and the characters with several."""

    table: npt.NDArray[np.uint32]
    several: re.Pattern[str]
    texts: dict[str, str]


def fold(text: str) -> bytes:
    """Returns a folded text in UTF-8; ASCII is unchanged, as windows ignore its case."""
    if text.isascii():
        return text.encode()
    folding = _folding()
    text = unicodedata.normalize("NFC", text)
    codes = folding.table[_codes_of(text)]
    if (codes == _SEVERAL).any():
        text = folding.several.sub(lambda match: folding.texts[match[0]], text)
        codes = folding.table[_codes_of(text)]
    if not codes.all():
        codes = codes[codes != _DROPPED]
    return unicodedata.normalize("NFC", codes.tobytes().decode("utf-32-le")).encode()


def _codes_of(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)


@lru_cache(maxsize=1)
def _folding() -> _Folding:
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    table[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
    several = {}
    for code in range(0x80, _LAST_FOLDED + 1):
        if 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xF900:
            continue  # Han, Hangul and private characters stay.
        character = chr(code)
        folded = _folded(character)
        if len(folded) > 1:
            several[character], table[code] = folded, _SEVERAL
        else:
            table[code] = ord(folded) if folded else _DROPPED
    table[[*_INVISIBLE, *_TAGS_AND_SELECTORS]] = _DROPPED
    pattern = re.compile("[" + re.escape("".join(several)) + "]")
    return _Folding(table, pattern, several)


def _folded(character: str) -> str:
    if character in _QUOTES:
        return "'"
    if character in _DOUBLE_QUOTES:
        return '"'
    if character in _DASHES:
        return "-"
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    if category[0] in "ZC":
        return character if category in ("Cn", "Co", "Cs") else " "
    form = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    if category[0] == "P" and not (form.isascii() and len(form) == 1):
        return "."
    return form
