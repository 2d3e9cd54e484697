"""Who may come in, as far as where. Each door is a piece of ASGI middleware.

Gradio asks for a login on some of its routes only, and hides an endpoint without closing it. So the
doors stand in front of all of it and know nothing of what is behind: what isn't let through here
reaches no route.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_READING = ("GET", "HEAD", "OPTIONS")
# Behind a proxy that asks in its own name, the page's own requests look like those of another.
_REFUSAL = (
    b"This request comes from another website. Open the studio by its own address. A reverse proxy "
    b"before it must pass the Host on (nginx: proxy_set_header Host $http_host; "
    b"Apache: ProxyPreserveHost On)."
)
_SIGN_IN = b"Sign in first."
_ROOT_PATH = "/"
_JOIN, _CALL = "/gradio_api/queue/join", "/gradio_api/call/"
_ASKING = (_JOIN, _CALL)
_WRONG_PASSWORD_SECONDS = 1.0
_SELF = "'self'"
# Gradio's page has scripts and styles in itself, and makes functions of texts (the components'
# `js_on_load`); nothing is fetched from anywhere else.
_POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    ]
)


class OwnPagesOnly:
    """ASGI middleware that answers 403 to what other websites ask for.

    A browser sends requests to 127.0.0.1 for any website that asks it to. Gradio only keeps the
    answers from such a site; this refuses the requests. It also refuses names that a stranger's DNS
    has pointed at this machine.

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
            await _answer(send, 403, _REFUSAL)
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


class Door:
    """ASGI middleware that lets through only those who are known, on every route there is.

    Args:
        app: The app behind the door.
        who: Tells who somebody is from a request; nothing for a stranger.
        open_paths: What strangers may reach, to become known.
        page: What they see at the root: where they can sign in.
    """

    def __init__(
        self, app: App, *, who: Callable[[Scope], str | None], open_paths: Iterable[str], page: str
    ) -> None:
        self._app = app
        self._who = who
        self._open_paths = frozenset(open_paths)
        self._page = page.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in self._open_paths | {_ROOT_PATH}:
            if scope["path"] == _ROOT_PATH and not self._who(scope):
                await _answer(send, 401, self._page, "text/html; charset=utf-8")
            else:
                await self._app(scope, receive, send)
        elif scope["type"] == "http" and not self._who(scope):
            await _answer(send, 401, _SIGN_IN)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


class OnlyThese:
    """ASGI middleware that answers 404 to all but what a page needs, and 413 to long requests.

    Args:
        app: The app behind the door.
        routes: Pattern of `METHOD /path` for what is let through.
        most_bytes: The longest request.
        full: What to say when the queue is full.
        is_crowded: Tells whether so many wait that programs are to come again. Nobody sees them
            wait, and they'd leave no place for those who ask in the page.
    """

    def __init__(
        self,
        app: App,
        *,
        routes: re.Pattern[str],
        most_bytes: int,
        full: str,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._routes = routes
        self._most_bytes = most_bytes
        self._full = json.dumps({"detail": full}).encode()
        self._is_crowded = is_crowded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if not self._routes.fullmatch(f"{scope['method']} {scope['path']}"):
            await _answer(send, 404, b"There is nothing here.")
            return
        body = await self._read(receive) if scope["method"] == "POST" else b""
        if body is None:
            await _answer(send, 413, b"That is too long.")
        elif body and _is_program(scope) and self._is_crowded():
            await _answer(send, 503, self._full, "application/json")
        elif scope["path"].startswith(_ASKING):
            await self._app(scope, _given(body, receive), self._telling_when_full(send))
        else:
            await self._app(scope, _given(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Returns a request's body; nothing where it is too long."""
        parts: list[bytes] = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if sum(map(len, parts)) > self._most_bytes:
                return None
            if not message.get("more_body"):
                return b"".join(parts)

    def _telling_when_full(self, send: Send) -> Send:
        """Puts a sentence in the place of Gradio's, which counts its queue."""
        refused = False

        async def wrapper(message: MutableMapping[str, Any]) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                refused = message["status"] == 503
                if refused:
                    await _answer(send, 503, self._full, "application/json")
            if not refused:
                await send(message)

        return wrapper


class SecurityHeaders:
    """ASGI middleware that tells browsers what the page may do, and who may frame it.

    Args:
        app: The app behind it.
        framed_by: Other sites that may show the page in a frame.
    """

    def __init__(self, app: App, *, framed_by: Sequence[str] = ()) -> None:
        self._app = app
        policy = f"{_POLICY}; frame-ancestors {' '.join([_SELF, *framed_by])}"
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
            *([] if framed_by else [(b"x-frame-options", b"SAMEORIGIN")]),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapper(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", [])}
                added = [(name, value) for name, value in self._headers if name not in given]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self._app(scope, receive, wrapper if scope["type"] == "http" else send)


class Passwords:
    """Names and passwords; compared in constant time.

    Gradio's `auth` is given `fits`: of an object with an asynchronous `__call__` it would take the
    coroutine for a yes.

    Args:
        logins: Names and their passwords.
    """

    def __init__(self, logins: Iterable[tuple[str, str]]) -> None:
        self._logins = [(_digest(name), _digest(password)) for name, password in logins]

    async def fits(self, name: str, password: str) -> bool:
        """Tells whether a password is that of a name; a wrong one takes a while."""
        given = _digest(name), _digest(password)
        found = [
            hmac.compare_digest(one[0], given[0]) & hmac.compare_digest(one[1], given[1])
            for one in self._logins
        ]
        if not any(found):
            await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
        return any(found)


def by_cookie(scope: Scope) -> str | None:
    """Returns whose cookie from Gradio's `/login` a request has."""
    app = scope["app"]
    cookies = Request(scope).cookies
    for name in ("access-token", "access-token-unsecure"):
        if user := app.tokens.get(cookies.get(f"{name}-{app.cookie_id}")):
            return str(user)
    return None


def by_sign_in(owners: Iterable[str]) -> Callable[[Scope], str | None]:
    """Returns what tells an owner who is signed in with Hugging Face; others are strangers."""
    allowed = frozenset(owner.lower() for owner in owners)

    def who(scope: Scope) -> str | None:
        info = scope.get("session", {}).get("oauth_info") or {}
        if float(info.get("expires_at") or 0) <= time.time():
            return None
        name = str((info.get("userinfo") or {}).get("preferred_username") or "")
        return name if name.lower() in allowed else None

    return who


def _digest(text: str) -> bytes:
    # Of one length, so that comparing tells nothing of the secret's.
    return sha256(text.encode()).digest()


def _given(body: bytes, receive: Receive) -> Receive:
    """Returns what gives a body that was read already, and then goes on as before."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def wrapper() -> MutableMapping[str, Any]:
        for message in messages:
            return message
        return await receive()

    return wrapper


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


def _is_program(scope: Scope) -> bool:
    """Tells whether it isn't the page that asks something; to Gradio's queue it says that it is."""
    path = scope["path"]
    is_page = Headers(scope=scope).get("x-gradio-user") == "app"
    return path.startswith(_CALL) or (path.startswith(_JOIN) and not is_page)


async def _answer(
    send: Send, status: int, body: bytes, kind: str = "text/plain; charset=utf-8"
) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
