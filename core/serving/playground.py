"""Runs the web app's inference in a separate process: its server and its client.

A web app that loaded a backend would start slowly and might take the accelerator from a run. So
models run in a process of their own, on the CPU, from the first request on. It serves JSON lines
over a Unix socket in a folder that only its owner may enter:

    {"id": 1, "method": "fill_mask", "params": {"model": "mini", "text": "...", "top_k": 5}}
    {"id": 1, "result": [...]}   or   {"id": 1, "error": {"kind": "ConfigError", "problem": ...}}

Generation first sends lines with pieces of text, `{"id": 1, "part": "..."}`, and stops when the
client disconnects. The process exits when idle for a while, or when its parent is gone.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import core.errors
from core.artifacts.finding import find_here
from core.artifacts.locating import find_checkpoint
from core.config.options import Dtype
from core.errors import ConfigError, RunError, StudioError
from core.finetuning.saving import is_classifier
from core.inference.classification import classify, prepare_classifier, tag
from core.inference.generation import generate_stream
from core.inference.masks import fill_mask
from core.inference.models import force_cpu
from core.inference.scoring import perplexity_stream
from core.inference.warming import prepare
from core.messages.redaction import hide_secrets_in_output
from core.messages.values import byte_count
from core.processes.children import module_command, with_module_paths
from core.processes.cores import thread_settings
from core.processes.environment import for_anonymous_users, for_models
from core.records.process import ProcessIdentity
from core.workspace.places import user_umask
from core.workspace.workspace import Workspace

LOG_FILE = "playground.log"
IDLE_SECONDS = 15 * 60.0
ANSWER_SECONDS = 300.0
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LOOK_AROUND_SECONDS = 1.0
_LONGEST_LINE_BYTES = 1 << 20
_LONGEST_LOG_BYTES = 1 << 20
_LOG_TAIL_LINES = 5
# Linux allows 108 bytes, macOS 104, with the final zero.
_LONGEST_SOCKET_PATH_BYTES = 100

Method = Callable[..., Any]


class PlaygroundClient:
    """Client of the inference process, started on demand. Thread-safe.

    Args:
        answer_seconds: Timeout, model loading included.
        only: The only model; the process gets no secrets.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        idle_seconds: float = IDLE_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        only: Path | None = None,
    ) -> None:
        self._workspace = workspace
        self._only = only
        self._idle_seconds = idle_seconds
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_path: Path | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def fill_mask(
        self, model: str, text: str, top_k: int = 5, dtype: Dtype = "float32"
    ) -> list[Any]:
        """Fills a text's masks; raises RunError if the process failed."""
        params = {"model": model, "text": text, "top_k": top_k, "dtype": dtype}
        return self._call("fill_mask", params)

    def generate(self, model: str, prompt: str, **options: Any) -> Generator[str, None, Any]:
        """Streams text, then returns the result of `core.inference.generate`."""
        for answer in self._ask("generate", {"model": model, "prompt": prompt, **options}):
            if "part" not in answer:
                return _result_of(answer)
            yield answer["part"]
        raise AssertionError("the last answer isn't a part")

    def perplexity(self, model: str, text: str, dtype: Dtype = "float32") -> dict[str, Any]:
        """Computes a text's perplexity; see `core.inference.perplexity`."""
        params = {"model": model, "text": text, "dtype": dtype}
        with closing(self._ask("perplexity", params)) as answers:
            # Each part renews the timeout.
            perplexity_answer: dict[str, Any] = _result_of(
                next(answer for answer in answers if "part" not in answer)
            )
            return perplexity_answer

    def classify(self, model: str, text: str, text_pair: str = "") -> list[dict[str, Any]]:
        """Classifies a text; see `core.inference.classification.classify`."""
        params = {"model": model, "text": text, "text_pair": text_pair}
        labels: list[dict[str, Any]] = self._call("classify", params)
        return labels

    def tag(self, model: str, text: str) -> list[dict[str, Any]]:
        """Tags the words of a text; see `core.inference.classification.tag`."""
        tags: list[dict[str, Any]] = self._call("tag", {"model": model, "text": text})
        return tags

    def prepare(self, model: str, dtype: Dtype = "float32") -> Iterator[str]:
        """Warms up a model, yielding each step; it answers after the first."""
        for answer in self._ask("prepare", {"model": model, "dtype": dtype}):
            if "part" not in answer:
                _result_of(answer)
                return
            yield answer["part"]

    def close(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                self._process.wait()
            self._forget()

    def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        with closing(self._ask(method, params)) as answers:
            return _result_of(next(answers))

    def _ask(self, method: str, params: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Retries if an idle process exited."""
        request = json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n"
        if len(request) > _LONGEST_LINE_BYTES:
            raise ConfigError(
                "The text is too long",
                expected=f"less than {byte_count(_LONGEST_LINE_BYTES)}",
                received=byte_count(len(request)),
                fix="shorten it",
                field="text",
            )
        answered = False
        for _ in range(2):
            for answer in self._exchange(request):
                answered = True
                yield answer
                if "part" not in answer:
                    return
            if answered:
                break
        raise self._failed("ended before it answered")

    def _exchange(self, request: bytes) -> Iterator[dict[str, Any]]:
        process, path = self._running()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._answer_seconds)
            try:
                connection.connect(str(path))
                connection.sendall(request)
                with connection.makefile("rb") as answers:
                    while (answer := answers.readline()).endswith(b"\n"):
                        yield json.loads(answer)
            except TimeoutError as error:
                raise self._failed(f"did not answer for {self._answer_seconds:g} s") from error
            except (ConnectionError, FileNotFoundError):
                pass
        if _exit_code(process) not in (0, None):
            raise self._failed(_describe_exit(process.returncode))

    def _running(self) -> tuple[subprocess.Popen[bytes], Path]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._forget()
                self._start()
            assert self._process is not None and self._socket_path is not None
            return self._process, self._socket_path

    def _start(self) -> None:
        path = _new_socket_path()
        self._workspace.make_root()
        log_file = self._workspace.root / LOG_FILE
        if log_file.exists() and log_file.stat().st_size > _LONGEST_LOG_BYTES:
            log_file.unlink()
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [
                    *module_command("core.serving.playground"),
                    *("--workspace", str(self._workspace.root), "--socket", str(path)),
                    *("--parent", json.dumps(ProcessIdentity.of_this().to_json())),
                    *("--idle-seconds", str(self._idle_seconds)),
                    *(("--only", str(self._only)) if self._only else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(for_anonymous_users if self._only else for_models),
                umask=user_umask(),
            )
        self._process, self._socket_path = process, path
        self._wait_until_it_listens(process, path)

    def _wait_until_it_listens(self, process: subprocess.Popen[bytes], path: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not path.exists():
            if process.poll() is not None:
                raise self._failed("could not be started: it " + _describe_exit(process.returncode))
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise self._failed(f"did not start within {_START_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def _forget(self) -> None:
        if self._socket_path is not None:
            shutil.rmtree(self._socket_path.parent, ignore_errors=True)
        self._process = self._socket_path = None

    def _failed(self, what: str) -> RunError:
        log_file = self._workspace.root / LOG_FILE
        lines = log_file.read_text("utf-8", "replace").splitlines() if log_file.exists() else []
        return RunError(
            f"The playground's process {what}",
            expected="an answer",
            received="; ".join(lines[-_LOG_TAIL_LINES:]) or "an empty log",
            fix=f"try again; the details are in {log_file}",
        )


class PlaygroundServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves requests, one thread per connection, while `parent` lives."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        path: Path,
        methods: Mapping[str, Method],
        *,
        parent: ProcessIdentity | None,
        idle_seconds: float,
    ) -> None:
        self.methods = methods
        self._parent = parent
        self._idle_seconds = idle_seconds
        self._activity = threading.Lock()
        self._open_requests = 0
        self._last_request = time.monotonic()
        super().__init__(str(path), _Connection)

    def answers(self, line: bytes) -> Generator[bytes, None, None]:
        with self._activity:
            self._open_requests += 1
        try:
            with closing(answer_request(line, self.methods)) as answers:
                for answer in answers:
                    # An error may quote lone surrogates.
                    text = json.dumps(answer, ensure_ascii=False)
                    yield text.encode("utf-8", "replace") + b"\n"
        finally:
            with self._activity:
                self._open_requests -= 1
                self._last_request = time.monotonic()

    def service_actions(self) -> None:
        """Stops the server if orphaned or idle."""
        orphaned = self._parent is not None and not self._parent.is_alive()
        with self._activity:
            waited = time.monotonic() - self._last_request
            idle = not self._open_requests and waited > self._idle_seconds
        if orphaned or idle:
            # `shutdown` would wait for this thread.
            threading.Thread(target=self.shutdown, daemon=True).start()


class _Connection(socketserver.StreamRequestHandler):
    server: PlaygroundServer

    def handle(self) -> None:
        try:
            while line := self.rfile.readline(_LONGEST_LINE_BYTES + 1):
                with closing(self.server.answers(line)) as answers:
                    for answer in answers:
                        self.wfile.write(answer)
        except ConnectionError:
            return


def answer_request(
    line: bytes, methods: Mapping[str, Method]
) -> Generator[dict[str, Any], None, None]:
    """Yields any `part`s, then a `result` or `error`."""
    number: Any = None
    try:
        request = _parse(line)
        number = request.get("id")
        method = methods.get(str(request.get("method")))
        if method is None:
            raise ConfigError(
                "The playground has no such method",
                expected="one of " + ", ".join(methods),
                received=repr(request.get("method")),
            )
        result = method(**request.get("params", {}))
        if isinstance(result, Generator):
            result = yield from _parts(number, result)
        yield {"id": number, "result": result}
    except StudioError as error:
        yield {"id": number, "error": _describe(error)}
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 -- one bad request must not end the process
        # Panics of Rust libraries derive from BaseException.
        traceback.print_exc()
        unexpected = RunError(
            "The playground failed unexpectedly",
            received=f"{type(error).__name__}: {error}",
            fix=f"read the traceback in {LOG_FILE} in the workspace",
        )
        yield {"id": number, "error": _describe(unexpected)}


def _parts(number: Any, pieces: Generator[Any, None, Any]) -> Generator[dict[str, Any], None, Any]:
    with closing(pieces):
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return end.value
            yield {"id": number, "part": piece}


def methods_within(workspace: Workspace, only: Path | None = None) -> dict[str, Method]:
    """Returns methods for all allowed models, or `only` one."""

    def locate(model: str) -> str | Path:
        if only is not None:
            if model != str(only):
                raise ConfigError(
                    "This process serves only one model", expected="that model", field="model"
                )
            return only
        folder = find_here(model, workspace) or find_checkpoint(model, workspace)
        if folder is None:
            return model
        workspace.confine(str(folder.absolute()), field="model")
        return folder.absolute()

    def answer_fill_mask(model: str, **options: Any) -> list[Any]:
        return fill_mask(locate(model), workspace=workspace, **options)

    def answer_generate(model: str, **options: Any) -> Generator[str, None, dict[str, Any]]:
        return generate_stream(locate(model), workspace=workspace, **options)

    def answer_perplexity(model: str, **options: Any) -> Generator[int, None, dict[str, Any]]:
        return perplexity_stream(locate(model), workspace=workspace, **options)

    def answer_classify(model: str, text: str, text_pair: str = "") -> list[dict[str, Any]]:
        return classify(locate(model), text, text_pair=text_pair, workspace=workspace)

    def answer_tag(model: str, text: str) -> list[dict[str, Any]]:
        return tag(locate(model), text, workspace=workspace)

    def answer_prepare(model: str, **options: Any) -> Generator[str, None, None]:
        place = locate(model)
        if isinstance(place, Path) and is_classifier(place):
            yield prepare_classifier(place)
        else:
            yield from prepare(place, workspace, **options)

    return {
        "fill_mask": answer_fill_mask,
        "generate": answer_generate,
        "perplexity": answer_perplexity,
        "classify": answer_classify,
        "tag": answer_tag,
        "prepare": answer_prepare,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.serving.playground", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument(
        "--socket", required=True, help="created by this process, in an existing folder"
    )
    parser.add_argument("--parent", default="", help="JSON that identifies the process to serve")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument("--only", type=Path, help="folder of the only model to serve")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    force_cpu()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("core.inference").setLevel(logging.INFO)
    parent = ProcessIdentity.from_json(json.loads(options.parent)) if options.parent else None
    methods = methods_within(Workspace(options.workspace), options.only)
    _serve(methods, Path(options.socket), parent, options.idle_seconds)
    return 0


def _serve(
    methods: Mapping[str, Method], path: Path, parent: ProcessIdentity | None, idle_seconds: float
) -> None:
    os.umask(0o077)
    # The path appears once the server answers.
    draft = path.with_suffix(".draft")
    try:
        with PlaygroundServer(draft, methods, parent=parent, idle_seconds=idle_seconds) as server:
            draft.rename(path)
            server.serve_forever(_LOOK_AROUND_SECONDS)
    finally:
        path.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def _new_socket_path() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="studio-"))
    if len(os.fsencode(folder)) + len("/playground.draft") > _LONGEST_SOCKET_PATH_BYTES:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="studio-", dir="/tmp"))
    return folder / "playground.sock"


def _environment(keep_environment: Callable[[Mapping[str, str]], dict[str, str]]) -> dict[str, str]:
    pythonpath = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONUNBUFFERED": "1"}
    return with_module_paths({**thread_settings(), **keep_environment(os.environ), **pythonpath})


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            "The request isn't JSON", expected="an object on one line", received=str(error)
        ) from error
    if not isinstance(request, dict) or not isinstance(request.get("params", {}), dict):
        raise ConfigError(
            "The request isn't an object",
            expected='{"id": …, "method": …, "params": {…}}',
            received=type(request).__name__,
        )
    return request


def _describe(error: StudioError) -> dict[str, Any]:
    return {"kind": type(error).__name__, **error.to_dict()}


def _result_of(answer: Mapping[str, Any]) -> Any:
    if "error" not in answer:
        return answer["result"]
    error = dict(answer["error"])
    kind = getattr(core.errors, error.pop("kind"), StudioError)
    raise kind(error.pop("problem"), **error)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=2 * _LOOK_AROUND_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


if __name__ == "__main__":
    hide_secrets_in_output()
    sys.exit(main())
