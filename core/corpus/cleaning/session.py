"""Cleans one sample again and again in a child process (this module), while options change."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import orjson

from core.config.base import fingerprint_of
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.cleaning.preview import CleanedDocument, CleaningPreview, clean_sample
from core.corpus.cleaning.report import first_difference
from core.corpus.isolation import (
    MEMORY_BYTES,
    child_environment,
    describe_error,
    explain_error,
    limit_memory,
    raise_error,
)
from core.corpus.previewing import sample_apart
from core.corpus.sampling import Limits
from core.errors import CorpusError, StudioError
from core.processes.children import module_command
from core.workspace.workspace import Workspace

ANSWER_SECONDS = 30.0
_IDLE_SECONDS = 600.0
_SAMPLE_BYTES = 4 << 20
_SAMPLE_SECONDS = 10.0
_MOST_OPEN = 3
_SHOWN_CHARACTERS = 1500
_SHOWN_BEFORE_CHANGE = 200


class CleaningSession:
    """A child process that holds a sample; it ends by itself after some minutes without use.

    Args:
        texts: The documents of the sample.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None

    def preview(
        self, config: CleanConfig, timeout_seconds: float = ANSWER_SECONDS
    ) -> CleaningPreview:
        """Cleans the sample; its documents are shortened to the place of the first change.

        Raises:
            ConfigError: An option is wrong.
            CorpusError: The process failed, or took too long.
        """
        with self._lock:
            answer = self._ask(config.model_dump(mode="json"), timeout_seconds)
        raise_error(answer)
        documents = [CleanedDocument(**document) for document in answer["documents"]]
        return CleaningPreview(documents, answer["summary"])

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def _ask(self, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        is_new = self._process is None or self._process.poll() is not None
        if is_new:
            self._end()
            self._process = self._start()
        process = self._process
        assert process
        late = threading.Timer(timeout_seconds, process.kill)
        late.start()
        try:
            assert process.stdin and process.stdout
            if is_new:
                process.stdin.write(orjson.dumps(self._texts) + b"\n")
            process.stdin.write(orjson.dumps(question) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        finally:
            is_late = late.finished.is_set()
            late.cancel()
        if not line:
            self._end()
            raise _failed(timeout_seconds if is_late else None)
        self._wait()
        return dict(orjson.loads(line))

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            module_command("core.corpus.cleaning.session"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=child_environment(),
        )  # fmt: skip

    def _wait(self) -> None:
        """Ends the process after some minutes, unless it is used again."""
        if self._idle:
            self._idle.cancel()
        self._idle = threading.Timer(_IDLE_SECONDS, self.close)
        self._idle.daemon = True
        self._idle.start()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # The last bytes can't be written.
                if stream:
                    stream.close()


class SessionPool:
    """The sessions of the corpora that were previewed last.

    Args:
        workspace: Workspace of the corpora.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._sessions: OrderedDict[str, CleaningSession] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends the processes of all sessions."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.close()

    def key_of(self, corpus: CorpusConfig) -> str:
        """Returns the key of a corpus's session."""
        return fingerprint_of(corpus.model_dump(mode="json"))

    def open(self, corpus: CorpusConfig, documents: int) -> str:
        """Reads a sample anew, and returns the key of its session.

        Raises:
            ConfigError, CorpusError: The corpus can't be read.
        """
        limits = Limits(_SAMPLE_BYTES, _SAMPLE_SECONDS, documents, is_even=True)
        samples = sample_apart(corpus, self._workspace, limits)
        key = self.key_of(corpus)
        with self._lock:
            before = self._sessions.pop(key, None)
            self._sessions[key] = CleaningSession(
                [text for sample in samples for text in sample.texts]
            )
            is_full = len(self._sessions) > _MOST_OPEN
            closed = [self._sessions.popitem(last=False)[1]] if is_full else []
        for session in filter(None, [before, *closed]):
            session.close()
        return key

    def preview(self, key: str, config: CleanConfig) -> CleaningPreview:
        """Cleans the sample of a session; raises as `CleaningSession.preview`."""
        with self._lock:
            session = self._sessions.get(key)
            if session:
                self._sessions.move_to_end(key)
        if session is None:
            raise CorpusError(
                "The sample of the preview is gone",
                expected="a sample that was read since the web app started",
                fix="preview again",
            )
        return session.preview(config)


def _failed(seconds: float | None) -> CorpusError:
    return CorpusError(
        "The preview of cleaning took too long" if seconds else "The preview of cleaning failed",
        expected=f"an answer within {seconds:.0f} s" if seconds else "an answer",
        fix="switch off the step that you switched on last; a run has no such limit",
    )


def shorten_document(document: CleanedDocument) -> CleanedDocument:
    """Cuts the texts to what is around the first change."""
    is_changed = document.after and document.after != document.before
    change = first_difference(document.before, document.after) if is_changed else 0
    start = max(0, change - _SHOWN_BEFORE_CHANGE)
    return replace(document, before=_cut(document.before, start), after=_cut(document.after, start))


def _cut(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN_CHARACTERS]
    return (
        ("…" if start and shown else "") + shown + ("…" if len(text) > start + len(shown) else "")
    )


def _answer(texts: list[str], question: dict[str, Any]) -> dict[str, Any]:
    try:
        seen = clean_sample(CleanConfig.parse(question), texts)
    except (StudioError, MemoryError) as error:
        return describe_error(explain_error(error, MEMORY_BYTES))
    documents = [asdict(shorten_document(document)) for document in seen.documents]
    return {"documents": documents, "summary": seen.summary}


def _main() -> None:
    limit_memory(MEMORY_BYTES)
    texts = orjson.loads(sys.stdin.buffer.readline())
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(orjson.dumps(_answer(texts, orjson.loads(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
