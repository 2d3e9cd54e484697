"""Finds docstrings in Python source without parsing it, which would take ten times as long."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

_BLANK = rb"[ \t]{0,99}(?:#[^\n]{0,200})?\r?\n"
# The first statement of a file, or after a line that ends with a colon.
_DOCSTRING = re.compile(
    rb"(?:\A(?:%(blank)b){0,99}|:%(blank)b(?:%(blank)b){0,9})"
    rb"[ \t]{0,99}([rRuU]?)(\"\"\"|''')(.*?(?<!\\)(?:\\\\)*)\2" % {b"blank": _BLANK},
    re.DOTALL,
)


def docstrings(source: bytes, shortest: int) -> Iterator[str]:
    """Yields the docstrings in triple quotes with at least `shortest` characters.

    A string that merely follows a line with a colon counts, too.
    """
    for prefix, quotes, content in _DOCSTRING.findall(source):
        if len(content) < shortest:
            continue
        try:
            text = content.decode("utf-8")
            if "\\" in text and prefix not in (b"r", b"R"):
                # The space keeps a quote at the end apart from those that close the string.
                text = ast.literal_eval(f"{quotes.decode()}{text} {quotes.decode()}")
            text = inspect.cleandoc(text).strip()
            text.encode("utf-8")  # fails for an escaped lone surrogate
        except (ValueError, SyntaxError):
            continue
        if len(text) >= shortest and "\0" not in text:
            yield text
