"""The language of code and documentation: plain sentences with the field's standard terms."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "ui", "benchmarks")
# Beginnings of a fragment that stands where a sentence needs a subject.
FRAGMENT = re.compile(
    r"^(Of|That|What|As|Where|Whom?|Whoever|Those|None where|So that|By which)\b"
    r"(?! (is|are|was|it)\b.*\?)"
)
RETURNS_WHAT = re.compile(r"\b(Returns|Tells|Says|Gives|Yields) (what|which|where)\b")
MOST_FRAGMENTS = 10
MOST_RETURNS_WHAT = 10
# Terms that have no other meaning here, and the standard ones.
RETIRED = {
    r"\btables? of words\b": "token embeddings",
    r"\btables? of positions\b": "position embeddings",
    r"\bhal(f|ves) (a |of )?letters?\b": "lone surrogate",
    r"\bstands? near\b": "co-occurrence",
    r"\bhidden words?\b": "masked tokens",
    r"\bfrequency baseline\b": "unigram baseline",
    r"\bfirst (values|weights)\b": "initialisation, initial weights",
    r"\blast words\b": "log tail",
    r"\bthe shell\b": "the command line",
    r"\bknobs?\b": "option, setting",
    r"\bstrangers?\b": "anonymous user",
    r"\b(a|per) row of tokens\b": "sequence",
    r"\bengines?\b": "backend",
}
# Variable names that say nothing of what they hold.
EMPTY_NAMES = {"one", "found", "kept", "mine", "said", "taken"}
# Lines that name an interface which keeps its name: a flag, a field, an API of SQLAlchemy.
INTERFACE = re.compile(r"--engine|--as-stranger|`engine`|engine=|create_backend|SQLAlchemy")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ").strip()


def python_files(*packages: str) -> list[Path]:
    found = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in found if path != Path(__file__))


@cache
def prose(path: Path) -> list[tuple[str, str]]:
    """Returns the place and the text of each docstring, comment and paragraph of a file."""
    return list(_read_prose(path))


def _read_prose(path: Path) -> Iterator[tuple[str, str]]:
    source = path.read_text("utf-8")
    place = path.relative_to(ROOT)
    if path.suffix == ".md":
        yield from ((f"{place}:{n}", line) for n, line in enumerate(source.splitlines(), 1))
        return
    for line, text in (*docstrings(ast.parse(source)), *comments(source)):
        yield f"{place}:{line}", text


def assigned_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and name of each variable and parameter, and of each caught exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def empty_names() -> dict[str, list[str]]:
    """Returns where each package (`core/runs`, or a module beside packages) has an empty name."""
    places: dict[str, list[str]] = {}
    for path in [*python_files("core", "ui"), ROOT / "app.py"]:
        package = "/".join(path.relative_to(ROOT).parts[:2])
        for line, name in assigned_names(ast.parse(path.read_text("utf-8"))):
            if name in EMPTY_NAMES:
                places.setdefault(package, []).append(f"{path.relative_to(ROOT)}:{line} {name}")
    return places


def heads(text: str) -> list[str]:
    """Returns the beginnings of a docstring: its first line and its entries' explanations."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    entries = [line.split(": ", 1)[1] for line in lines if re.match(r"^\w+(, \w+)*: \S", line)]
    return [*lines[:1], *entries]


def test_docstrings_begin_with_a_sentence() -> None:
    fragments = [
        f"{place} {head}"
        for path in python_files(*PACKAGES)
        for place, text in prose(path)
        for head in heads(text)
        if FRAGMENT.match(head)
    ]
    assert len(fragments) <= MOST_FRAGMENTS, "\n".join(fragments)


def test_docstrings_name_what_a_function_returns() -> None:
    found = [
        f"{place} {text.splitlines()[0]}"
        for path in python_files(*PACKAGES)
        for place, text in prose(path)
        if RETURNS_WHAT.search(text)
    ]
    assert len(found) <= MOST_RETURNS_WHAT, "\n".join(found)


@pytest.mark.parametrize("pattern", RETIRED)
def test_retired_term_is_not_used(pattern: str) -> None:
    files = [*python_files(*PACKAGES), ROOT / "README.md"]
    found = [
        f"{place} {line.strip()}"
        for path in [*files, *sorted((ROOT / "docs").glob("*.md"))]
        for place, text in prose(path)
        for line in text.splitlines()
        if re.search(pattern, line, re.I) and not INTERFACE.search(line)
    ]
    assert not found, f"say {RETIRED[pattern]!r} instead:\n" + "\n".join(found)


def test_assignments_of_every_kind_are_read_for_empty_names() -> None:
    source = """
def look(one, *found, kept=1, **mine):
    said: int = 1
    for taken, (one, *found) in []: ...
    with open(kept) as mine: ...
    [said for said in kept if (taken := said)]
    lambda one: found
"""
    names = sorted(name for _, name in assigned_names(ast.parse(source)))
    assert names == sorted(
        "look one found kept mine said taken one found mine said taken one".split()[1:]
    )


def test_variables_have_names_that_say_what_they_hold() -> None:
    places = empty_names()
    assert not places, "name the thing (document, checkpoint, column): " + repr(places)
