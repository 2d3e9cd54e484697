"""Looks at files of text in a process of its own, with limits on memory and time.

The page previews what somebody has just uploaded. Whatever a file does to its reader, the app
lives on. Run as a module, this is that process: JSON on standard input and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.config import CorpusConfig
from core.corpus.reading import CorpusPreview, preview
from core.errors import ConfigError, CorpusError, StudioError
from core.workspace import Workspace

MEMORY_BYTES = 1_500_000_000
TIMEOUT_SECONDS = 90.0
# Counting ends here, and what was counted is "at least".
_SCAN_SECONDS = 10.0
_SAMPLE_CHARACTERS = 2000
_ROOT = Path(__file__).parents[2]
# Nothing else of the app's environment is any of a reader's business.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "SYSTEMROOT", "PYTHONUTF8")
_FRUGAL = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def preview_apart(
    config: CorpusConfig,
    workspace: Workspace,
    documents: int = 5,
    *,
    memory_bytes: int = MEMORY_BYTES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CorpusPreview:
    """Looks at a corpus as `preview` does; at files in a process of its own.

    Args:
        config: What to read.
        workspace: In whose cache that is kept which can be found again.
        documents: How many documents to show; of long ones the beginning.
        memory_bytes: What the process may take, besides what it starts with.
        timeout_seconds: After so long it is ended.

    Raises:
        ConfigError: A path or column is missing or ambiguous.
        CorpusError: There is no text, it can't be read, or reading takes too much.
    """
    if config.source != "files":
        return preview(config, workspace, documents)
    question = {
        "config": config.model_dump(mode="json"), "root": str(workspace.root),
        "documents": documents, "memory_bytes": memory_bytes,
    }  # fmt: skip
    try:
        process = subprocess.run(
            [sys.executable, "-m", "core.corpus.previewing"],
            input=json.dumps(question).encode(), capture_output=True, env=_environment(),
            timeout=timeout_seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CorpusError(
            "The preview takes too long", expected=f"an answer within {timeout_seconds:.0f} s",
            received="none", field="path",
            fix="see whether the file is what you expect; a run has no such limit",
        ) from error  # fmt: skip
    return _answer(process)


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    paths = [str(_ROOT), *filter(None, [passed.get("PYTHONPATH")])]
    return {**passed, **_FRUGAL, "PYTHONPATH": os.pathsep.join(paths)}


def _answer(process: subprocess.CompletedProcess[bytes]) -> CorpusPreview:
    try:
        answer: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        last = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CorpusError(
            "The preview broke off", expected="a file that can be read",
            received=last[0][:200] if last else f"the process ended with {process.returncode}",
            fix="see whether the file is what you expect, or leave it out", field="path",
        ) from None  # fmt: skip
    if "error" in answer:
        kind = ConfigError if answer["is_config"] else CorpusError
        raise kind(**answer["error"])
    return CorpusPreview(**answer["preview"])


def _main() -> None:
    question = json.load(sys.stdin)
    _limit_memory(question["memory_bytes"])
    try:
        seen = preview(
            CorpusConfig.parse(question["config"]), Workspace(Path(question["root"])),
            question["documents"], scan_seconds=_SCAN_SECONDS,
        )  # fmt: skip
        samples = [text[:_SAMPLE_CHARACTERS] for text in seen.samples]
        answer: dict[str, Any] = {"preview": {**asdict(seen), "samples": samples}}
    except StudioError as error:
        answer = _described(error)
    except MemoryError:
        answer = _described(
            CorpusError(
                "The preview takes too much memory",
                expected=f"at most {question['memory_bytes'] // 1_000_000:,} MB",
                received="more",
                fix="see whether the file is what you expect; a smaller max_document_mb says which "
                "document it is",
                field="path",
            )
        )
    print(json.dumps(answer))


def _described(error: StudioError) -> dict[str, Any]:
    names = ("problem", "expected", "received", "fix", "field")
    described = {name: getattr(error, name) for name in names}
    return {"error": described, "is_config": isinstance(error, ConfigError)}


def _limit_memory(memory_bytes: int) -> None:
    """Limits this process's memory, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _main()
