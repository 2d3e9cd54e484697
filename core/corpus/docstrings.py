"""Subprocess of `core.corpus.docs`: prints the docstrings of source files as JSON.

Standard library only, so it starts in milliseconds.
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
    """Returns the docstrings with at least `shortest` characters; none if parsing fails."""
    if not any(quotes in source for quotes in _QUOTES):
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    texts = (ast.get_docstring(node) or "" for node in _documented(tree))
    return [text for text in (text.strip() for text in texts) if _is_usable(text, shortest)]


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
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
    except UnicodeEncodeError:  # an escaped lone surrogate
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
    gc.disable()  # no cycles; looking for some takes a quarter of the time
    shortest = int(sys.argv[1])
    for path in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").splitlines():
        sys.stdout.write(json.dumps(docstrings(_read(path), shortest)) + "\n")


if __name__ == "__main__":
    main()
