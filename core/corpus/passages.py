"""Cuts long documents into passages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# The later half of a passage may end at a line, a sentence or a word.
_ENDS = (re.compile(r"\n"), re.compile(r"[.!?。！？।…]"), re.compile(r"\s"))


def passages_of(texts: Iterable[str], longest: int) -> Iterator[str]:
    """Yields texts of at most `longest` characters; longer ones in several passages."""
    for text in texts:
        start = 0
        while len(text) - start > longest:
            end = _end_of_passage(text, start, longest)
            yield text[start:end]
            start = end
        yield text[start:] if start else text


def _end_of_passage(text: str, start: int, longest: int) -> int:
    least, most = start + longest // 2, start + longest
    for pattern in _ENDS:
        last = max((match.end() for match in pattern.finditer(text, least, most)), default=0)
        if last:
            return last
    return most
