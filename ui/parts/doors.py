"""Keeps other websites out: a page open elsewhere in the same browser may not act here.

A browser sends requests to 127.0.0.1 for any website that asks it to. Gradio only keeps the answers
from such a site; this refuses the requests. It also refuses names that a stranger's DNS has pointed
at this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_READING = ("GET", "HEAD", "OPTIONS")
_REFUSAL = b"This request comes from another website. Open the studio by its own address."


class OwnPagesOnly:
    """ASGI middleware that answers 403 to what other websites ask for.

    Args:
        app: The app behind the door.
        local_names_only: Whether only names of this machine may be used for it: where nobody has
            to log in.
    """

    def __init__(self, app: App, *, local_names_only: bool) -> None:
        self._app = app
        self._local_names_only = local_names_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_strange(scope):
            await _refuse(send)
        else:
            await self._app(scope, receive, send)

    def _is_strange(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local_names_only and not is_local(_name_of(host)):
            return True
        if scope["method"] in _READING:
            return False
        origin = headers.get("origin")
        return origin is not None and urlsplit(origin).netloc != host


def is_local(name: str) -> bool:
    """Tells whether a host's name or address is this machine's own."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Returns a Host header without the port: `[::1]:7860` is `::1`."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})
