"""A server that keeps the messages it is sent, and runs that tests report."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook:
    """A webhook on the loopback interface.

    Attributes:
        statuses: Statuses of the next answers; then 204.
        location: Target of a redirect.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.location = ""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.messages.append({"path": self.path, **json.loads(body)})
                self.send_response(hook.statuses.pop(0) if hook.statuses else 204)
                if hook.location:
                    self.send_header("Location", hook.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving() -> Iterator[Hook]:
    hook = Hook()
    try:
        yield hook
    finally:
        hook.close()
