"""Runs Python code under strace, which records its system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.runs.start import child_environment

_TIMEOUT_SECONDS = 120

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is missing; get it with: apt-get install strace"
)


def trace(
    folder: Path,
    options: list[str],
    code: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, subprocess.CompletedProcess[str]]:
    """Runs code and returns the traced calls and the completed process.

    Skips the test if processes may not be traced.

    Args:
        folder: The folder for the trace.
        options: Options of strace, in addition to -f.
        code: A script; `sys.argv[1:]` holds the arguments.
        *arguments: Strings, numbers, paths.
        environment: Replaces the environment of a run.
    """
    calls = folder / "trace"
    result = subprocess.run(
        ["strace", "-f", *options, "-o", str(calls), sys.executable, "-c", code]
        + [str(argument) for argument in arguments],
        env=dict(environment) if environment is not None else child_environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if "ptrace" in result.stderr.lower():
        pytest.skip(f"strace may not trace here: {result.stderr.strip()}")
    return calls.read_text(), result
