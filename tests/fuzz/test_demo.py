"""Fuzzing of the demo: it answers or refuses each request, keeps running and fetches nothing."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.fuzz.harness import BUDGET, TIMES, VERDICTS, Outcome, campaign
from tests.fuzz.mutations import any_bytes, json_text, paths_of, quoted
from tests.fuzz.sandbox import SECRET
from tests.thorough import THOROUGH
from tests.ui.browser import running_app

_MOST_SECONDS = 20.0
_GROWTH_BYTES = 300 << 20
_CALLS = ("/gradio_api/call/fill_mask", "/gradio_api/call/generate")
_PATHS = (
    *_CALLS, "/gradio_api/queue/join",
    "/gradio_api/queue/join/", "/gradio_api/cancel", "/gradio_api/reset", "/login", "/",
    "/gradio_api/upload", "/gradio_api/component_server", "/gradio_api/call/fill_mask/x",
    "/gradio_api/queue/status", "/gradio_api/queue/data?session_hash=none", "/config", "/logout",
    "/gradio_api/info", "/gradio_api/heartbeat/x", "/theme.css", "/gradio_api/file=", "/static/x",
    "//", "/gradio_api//call/fill_mask", "/gradio_api/call/fill_mask/../../upload", "/%00", "/\x01",
)  # fmt: skip
_KINDS = (
    "application/json", "application/json", "application/json; charset=utf-16", "text/plain", "",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a" * 3000,
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """An HTTP request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.body) + len(self.path)


class Trap:
    """A server that must receive no connection."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def sprung(self) -> bool:
        """Checks for a connection since the last call."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


class Visitor:
    """Sends requests to a demo and checks it after each."""

    def __init__(self, url: str, scratch: Path, trap: Trap) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._scratch, self._trap = scratch, trap
        self._process = next(
            one for one in psutil.Process().children(recursive=True) if _listens(one, self._port)
        )
        self._send(Request("GET", "/", b""))
        self._known = self._files()
        self._rss = self._process.memory_info().rss

    def ask(self, request: Request) -> Outcome:
        """Sends a request and reports any fault of the demo."""
        started = time.monotonic()
        try:
            status, body = self._send(request)
        except TimeoutError:
            return Outcome("failed", f"no answer within {_MOST_SECONDS:g} s", repr(request)[:3000])
        except (ConnectionError, http.client.HTTPException):
            status, body = 400, b""  # It closed the connection: this isn't HTTP.
        if status == 200 and request.path in _CALLS:
            try:
                body += self._answer(request.path, body)
            except TimeoutError:
                kind = f"no answer to a question within {_MOST_SECONDS:g} s"
                return Outcome("failed", kind, repr(request)[:3000])
        seconds = time.monotonic() - started
        problems = {
            f"status {status}": status >= 500 and status != 503,
            "an answer that holds the secret": SECRET.encode() in body,
            "a traceback in the answer": b"Traceback (most recent" in body,
            "the demo connected to an address that it was sent": self._trap.sprung(),
            "the demo's process is gone": not self._process.is_running(),
            "the demo left files": self._files() != self._known,
            f"it grew by more than {_GROWTH_BYTES >> 20} MiB": self._grew(),
        }
        kind = next((name for name, is_so in problems.items() if is_so), "")
        if kind:
            self._known = self._files()
            return Outcome("failed", kind, f"{request!r:.3000}\n{body[:1000]!r}", seconds)
        return Outcome("read" if status < 400 else "refused", "", "", seconds)

    def _send(self, request: Request) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_MOST_SECONDS)
        try:
            path = quote(request.path, safe="/?=&%:@+,.-_~\x01")
            connection.putrequest(request.method, path, skip_host=True)
            connection.putheader("Host", f"{self._host}:{self._port}")
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            response = connection.getresponse()
            if "event-stream" in (response.getheader("content-type") or ""):
                return response.status, b""
            return response.status, response.read()
        finally:
            connection.close()

    def _answer(self, path: str, body: bytes) -> bytes:
        """Returns the event stream that answers an accepted question."""
        event = json.loads(body)["event_id"]
        url = f"http://{self._host}:{self._port}{path}/{event}"
        with urllib.request.urlopen(url, timeout=_MOST_SECONDS) as response:
            return bytes(response.read())

    def _files(self) -> set[str]:
        return {str(path) for path in self._scratch.rglob("*") if path.is_file()}

    def _grew(self) -> bool:
        return self._process.memory_info().rss - self._rss > _GROWTH_BYTES


def _listens(process: psutil.Process, port: int | None) -> bool:
    try:
        found = process.net_connections("tcp")
    except psutil.Error:
        return False
    return any(one.laddr.port == port and one.status == "LISTEN" for one in found)


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Visitor, Trap, Path]]:
    """A visitor of a demo with a small model, the trap, and the canary folder."""
    pytest.importorskip("hypothesis")
    base = tmp_path_factory.mktemp("demo")
    tokenizer = make_tokenizer(Workspace(base / "tokens"), "byte_level_bpe")
    folder = write_checkpoint(base / "models" / "tiny", tokenizer)
    scratch, canary = base / "scratch", base / "canary"
    for place in (scratch, canary):
        place.mkdir()
    (canary / "secret.txt").write_text(SECRET)
    trap = Trap()
    settings = {"STUDIO_MODEL": str(folder), "TMPDIR": str(scratch), "FUZZ_SECRET": SECRET}
    with running_app(base / "workspace", STUDIO_AUTH="", **settings) as url:
        yield Visitor(url, scratch, trap), trap, canary


def _file_data(path: str) -> dict[str, Any]:
    return {"path": path, "url": path, "meta": {"_type": "gradio.FileData"}, "orig_name": "x"}


def bodies(paths: tuple[str, ...]) -> SearchStrategy[bytes]:
    """Draws request bodies: valid ones with changes, and files in place of texts."""
    texts = ("The small <mask> runs.", "<mask>" * 20, "no mask", "", "<mask>" + "x" * 3000, *paths)

    @st.composite
    def drawn(draw: DrawFn) -> bytes:
        text: Any = draw(st.sampled_from(texts))
        if draw(st.booleans()):
            wrapped = draw(st.sampled_from(("file", "list", "nested", "name", "gallery")))
            file = _file_data(draw(st.sampled_from(paths)))
            text = {
                "file": file, "list": [file, file], "nested": {"a": {"b": [file]}},
                "name": {"name": file["path"], "is_file": True, "data": None},
                "gallery": [{"image": file, "caption": "x"}],
            }[wrapped]  # fmt: skip
        data = [text, draw(st.sampled_from((5, 0, -1, 21, 1.5, "5", None, True, [], 10**30)))]
        whole: dict[str, Any] = {"data": data}
        if draw(st.booleans()):
            whole |= {"fn_index": draw(st.integers(-2, 12)), "session_hash": "fuzz",
                      "event_data": None, "trigger_id": 1}  # fmt: skip
        form = draw(st.integers(0, 9))
        if form == 0:
            return json.dumps({"data": ["The small <mask> runs.", 5]}).encode()
        if form < 3:
            return json.dumps(whole).encode()
        if form < 9:
            names = ("data", "fn_index", "session_hash", "event_id", "batched", "api_name", "files")
            return draw(json_text(whole, quoted(paths), most=3, names=names))
        return draw(any_bytes())

    return drawn()


@st.composite
def questions(draw: DrawFn) -> Request:
    """Draws a valid API request: any text with a mask, any number of predictions."""
    before, after = draw(st.text(max_size=40)), draw(st.text(max_size=40))
    text = f"{before}<mask>{after}"
    data = [text, draw(st.integers(1, 20))]
    return Request(
        "POST", _CALLS[0], json.dumps({"data": data}).encode(), {"Content-Type": "application/json"}
    )


def requests(trap: str, canary: str) -> SearchStrategy[Request]:
    paths = tuple(one for one in paths_of(canary, trap) if len(one) < 1000)
    asking = st.sampled_from((_PATHS[0], _PATHS[0], *_PATHS[:4]))
    origins = st.sampled_from(("", "", "null", "http://localhost:3000", "https://evil.example"))

    @st.composite
    def drawn(draw: DrawFn) -> Request:
        if draw(st.integers(0, 3)) == 0:
            return draw(questions())
        form = draw(st.integers(0, 9))
        path = draw(asking) if form < 7 else draw(st.sampled_from(_PATHS))
        method = (
            "POST" if form < 8 else draw(st.sampled_from(("GET", "HEAD", "PUT", "OPTIONS", "X")))
        )
        headers = {"Content-Type": draw(st.sampled_from(_KINDS))}
        if origin := draw(origins):
            headers["Origin"] = origin
        if path.endswith("file="):
            path += draw(st.sampled_from(paths)).encode("ascii", "ignore").decode()
        return Request(method, path, draw(bodies(paths)), headers)

    return drawn()


@pytest.mark.slow(60)
@pytest.mark.long
def test_arbitrary_request_to_a_demo_is_answered_or_refused(
    visitor: tuple[Visitor, Trap, Path],
) -> None:
    asks, trap, canary = visitor
    before, share = VERDICTS["read"], 1.0 if THOROUGH else 0.2
    campaign("demo", requests(trap.url, str(canary)), share, asks.ask)
    assert VERDICTS["read"] - before > BUDGET["demo"] * TIMES * share / 10, "enough reach the model"
    answer = asks.ask(Request("GET", "/config", b""))
    assert answer.verdict == "read", "the demo still answers"
