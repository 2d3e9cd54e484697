"""Hides log lines of C++ libraries on stderr by severity, where the libraries ignore the log level.

A process of its own filters: a library that aborts the process that loads it takes every thread
with it, but its last words still arrive.

`python core/training/stderr.py LEVEL CUDA` copies stdin to stdout without the hidden lines. That
process loads this file by its path, so the file imports nothing of `core`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SEVERITIES = b"IWE"
# Of absl ("E0000 00:00:1795576362.004190    8592 port.cc:153] ") and of TensorFlow before 2.17
# ("2024-05-01 10:00:00.123456: E external/local_xla/xla/stream.cc:92] ").
_LINE = re.compile(
    rb"(?:([IWE])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: ([IWE]) )\S+:\d+\] "
)
_NOTICE = b"WARNING: All log messages before absl::InitializeLog() is called"
_CUDA = re.compile(rb"cuda|cudnn|cufft|cublas|cuInit|tensorrt", re.IGNORECASE)
_STDERR = 2
_DRAIN_SECONDS = 2.0


def is_hidden(line: bytes, level: int, *, cuda: bool) -> bool:
    """Tells whether a line is a library's log message that should not be shown.

    Args:
        line: A line of stderr.
        level: The severity below which messages are hidden: 0 none, 1 information, 2 warnings too,
            3 errors too. Fatal errors are always shown.
        cuda: Whether this machine may have CUDA. If not, errors about CUDA are hidden from level 1.
    """
    if level < 1:
        return False
    found = _LINE.match(line)
    if found is None:
        return line.startswith(_NOTICE)
    severity = _SEVERITIES.index(found[1] or found[2])
    return severity < level or (not cuda and _CUDA.search(line) is not None)


@contextmanager
def filtered_stderr(level: int, *, cuda: bool) -> Iterator[None]:
    """Filters what this process writes to its stderr, with `is_hidden`, while the context is open.

    Where stderr is closed, or no process can be started, nothing is filtered.
    """
    process = _start_filter(level, cuda) if level > 0 else None
    if process is None or process.stdin is None:
        yield
        return
    own = os.dup(_STDERR)
    try:
        os.dup2(process.stdin.fileno(), _STDERR)
        process.stdin.close()
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(own, _STDERR)
        os.close(own)
        # A process that was started meanwhile may hold the pipe open; the filter then goes on.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DRAIN_SECONDS)


def _start_filter(level: int, cuda: bool) -> subprocess.Popen[bytes] | None:
    try:
        os.fstat(_STDERR)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(level), str(int(cuda))],
            stdin=subprocess.PIPE,
            stdout=_STDERR,
            stderr=_STDERR,
            bufsize=0,
            # Ctrl+C ends the process that is filtered, which ends this one.
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None


def _filter(level: int, *, cuda: bool) -> None:
    """Copies stdin to stdout, line by line, without the hidden lines."""
    for line in sys.stdin.buffer:
        if not is_hidden(line, level, cuda=cuda):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        _filter(int(sys.argv[1]), cuda=sys.argv[2] == "1")
