"""Writes and reads a run's event log and stop requests.

Only the run appends; gapless numbers make repeated reading harmless.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from core.errors import RunError
from core.foreign_files import LARGEST_EXACT, parse_bounded_json
from core.messages.redaction import redact_values
from core.messages.system_errors import suppressed_if_full
from core.records.kinds import EVENTS, is_valid
from core.workspace.places import check_not_moved, make_folder

EVENTS_FILE = "events.jsonl"
STOP_FILE = "stop.json"
# Reason of a stop at the limit of hours or money.
LIMIT = "limit"
SYNC_INTERVAL_SECONDS = 0.5
_CLOSING_PATIENCE_SECONDS = 600.0
_TAIL_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 32 << 20

StopMode = Literal["save", "abort"]


class RunStopped(Exception):
    """A stop was requested."""

    def __init__(self, mode: StopMode) -> None:
        self.mode = mode
        super().__init__(mode)


class EventLog:
    """Appends events, in memory while the disk is full."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._number = _mend_tail(path)
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closed = False
        self._unwritten = b""
        self._syncer = threading.Thread(target=self._sync_forever, daemon=True)
        self._syncer.start()

    def append(self, kind: str, **fields: Any) -> int:
        """Writes an event of a kind of `EVENTS`; returns its number."""
        if kind not in EVENTS:
            raise ValueError(f"expected a kind of core/records/kinds.py, not {kind}")
        return self._append(kind, time.time(), fields)

    def append_copy(self, event: Mapping[str, Any]) -> int:
        """Copies another log's event under a new number."""
        fields = {name: value for name, value in event.items() if name not in ("n", "t", "kind")}
        return self._append(event["kind"], event["t"], fields)

    def _append(self, kind: str, seconds: float, fields: Mapping[str, Any]) -> int:
        with self._lock:
            self._number += 1
            event = {"n": self._number, "t": round(seconds, 3), "kind": kind}
            event |= redact_values(fields)
            line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
            self._unwritten += line.encode("utf-8", "replace") + b"\n"
            self._write()
            self._dirty.set()
            return self._number

    def close(self) -> None:
        """Writes and syncs all events; raises OSError."""
        deadline = time.monotonic() + _CLOSING_PATIENCE_SECONDS
        while not self._close(give_up=time.monotonic() > deadline):
            time.sleep(SYNC_INTERVAL_SECONDS)
        self._dirty.set()

    def _close(self, *, give_up: bool) -> bool:
        with self._lock:
            if self._closed:
                return True
            self._write()
            if self._unwritten and not give_up:
                return False
            self._closed = True
            with self._file:
                os.fsync(self._file.fileno())
                if self._unwritten:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._file.name))
            return True

    def _write(self) -> None:
        with suppressed_if_full():
            while self._unwritten:
                written = self._file.write(self._unwritten)
                self._unwritten = self._unwritten[written or 0 :]

    def _sync_forever(self) -> None:
        while True:
            self._dirty.wait()
            with self._lock:
                if self._closed:
                    return
                self._dirty.clear()
                self._write()
                if self._unwritten:
                    self._dirty.set()
                descriptor = os.dup(self._file.fileno())
            try:
                with suppressed_if_full():
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            time.sleep(SYNC_INTERVAL_SECONDS)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether host or device memory ran out."""
    # JAX says it in the message, TensorFlow in the exception's name.
    description = f"{type(error).__name__} {error}"
    return isinstance(error, MemoryError) or any(
        word in description for word in ("RESOURCE_EXHAUSTED", "ResourceExhaustedError")
    )


def read_events(
    path: Path, offset: int = 0, most_bytes: int = -1
) -> tuple[list[dict[str, Any]], int]:
    """Reads complete lines; returns events and the next byte offset.

    Args:
        most_bytes: About how much to read, but at least one line; -1: everything.
    """
    if not path.exists():
        return [], offset
    with _opened(path) as file:
        file.seek(offset)
        data = file.read(most_bytes)
        if most_bytes >= 0 and b"\n" not in data:
            data += file.readline(_LONGEST_LINE_BYTES)
            if len(data) > _LONGEST_LINE_BYTES:
                raise _not_a_log(path, f"a line of more than {_LONGEST_LINE_BYTES:,} bytes")
    end = data.rfind(b"\n") + 1
    events = [event for line in data[:end].splitlines() if (event := _parse(line))]
    return events, offset + end


def iterate_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yields all events, without holding a long log in memory."""
    offset, end = -1, 0
    while end > offset:
        offset = end
        events, end = read_events(path, offset, _PIECE_BYTES)
        yield from events


def read_last_events(path: Path) -> list[dict[str, Any]]:
    """Returns the last 64 KiB of events, at least one."""
    if not path.exists():
        return []
    with _opened(path) as file:
        _, data = _read_tail(file)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [event for line in lines if (event := _parse(line))]


def read_events_of(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yields the events of one kind, without parsing others."""
    if not path.exists():
        return
    mark = f'"kind":"{kind}"'.encode()
    with _opened(path) as file:
        for line in file:
            if mark in line and (event := _parse(line)) and event["kind"] == kind:
                yield event


def read_notes(path: Path) -> list[str]:
    return [str(event["message"]) for event in read_events_of(path, "note") if "message" in event]


def read_phases(path: Path) -> list[dict[str, Any]]:
    """Returns the events that report a phase of a run on another machine."""
    events = read_events_of(path, "remote")
    return [event for event in events if isinstance(event.get("phase"), str)]


def read_by_step(path: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the fields and the time of the newest event of each step, by rising steps.

    Those that break the schema of their kind, as in a copied folder, are left out.
    """
    event_of_step: dict[int, dict[str, Any]] = {}
    for event in read_events_of(path, kind):
        step = event.get("step")
        if type(step) is int and is_valid(event):
            fields = {name: value for name, value in event.items() if name not in ("n", "kind")}
            # A resumed run repeats later steps.
            event_of_step = {
                earlier: known for earlier, known in event_of_step.items() if earlier < step
            }
            event_of_step[step] = {**fields, "time": fields.pop("t")}
    return list(event_of_step.values())


def read_resolved(path: Path) -> dict[str, Any]:
    """Returns the newest attempt's values for `auto` settings."""
    settings = None
    for event in read_events_of(path, "resolved"):
        settings = event.get("settings")
    return settings if isinstance(settings, dict) else {}


def read_attempts(path: Path) -> list[tuple[float, float]]:
    """Returns each attempt's first and last event times, in unix seconds."""
    if not path.exists():
        return []
    heard: list[tuple[bytes, bytes]] = []
    with _opened(path) as file:
        for line in file:
            if b'"kind":"started"' in line:
                heard.append((line, line))
            elif heard and line.endswith(b"\n"):
                heard[-1] = (heard[-1][0], line)
    events = [(_parse(first), _parse(last)) for first, last in heard]
    return [(first["t"], last["t"]) for first, last in events if first and last]


class Reporter:
    """Reports nothing; base class of a stage's reporter."""

    folder: Path | None = None

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        """Reports `done` of `total`; `eta_seconds` overrides extrapolation."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Reports metrics measured at a step."""

    def note(self, message: str, **fields: Any) -> None:
        """Logs a message."""

    def warn(self, message: str, **fields: Any) -> None:
        """Reports a problem to look at."""

    def event(self, kind: str, **fields: Any) -> None:
        """Reports an event of another kind."""

    def stop_requested(self) -> StopMode | None:
        """Returns the requested stop mode."""
        return None

    def is_preempted(self) -> bool:
        """Returns whether the run will be requeued."""
        return False

    def preempt(self) -> None:
        """Stops the run for requeueing, as SIGTERM does."""

    def raise_if_stopped(self) -> None:
        """Raises RunStopped if a stop was requested."""
        if mode := self.stop_requested():
            raise RunStopped(mode)


class FolderReporter(Reporter):
    """Reports into a run folder.

    Args:
        echo: Stream for readable lines; True: standard output, without progress.
    """

    def __init__(
        self, folder: Path, *, echo: bool | TextIO | None = True, min_progress_seconds: float = 0.5
    ) -> None:
        self.folder = folder
        self._log = EventLog(folder / EVENTS_FILE)
        self._stop_file = folder / STOP_FILE
        self._echo = echo
        self._min_progress_seconds = min_progress_seconds
        self._last_progress = 0.0
        self._held: dict[str, Any] | None = None
        # Uploads report from their own thread.
        self._holding = threading.Lock()
        self._next_stop_check = 0.0
        self._stop: StopMode | None = None
        self.preempted = False

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        now = time.monotonic()
        finished = total is not None and done >= total
        known = {} if eta_seconds is None else {"eta_seconds": round(eta_seconds, 1)}
        self._held = {"done": done, "total": total, "unit": unit, "note": note, **known}
        if now - self._last_progress < self._min_progress_seconds and not finished:
            return
        self._last_progress = now
        self._write_held()
        if self._echo is not True:
            self._print(f"{note or unit}: {done / total:.0%}" if total else note or unit)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._log.append("metrics", step=step, values=dict(values))
        self._print(f"step {step}  " + "  ".join(f"{k} {v:.5g}" for k, v in values.items()))

    def note(self, message: str, **fields: Any) -> None:
        self._log.append("note", message=message, **fields)
        self._print(message)

    def warn(self, message: str, **fields: Any) -> None:
        self._log.append("warning", message=message, **fields)
        self._print(f"warning: {message}")

    def event(self, kind: str, **fields: Any) -> None:
        self._write_held()
        self._log.append(kind, **fields)

    def _write_held(self) -> None:
        with self._holding:
            held, self._held = self._held, None
            if held is not None:
                self._log.append("progress", **held)

    def stop_requested(self) -> StopMode | None:
        now = time.monotonic()
        if self._stop != "abort" and now >= self._next_stop_check:
            self._next_stop_check = now + 0.2
            check_not_moved(self._stop_file)
            self._stop = read_stop(self._stop_file) or self._stop
        return self._stop

    def is_preempted(self) -> bool:
        # A user's stop overrides preemption: don't requeue.
        return self.preempted and read_stop(self._stop_file) is None

    def preempt(self) -> None:
        self.preempted = True
        self._stop = self._stop or "save"

    def close(self) -> None:
        self._log.close()

    def _print(self, line: str) -> None:
        if self._echo:
            with suppressed_if_full():
                stream = None if isinstance(self._echo, bool) else self._echo
                print(line, file=stream, flush=True)


def read_stop(path: Path) -> StopMode | None:
    """Reads a stop request; an unreadable, perhaps half-written, one counts as none."""
    mode = _read_stop_file(path).get("mode")
    return "save" if mode == "save" else "abort" if mode == "abort" else None


def read_stop_reason(path: Path) -> str:
    """Returns why a stop was requested, such as LIMIT; "" for a user's request or none."""
    return str(_read_stop_file(path).get("reason", ""))


def _read_stop_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = parse_bounded_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    number: Any = event.get("n")
    seconds: Any = event.get("t")
    is_event = (
        type(number) is int
        and 0 < number < LARGEST_EXACT
        and type(seconds) in (int, float)
        and abs(seconds) < LARGEST_EXACT  # Also rejects NaN.
        and isinstance(event.get("kind"), str)
    )
    if not is_event:
        return None
    return _without_surrogates(event) if b"\\u" in line else event


def _without_surrogates(event: dict[str, Any]) -> dict[str, Any]:
    """Replaces lone surrogates, which databases and browsers reject."""
    text = json.dumps(event, ensure_ascii=False)
    return dict(json.loads(text.encode("utf-8", "replace")))


def _opened(path: Path, mode: Literal["rb", "rb+"] = "rb") -> BinaryIO:
    """Opens a regular file, without blocking on pipes."""
    flags = os.O_RDWR if mode == "rb+" else os.O_RDONLY
    if not path.is_file():
        raise _not_a_log(path, "something other than a regular file")
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_log(path, "something other than a regular file")
    return os.fdopen(descriptor, mode)


def _not_a_log(path: Path, received: str) -> RunError:
    return RunError(
        f"{path} is not an event log",
        expected="a file with one event per line",
        received=received,
        fix="move the file aside; it was not written by this program",
    )


def _mend_tail(path: Path) -> int:
    """Truncates a torn line; returns the last number, or 0."""
    if not path.exists():
        return 0
    with _opened(path, "rb+") as file:
        start, tail = _read_tail(file)
        whole = tail.rfind(b"\n") + 1
        if not whole and len(tail) > _TAIL_BYTES:
            raise _not_a_log(path, f"{len(tail)} bytes without a line end")
        file.truncate(start + whole)
    return next((event["n"] for event in _backwards(tail[:whole])), 0)


def _read_tail(file: BinaryIO) -> tuple[int, bytes]:
    """Returns the last 64 KiB, or more for one event, and their offset."""
    size = file.seek(0, os.SEEK_END)
    length = _TAIL_BYTES
    while True:
        start = max(0, size - length)
        file.seek(start)
        data = file.read()
        whole = data[data.find(b"\n") + 1 : data.rfind(b"\n") + 1]
        if not start or next(_backwards(whole), None):
            return start, data
        length *= 2


def _backwards(data: bytes) -> Iterator[dict[str, Any]]:
    for line in reversed(data.splitlines()):
        if event := _parse(line):
            yield event
