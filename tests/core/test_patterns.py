"""Tests that no pattern takes quadratic time on a long text, which a stranger may send."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

import core
import ui
from tests.patterns import hard_inputs
from tests.thorough import THOROUGH

_CHARACTERS = 40_000 if THOROUGH else 3_000
# A quadratic pattern takes some hundred times as long as a linear one of this length does.
_MOST_TIMES_LINEAR = 60
# These see names of files only, of at most 255 bytes, or messages of a compiler.
_SHORT_TEXTS = ("core.corpus.split_names", "core.backends.")
_METHODS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")


def patterns_of(package: Any) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    """Yields a package's patterns with their place and the methods that they are used by."""
    found: dict[int, tuple[str, re.Pattern[Any]]] = {}
    text = ""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        spec = importlib.util.find_spec(module.name)
        source = spec.loader.get_source(module.name) if spec and spec.loader else ""
        text += source or ""
        yield from _inline(module.name, source or "")
        if "re.compile" not in (source or "") or module.name.endswith("__main__"):
            continue
        if module.name.startswith(_SHORT_TEXTS):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for one in _patterns_in(value):
                found[id(one)] = (f"{module.name}.{name}", one)
    for place, one in found.values():
        name = place.rpartition(".")[2]
        used = re.findall(rf"\b{re.escape(name)}(?:\[[^\]]*\])?\.({'|'.join(_METHODS)})\b", text)
        yield place, one, set(used) or {"search"}


def _inline(module: str, source: str) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "re"
            and node.func.attr in _METHODS
            and isinstance(node.args[0], ast.Constant)
        ):
            flags = [one for one in map(ast.unparse, node.args[1:]) if one.startswith("re.")]
            flags += [ast.unparse(one.value) for one in node.keywords if one.arg == "flags"]
            pattern = re.compile(node.args[0].value, eval(flags[0]) if flags else 0)
            yield f"{module}:{node.lineno}", pattern, {node.func.attr}


def _patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (dict, list, tuple, set, frozenset)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _patterns_in(one)


def seconds_of(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    started = time.process_time()
    if method == "sub":
        pattern.sub(text[:0], text)
    elif method == "finditer":
        deque(pattern.finditer(text), maxlen=0)
    else:
        getattr(pattern, method)(text)
    return time.process_time() - started


@pytest.mark.slow(20)
@pytest.mark.long
def test_no_pattern_takes_quadratic_time() -> None:
    linear, text = re.compile(r"[^x]y?"), "a" * _CHARACTERS
    limit = _MOST_TIMES_LINEAR * min(seconds_of(linear, "sub", text) for _ in range(20))
    slow = {}
    patterns = [*patterns_of(core), *patterns_of(ui)]
    assert len(patterns) > 100
    for place, pattern, methods in patterns:
        for one in hard_inputs(pattern, _CHARACTERS):
            hard = one.encode() if isinstance(pattern.pattern, bytes) else one
            for method in methods:
                # Another process may have slowed down one try, but hardly three.
                if all(seconds_of(pattern, method, hard) > limit for _ in range(3)):
                    slow[place] = f"{pattern.pattern}: {method} of {hard[:30]!r}"
            if place in slow:
                break
    assert slow == {}
