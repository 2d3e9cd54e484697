"""Limits of child processes that read untrusted files, and the errors that they report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.children import with_module_paths
from core.errors import ConfigError, CorpusError, StudioError

MEMORY_BYTES = 1_500_000_000
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
        expected=f"at most {memory_bytes // 1_000_000:,} MB", received="more", field="path",
        fix="check that the file is the right one; a smaller max_document_mb makes the error "
        "name the document",
    )  # fmt: skip


def describe_error(error: StudioError) -> dict[str, Any]:
    """Returns JSON for `raise_error`."""
    return {"error": error.to_dict(), "is_config": isinstance(error, ConfigError)}


def raise_error(answer: Mapping[str, Any]) -> None:
    """Raises the error of a child process, if its answer is one."""
    if "error" in answer:
        raise (ConfigError if answer["is_config"] else CorpusError)(**answer["error"])
