"""The process that reads inputs: `python -m tests.fuzz.worker BASE`.

It imports the readers, then forks a child that reads one input after the other. If the child dies
or takes too long, another one is forked: an input that crashes the process costs milliseconds and
is identified by its answer. Requests and answers are lines of JSON on stdin and stdout.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import psutil

from tests.fuzz.sandbox import SECRET, Sandbox, Watch

# In addition to the memory mapped by the imports: a reader that needs more gets a MemoryError.
_ADDRESS_SPACE_BYTES = 2 << 30
# Libraries keep freed memory: a process that has grown by this much is replaced.
_KEPT_BYTES = 256 << 20
_FILE_BYTES = 1 << 30
# The limit of an input's peak of resident memory, in addition to that before the input.
PEAK_BYTES = 600 << 20
CPU_SECONDS = 5.0
# The limits of the total time, however busy the machine is, and of sleep, such as on a pipe.
WALL_SECONDS = 60.0
SLEEP_SECONDS = 5.0
# The targets that wait for the network.
_MAY_SLEEP = ("hub",)
_LONGEST_MESSAGE = 20_000


def main(arguments: list[str] | None = None) -> int:
    """Answers requests until stdin ends."""
    (base,) = sys.argv[1:] if arguments is None else arguments
    sandbox = Sandbox(Path(base))
    requests = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  Open as long as the process runs.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Output of libraries must not mix with the answers.
    hub, trap = (_listening() for _ in range(2))
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{hub.getsockname()[1]}"
    os.chdir(sandbox.cwd)
    from tests.fuzz import targets

    targets.prepare(hub)
    answers.write(
        json.dumps({"trap": f"http://127.0.0.1:{trap.getsockname()[1]}"}).encode() + b"\n"
    )
    child: _Child | None = None
    while line := requests.readline():
        if child and child.is_full():
            child.end()
            child = None
        child = child or _Child(sandbox, trap)
        answer = child.ask(line)
        if answer is None:
            answer = child.end()
            child = None
        answers.write(answer + b"\n")
    if child:
        child.end()
    return 0


def _listening() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(64)
    return found


class _Child:
    """A forked process that reads inputs."""

    def __init__(self, sandbox: Sandbox, trap: socket.socket) -> None:
        self._socket, theirs = socket.socketpair()
        self._late = False
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs, sandbox, trap)
        theirs.close()
        self._stream = self._socket.makefile("rb")
        self._mapped = _mapped(self._pid)

    def is_full(self) -> bool:
        """Checks if libraries keep so much memory that the next input would lack it."""
        try:
            return _mapped(self._pid) > self._mapped + _KEPT_BYTES
        except OSError:  # It has ended.
            return False

    def ask(self, line: bytes) -> bytes | None:
        """Returns the answer to a request; None if the child died or was too slow."""
        try:
            self._socket.sendall(line)
        except OSError:
            return None
        may_sleep = json.loads(line)["target"] in _MAY_SLEEP
        self._late = not self._is_ready(WALL_SECONDS if may_sleep else SLEEP_SECONDS)
        answer = b"" if self._late else self._stream.readline()
        return answer.rstrip(b"\n") or None

    def _is_ready(self, sleep_seconds: float) -> bool:
        """Waits for an answer as long as the child computes, or sleeps for a short time."""
        started = awake = time.monotonic()
        known = ""
        while not select.select([self._socket], [], [], 0.25)[0]:
            now, used, sleeps = time.monotonic(), *_activity(self._pid)
            if used != known or not sleeps:
                known, awake = used, now
            if now - awake > sleep_seconds or now - started > WALL_SECONDS:
                return False
        return True

    def end(self) -> bytes:
        """Ends the child, and returns its exit as the answer to the request."""
        self._stream.close()
        self._socket.close()
        if self._late:
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        kind = (
            "no answer: it waits, or computes without end"
            if self._late
            else f"the process died: {ending}"
        )
        return json.dumps({"verdict": "failed", "kind": kind, "detail": kind}).encode()


def _activity(pid: int) -> tuple[str, bool]:
    """Returns the CPU times of a process and its children, and True if all of them sleep."""
    used: list[str] = []
    states = set()
    for one in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]:
        with suppress(OSError):  # A child may have ended meanwhile.
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            used += [str(one), fields[11], fields[12]]
            states.add(fields[0])
    return " ".join(used), not states & {"R", "Z"}


def _serve(requests: socket.socket, sandbox: Sandbox, trap: socket.socket) -> NoReturn:
    """Reads inputs until the parent closes the socket."""
    try:
        _limit()
        trap.setblocking(False)
        watch = Watch(sandbox.canary)
        before = sandbox.outside()
        stream: BinaryIO = requests.makefile("rb")
        while line := stream.readline():
            request = json.loads(line)
            answer = _read_one(request, sandbox)
            problems = list(_strayed(sandbox, before, watch, trap))
            if problems and answer["verdict"] != "failed":
                answer |= {"verdict": "failed", "kind": problems[0], "detail": "\n".join(problems)}
            requests.sendall(json.dumps(answer).encode() + b"\n")
            before = sandbox.outside() if problems else before
    except BaseException:  # noqa: BLE001  The parent sees only that the process is gone.
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _limit() -> None:
    space = _mapped(os.getpid()) + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))


def _read_one(request: dict[str, Any], sandbox: Sandbox) -> dict[str, Any]:
    from core.errors import StudioError
    from tests.fuzz import targets

    target: Callable[..., Any] = targets.TARGETS[request["target"]]
    _reset_peak()
    rss, started = _resident(), time.process_time()
    answer: dict[str, Any]
    try:
        result = target(sandbox.input, sandbox.workspace, **request["arguments"])
        answer = {"verdict": "read", "kind": "", "detail": ""}
        if _holds_secret(result):
            kind = "the result holds what lies outside of the input"
            answer = {"verdict": "failed", "kind": kind, "detail": kind}
    except StudioError as error:
        answer = _check_error(error)
    except BaseException as error:  # noqa: BLE001  A reader may raise only a StudioError.
        answer = _failed(error)
    seconds, peak = time.process_time() - started, _peak() - rss
    limits = {
        f"more than {CPU_SECONDS:g} s of processor time": seconds > CPU_SECONDS,
        f"a peak of more than {PEAK_BYTES >> 20} MiB": peak > PEAK_BYTES,
    }
    for kind, is_exceeded in limits.items():
        if is_exceeded and answer["verdict"] != "failed":
            detail = f"{seconds:.1f} s, {peak >> 20} MiB; ended with: {answer['detail'][:300]}"
            answer = {"verdict": "failed", "kind": kind, "detail": detail}
    return {**answer, "seconds": seconds, "peak": peak}


def _check_error(error: Any) -> dict[str, Any]:
    """Checks the text of a StudioError, which is printed, stored and shown."""
    text = str(error)
    problem = ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        problem = "an error's text that isn't UTF-8"
    if not error.problem or not (error.fix or error.expected):
        problem = "an error that doesn't say what failed, and what to do"
    elif len(text) > _LONGEST_MESSAGE:
        problem = f"an error of more than {_LONGEST_MESSAGE:,} characters"
    elif SECRET in text:
        problem = "an error that holds what lies outside of the input"
    if problem:
        frames = traceback.format_exception(error)
        return {"verdict": "failed", "kind": problem, "detail": ascii("".join(frames)[-3000:])}
    return {"verdict": "refused", "kind": type(error).__name__, "detail": text[:300]}


def _failed(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/core/" in frame.filename] or list(frames)[-1:]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
    said = "".join(traceback.format_exception(error))
    detail = said if len(said) < 6000 else f"{said[:3000]}\n...\n{said[-3000:]}"
    return {
        "verdict": "failed",
        "kind": f"{type(error).__name__} in {place}",
        "detail": detail.encode("utf-8", "backslashreplace").decode(),
    }


def _strayed(
    sandbox: Sandbox, before: dict[str, Any], watch: Watch, trap: socket.socket
) -> Iterator[str]:
    """Yields the violations of a reader outside of its folders."""
    if names := watch.opened():
        yield f"it opened files outside of the input: {', '.join(names)}"
    after = sandbox.outside()
    changed = [
        path.removeprefix(f"{sandbox.base}/")
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]
    if changed:
        yield f"it changed files outside of the input: {', '.join(changed[:5])}"
    try:
        connection, _ = trap.accept()
        connection.close()
        yield "it connected to an address that the input names"
    except BlockingIOError:
        pass


def _holds_secret(result: Any) -> bool:
    if isinstance(result, str):
        return SECRET in result
    if isinstance(result, (bytes, memoryview)):
        return SECRET.encode() in bytes(result)
    if isinstance(result, dict):
        return any(map(_holds_secret, [*result.keys(), *result.values()]))
    if isinstance(result, (list, tuple)):
        return any(map(_holds_secret, result))
    if hasattr(result, "tobytes"):
        return SECRET.encode() in result.tobytes()
    return False


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _mapped(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
