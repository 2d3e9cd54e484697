"""Runs code on one engine or the other, in a process of its own: Keras keeps its first backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ENGINES = ("tensorflow", "jax")
_ROOT = Path(__file__).parent.parent
_TIMEOUT_SECONDS = 300


def run_on(engine: str, code: str, *arguments: object) -> Any:
    """Runs Python code with Keras on an engine.

    Args:
        engine: tensorflow or jax.
        code: Indentation aside, a script; `sys.argv[1:]` holds the arguments. What it prints last,
            on one line, is JSON.
        *arguments: Strings, numbers, paths.

    Returns:
        What it printed last, parsed; None where it printed nothing.
    """
    environment = {
        **os.environ,
        "KERAS_BACKEND": engine,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(_ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else None
