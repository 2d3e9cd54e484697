"""Prints the docstrings of Python source files: a script that other processes run.

It reads paths from standard input, one a line, and answers each with one line on standard output:
a JSON list of the file's docstrings, cleaned of their indentation. It imports none of what it
reads and nothing outside the standard library, so it starts in milliseconds and several can run
side by side (`core.corpus.docs` does that).
"""

from __future__ import annotations

import ast
import gc
import json
import sys
import warnings
from collections.abc import Iterator

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_QUOTES = (b'"""', b"'''")


def docstrings(source: bytes, shortest: int) -> list[str]:
    """Returns the docstrings of a source file that have at least `shortest` characters.

    A file that this Python can't parse has none.
    """
    if not any(quotes in source for quotes in _QUOTES):
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    texts = (ast.get_docstring(node) or "" for node in _documented(tree))
    return [text for text in (text.strip() for text in texts) if _is_usable(text, shortest)]


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Yields what can carry a docstring, in no promised order; only statements are looked into."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _DOCUMENTED):
            yield node  # type: ignore[misc]
        for name in ("body", "orelse", "handlers", "finalbody"):
            children = getattr(node, name, None)
            if isinstance(children, list):
                pending.extend(children)


def _is_usable(text: str, shortest: int) -> bool:
    if len(text) < shortest:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, written as an escape
        return False
    return "\0" not in text


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def main() -> None:
    """Answers the paths on standard input."""
    warnings.simplefilter("ignore")
    gc.disable()  # syntax trees hold no cycles; looking for some takes a quarter of the time
    shortest = int(sys.argv[1])
    for path in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").splitlines():
        sys.stdout.write(json.dumps(docstrings(_read(path), shortest)) + "\n")


if __name__ == "__main__":
    main()
