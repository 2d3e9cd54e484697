"""Prints the docstrings of Python source files; run as a subprocess by `core.corpus.docs`.

Reads one path per line and answers with a JSON list of cleaned docstrings per line. It parses files
without importing them and uses only the standard library, so it starts in milliseconds.
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

    Files that this Python can't parse yield an empty list.
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
    """Yields nodes that can carry a docstring, in no particular order, visiting statements only."""
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
    warnings.simplefilter("ignore")
    gc.disable()  # syntax trees hold no cycles; looking for some takes a quarter of the time
    shortest = int(sys.argv[1])
    for path in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").splitlines():
        sys.stdout.write(json.dumps(docstrings(_read(path), shortest)) + "\n")


if __name__ == "__main__":
    main()
