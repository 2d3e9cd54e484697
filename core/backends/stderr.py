"""Filters C++ log lines on stderr that ignore the configured log level.

A separate process survives an abort of this one. It runs this file by path: import nothing of
`core`.
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
# Prefixes of absl ("E0000 00:00:1795576362.004190 8592 port.cc:153] ") and of TensorFlow before
# 2.17 ("2024-05-01 10:00:00.123456: E ").
_LINE = re.compile(
    rb"(?:([IWE])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: ([IWE]) )\S+:\d+\] "
)
_NOTICE = b"WARNING: All log messages before absl::InitializeLog() is called"
_CUDA = re.compile(rb"cuda|cudnn|cufft|cublas|cuInit|tensorrt", re.IGNORECASE)
_STDERR = 2
_DRAIN_SECONDS = 2.0


def is_hidden(line: bytes, level: int, *, cuda: bool) -> bool:
    """Returns whether to hide a message: below severity `level`, or about missing CUDA."""
    if level < 1:
        return False
    match = _LINE.match(line)
    if match is None:
        return line.startswith(_NOTICE)
    severity = _SEVERITIES.index(match[1] or match[2])
    return severity < level or (not cuda and _CUDA.search(line) is not None)


@contextmanager
def filtered_stderr(level: int, *, cuda: bool) -> Iterator[None]:
    """Filters this process's stderr, if possible."""
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
        # A child process may hold the pipe open; the filter then keeps running.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DRAIN_SECONDS)


def _start_filter(level: int, cuda: bool) -> subprocess.Popen[bytes] | None:
    # The filter itself runs this file without this program.
    from core.processes.children import script_command

    try:
        os.fstat(_STDERR)
        return subprocess.Popen(
            script_command(__file__, str(level), str(int(cuda))),
            stdin=subprocess.PIPE,
            stdout=_STDERR,
            stderr=_STDERR,
            bufsize=0,
            # Ctrl+C must not end the filter early.
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None


def _filter(level: int, *, cuda: bool) -> None:
    for line in sys.stdin.buffer:
        if not is_hidden(line, level, cuda=cuda):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        _filter(int(sys.argv[1]), cuda=sys.argv[2] == "1")
