"""Limits of child processes that read untrusted files, and the errors that they report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from core.errors import ConfigError, CorpusError, StudioError
from core.messages.values import byte_count
from core.processes.children import module_command, with_module_paths

MEMORY_BYTES = 1_500_000_000
TIMEOUT_SECONDS = 90.0
# The rest of the environment is withheld.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "SYSTEMROOT", "PYTHONUTF8")
_FRUGAL = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def child_environment() -> dict[str, str]:
    """Returns the environment of a child process, without secrets."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return with_module_paths({**passed, **_FRUGAL})


def limit_memory(memory_bytes: int) -> None:
    """Limits the memory of this process, above what it has now."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def explain_error(error: StudioError | MemoryError, memory_bytes: int) -> StudioError:
    """Returns an error that says what to do if the memory was too small."""
    if isinstance(error, StudioError):
        return error
    return CorpusError(
        "The preview took too much memory",
        expected=f"at most {byte_count(memory_bytes)}", field="path",
        fix="check that the file is the right one; a smaller ⟬max_document_mb⟭ makes the error "
        "name the document",
    )  # fmt: skip


def describe_error(error: StudioError) -> dict[str, Any]:
    """Returns JSON for `raise_error`."""
    return {"error": error.to_dict(), "is_config": isinstance(error, ConfigError)}


def raise_error(answer: Mapping[str, Any]) -> None:
    """Raises the error of a child process, if its answer is one."""
    if "error" in answer:
        raise (ConfigError if answer["is_config"] else CorpusError)(**answer["error"])


def ask_child(
    module: str, question: Mapping[str, Any], timeout_seconds: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Asks a module that reads untrusted files, in a process of its own.

    Args:
        module: Reads JSON from its standard input, and writes JSON.

    Raises:
        CorpusError: The process crashed or took too long.
    """
    try:
        process = subprocess.run(
            module_command(module),
            input=orjson.dumps(question), capture_output=True, env=child_environment(),
            timeout=timeout_seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CorpusError(
            "The preview took too long", expected=f"an answer within {timeout_seconds:.0f} s",
            field="path",
            fix="check that the file is the right one; a run has no such limit",
        ) from error  # fmt: skip
    return _answer_of(process)


def _answer_of(process: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    try:
        return dict(orjson.loads(process.stdout))
    except ValueError:
        last = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CorpusError(
            "The preview failed", expected="a file that can be read",
            received=last[0][:200] if last else f"the exit code {process.returncode} of its "
            "process",
            fix="check that the file is the right one, or exclude it", field="path",
        ) from None  # fmt: skip


def answer_parent(read: Callable[[dict[str, Any]], Any]) -> None:
    """Answers `ask_child` with a dataclass as `preview`, or with an error.

    Args:
        read: Takes the question; may raise StudioError.
    """
    question = orjson.loads(sys.stdin.buffer.read())
    limit_memory(MEMORY_BYTES)
    try:
        answer: dict[str, Any] = {"preview": asdict(read(question))}
    except (StudioError, MemoryError) as error:
        answer = describe_error(explain_error(error, MEMORY_BYTES))
    sys.stdout.buffer.write(orjson.dumps(answer))
