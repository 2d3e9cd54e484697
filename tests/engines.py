"""Runs code on a backend in its own process, since Keras keeps its first backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests import child_processes

ENGINES = ("tensorflow", "jax")
# The backends of tests that take long; the other one belongs to `make test-thorough`.
OFTEN = ("tensorflow", pytest.param("jax", marks=pytest.mark.thorough))
_TIMEOUT_SECONDS = 900


def run_on(engine: str, code: str, *arguments: object) -> Any:
    """Runs Python code with Keras on a backend.

    Args:
        engine: tensorflow or jax.
        code: A script, which may be indented; `sys.argv[1:]` holds the arguments. Its last line of
            output is JSON.
        *arguments: Strings, numbers, paths.

    Returns:
        The parsed last line of output; None if there was no output.
    """
    child = child_processes.start(engine, textwrap.dedent(code), *arguments)
    ended = child.wait(_TIMEOUT_SECONDS)
    assert ended == 0, child.errors[-4000:]
    return _last_word(child.output)


def run_anew(engine: str, code: str, *arguments: object) -> Any:
    """Runs code as `run_on` does, but in a fresh interpreter, for tests of imports."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=child_processes.ROOT,
        env={**os.environ, "KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return _last_word(done.stdout)


def _last_word(output: str) -> Any:
    lines = output.splitlines()
    return json.loads(lines[-1]) if lines else None
