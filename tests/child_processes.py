"""Processes with a backend already imported: they are forked from a server process.

Importing a backend takes seconds of processor time, and the tests need it in dozens of processes.
`start` is for tests of code that runs in a process, not of how a process starts: commands and the
web app's runs are started as users start them.

For each backend one server process imports it and waits for orders: lines of JSON on its stdin. It
writes the process id and the exit code of each child into files.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
_POLL_SECONDS = 0.01
_IMPORTED_WITHIN_SECONDS = 120
# XLA then compiles twice as fast again; libtpu doesn't know the flag and ends the process.
_COMPILED_QUICKLY = "--xla_cpu_use_fusion_emitters=false"
# Modules that nearly every such process needs, in addition to the backend's step.
_IMPORTED = (
    "core.api", "core.training.trainer", "core.backends.optimizers", "core.models.encoder",
)  # fmt: skip


class Child:
    """A process with an interface like that of `subprocess.Popen`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        deadline = time.monotonic() + _IMPORTED_WITHIN_SECONDS
        while not (folder / "pid").exists():
            assert time.monotonic() < deadline, "the nurse doesn't answer"
            time.sleep(_POLL_SECONDS)
        self.pid = int((folder / "pid").read_text())

    @property
    def output(self) -> str:
        """The text printed so far."""
        return (self._folder / "stdout").read_text()

    @property
    def errors(self) -> str:
        """The text written to stderr so far."""
        return (self._folder / "stderr").read_text()

    def poll(self) -> int | None:
        """Returns the exit code, or minus the number of the signal; None while the process runs."""
        ended = self._folder / "ended"
        return int(ended.read_text()) if ended.exists() else None

    def wait(self, timeout: float) -> int:
        """Waits and returns the exit code as `poll` does; kills the process after the timeout."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"not done within {timeout} s\n{self.errors[-4000:]}")
            time.sleep(_POLL_SECONDS)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class _Nurse:
    def __init__(self, engine: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nursery-"))
        self._count = 0
        self._lock = threading.Lock()
        environment = {
            **os.environ,
            "KERAS_BACKEND": engine,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_COMPILED_QUICKLY}",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.child_processes", engine],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def order(self, code: str, arguments: list[str], environment: Mapping[str, str]) -> Child:
        with self._lock:
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            order = {
                "folder": str(folder),
                "code": code,
                "arguments": arguments,
                "environment": dict(environment),
            }
            assert self._process.stdin is not None
            print(json.dumps(order), file=self._process.stdin, flush=True)
        return Child(folder)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)


_NURSES: dict[str, _Nurse] = {}
_LOCK = threading.Lock()


def start(engine: str, code: str, *arguments: object, **environment: str) -> Child:
    """Starts Python code in a process with a backend imported.

    Args:
        engine: tensorflow or jax.
        code: A script; `sys.argv[1:]` holds the arguments.
        *arguments: Strings, numbers, paths.
        **environment: Additional variables; those read while a backend is imported have no effect.
    """
    with _LOCK:
        if engine not in _NURSES:
            _NURSES[engine] = _Nurse(engine)
    return _NURSES[engine].order(code, [*map(str, arguments)], environment)


def _serve(engine: str) -> None:
    """Forks a child for each line of stdin, until stdin ends."""
    from core.backends.imports import import_for

    import_for(engine, "keras")
    for module in (*_IMPORTED, f"core.backends.{engine}.step"):
        import_module(module)
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  Unbuffered, for select.
    children: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([orders], [], [], _POLL_SECONDS if children else None)
        if ready:
            line = orders.readline()
            if not line:
                break
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _live(order)
            folder = Path(order["folder"])
            children[pid] = folder
            _write(folder / "pid", pid)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _write(children.pop(pid) / "ended", os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _write(path: Path, number: int) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(str(number))
    draft.rename(path)


def _live(order: dict[str, Any]) -> NoReturn:
    """Runs the ordered code, and ends the process."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(Path(order["folder"]) / name, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(file, number)
        os.environ.update(order["environment"])
        sys.argv = ["-c", *order["arguments"]]
        exec(compile(order["code"], "<ordered>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  The test reads the traceback of any failure.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
