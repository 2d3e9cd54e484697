"""What a stranger would try: every route of Gradio's, and the ways around paths."""

from __future__ import annotations

import http.client
import json
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
    """What the server said."""

    status: int
    body: bytes
    headers: dict[str, str]


class Stranger:
    """Somebody without a cookie, who sends paths as they are.

    Args:
        url: The server's.
        loot: What none of the answers may hold.
    """

    def __init__(self, url: str, loot: list[bytes]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._loot = loot

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Sends a request, and fails where the answer holds what it shouldn't."""
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
    """Sends a request as it is. Underscores in the headers' names stand for hyphens.

    Args:
        url: The server's.
        method: The method.
        path: Path and query, as they are.
        body: The body, if there is one.
        source: The address that it comes from; all of 127.0.0.0/8 are this machine's.
        **headers: Further headers; `Host` and `Content-Length` are added if they are missing.
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
        # A header may come several times, as Set-Cookie does.
        names = {name.lower() for name, _ in response.getheaders()}
        given = {name: "\n".join(response.headers.get_all(name) or []) for name in names}
        return Answer(response.status, found, given)
    finally:
        connection.close()


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Gives the address of a server on this machine, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"fetched")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def file_at(address: str) -> dict[str, object]:
    """Returns what Gradio takes for a file, and downloads where it is a URL."""
    return {"path": address, "meta": {"_type": "gradio.FileData"}}


def _beginning(stream: http.client.HTTPResponse, seconds: float = 3) -> bytes:
    """Returns what comes of a stream until Gradio closes it, or some time has passed."""
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
    """Returns method and path of every route that Gradio registers, each part filled in."""
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
    """Yields paths that would lead to a file if somebody joined them carelessly."""
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
