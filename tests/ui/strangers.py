"""Requests of an anonymous attacker: every Gradio route, and variants of path traversal."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

import gradio as gr
from gradio.routes import App
from starlette.routing import Route

PREFIXES = (
    "/gradio_api/file=",
    "/file=",
    "/gradio_api/file/",
    "/file/",
    "/gradio_api/proxy=",
    "/proxy=",
    "/static/",
    "/assets/",
    "/svelte/",
    "/gradio_api/custom_component/0/server/module/",
    "/",
)


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    headers: dict[str, str]


class Stranger:
    """An anonymous user, who sends no cookies and paths without normalisation.

    Args:
        url: The server's URL.
        loot: Secrets that no response may contain.
    """

    def __init__(self, url: str, loot: list[bytes]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._loot = loot

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Sends a request; fails if the response contains a secret."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=10)
        try:
            sent = json.dumps(body).encode() if body is not None else None
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            response = connection.getresponse()
            kind = response.getheader("content-type") or ""
            # A stream may never end.
            found = _beginning(response) if "event-stream" in kind else response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, headers)
        finally:
            connection.close()
        for secret in self._loot:
            assert secret not in answer.body, (method, path, secret)
        return answer


def send(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    source: str = "127.0.0.1",
    **headers: str,
) -> Answer:
    """Sends a request without normalisation.

    Args:
        url: The server's URL.
        method: The HTTP method.
        path: Path and query.
        body: The body, if any.
        source: The source address; all of 127.0.0.0/8 belongs to this machine.
        **headers: Headers, with underscores for hyphens; `Host` and `Content-Length` are added if
            they are missing.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=30, source_address=(source, 0)
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, named)
        response = connection.getresponse()
        kind = response.getheader("content-type") or ""
        found = _beginning(response) if "event-stream" in kind else response.read()
        # A header such as Set-Cookie may occur several times.
        names = {name.lower() for name, _ in response.getheaders()}
        given = {name: "\n".join(response.headers.get_all(name) or []) for name in names}
        return Answer(response.status, found, given)
    finally:
        connection.close()


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Yields the URL of a local server and the list of paths requested from it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"fetched")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def allowing_local_downloads(folder: Path) -> dict[str, str]:
    """Returns environment variables for an app whose Gradio accepts URLs on this machine.

    Gradio itself refuses to download from local addresses, so without this a local server can't
    show that a URL on the internet would be downloaded.

    Args:
        folder: A new folder for the module that Python imports at start.
    """
    folder.mkdir()
    code = "import safehttpx\n\nsafehttpx.is_public_ip = lambda ip: True\n"
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def file_at(address: str) -> dict[str, object]:
    """Returns a value that Gradio treats as a file, and downloads if it is a URL."""
    return {"path": address, "meta": {"_type": "gradio.FileData"}}


def _beginning(stream: http.client.HTTPResponse, seconds: float = 3) -> bytes:
    """Reads a stream until Gradio closes it or the time is over."""
    found, deadline = b"", time.monotonic() + seconds
    while b"close_stream" not in found and time.monotonic() < deadline:
        try:
            piece = stream.read1(4096)
        except TimeoutError:
            break
        if not piece:
            break
        found += piece
    return found


def gradio_routes() -> list[tuple[str, str]]:
    """Returns method and path of every Gradio route, with the path parameters filled in."""
    with gr.Blocks() as page:
        gr.Textbox()
    page.queue()
    app = App.create_app(page)
    routers = [app, *(route.original_router for route in app.routes if _is_router(route))]
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    assert len(routes) > 80, "these are all of them"
    return sorted(
        (method, re.sub(r"\{[^}]*\}", "1", route.path))
        for route in routes
        for method in route.methods or ()
    )


def _is_router(route: object) -> bool:
    return hasattr(route, "original_router")


def ways_to(target: Path) -> Iterator[str]:
    """Yields paths that lead to a file if a server joins them carelessly."""
    name = str(target)
    up = "../" * 12 + name.lstrip("/")
    variants = [
        name,
        quote(name, safe=""),
        up,
        up.replace("../", "..%2f"),
        up.replace("../", "%2e%2e/"),
        up.replace("../", "%2e%2e%2f"),
        up.replace("../", "%252e%252e%252f"),
        up.replace("../", "..%5c"),
        up.replace("../", "....//"),
        up.replace("../", "..;/"),
        "x/" + up,
        "file://" + name,
        name + "%00.png",
    ]
    for prefix in PREFIXES:
        for variant in variants:
            yield prefix + variant
