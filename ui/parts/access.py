"""Access control: ASGI middleware in front of every Gradio route.

Gradio's login guards only some routes, and hidden endpoints stay open. Here: sign-in; the
`access_*` modules hold the rest.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Gradio passes a login only name and password.
client_address: ContextVar[str] = ContextVar("client_address", default="")

PAGE_PATH = "/"
_SIGN_IN = "Sign in first."
_JOIN, _CALL = "/gradio_api/queue/join", "/gradio_api/call/"


class AccessControl:
    """ASGI middleware that admits only signed-in users.

    Args:
        who: Returns the user (None: anonymous).
        open_routes: `METHOD /path` needed to sign in.
        page: Sign-in form, served at the root.
    """

    def __init__(
        self, app: App, *, who: Callable[[Scope], str | None], open_routes: Iterable[str], page: str
    ) -> None:
        self._app = app
        self._who = who
        self._open_routes = frozenset(open_routes)
        self._page = page.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await close_websocket(send)
        elif f"{scope['method']} {route_path(scope)}" in self._open_routes or self._who(scope):
            client_address.set((scope.get("client") or ("",))[0])
            await self._app(scope, receive, send)
        elif route_path(scope) == PAGE_PATH:
            await answer(send, 401, self._page, "text/html; charset=utf-8")
        else:
            await answer(send, 401, _SIGN_IN.encode())


class AllowedRoutes:
    """ASGI middleware that answers 404 to unlisted routes, and 503 when full.

    Args:
        routes: Pattern of `METHOD /path`.
        full: Message for a full queue.
        is_crowded: Whether to refuse programs, keeping places for browsers.
    """

    def __init__(
        self,
        app: App,
        *,
        routes: re.Pattern[str],
        full: str,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._routes = routes
        self._full = full
        self._is_crowded = is_crowded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await close_websocket(send)
        elif not self._routes.fullmatch(f"{scope['method']} {route_path(scope)}"):
            await answer(send, 404, b"There is nothing here.")
        elif scope["method"] == "POST" and _is_program(scope) and self._is_crowded():
            await refuse(send, 503, self._full)
        elif route_path(scope).startswith((_JOIN, _CALL)):
            await self._app(scope, receive, self._with_own_sentence(send))
        else:
            await self._app(scope, receive, send)

    def _with_own_sentence(self, send: Send) -> Send:
        """Gradio's answer tells the queue's length."""
        is_full = False

        async def wrapper(message: Message) -> None:
            nonlocal is_full
            if message["type"] == "http.response.start":
                is_full = message["status"] == 503
                if is_full:
                    await refuse(send, 503, self._full)
            if not is_full:
                await send(message)

        return wrapper


def by_cookie(scope: Scope) -> str | None:
    """Returns the user by Gradio's login cookie."""
    app = scope["app"]
    cookies = Request(scope).cookies
    for name in ("access-token", "access-token-unsecure"):
        if user := app.tokens.get(cookies.get(f"{name}-{app.cookie_id}")):
            return str(user)
    return None


def by_sign_in(owners: Iterable[str]) -> Callable[[Scope], str | None]:
    """Returns a function that identifies owners signed in with Hugging Face."""
    allowed = frozenset(owner.lower() for owner in owners)

    def who(scope: Scope) -> str | None:
        info = scope.get("session", {}).get("oauth_info") or {}
        if float(info.get("expires_at") or 0) <= time.time():
            return None
        name = str((info.get("userinfo") or {}).get("preferred_username") or "")
        return name if name.lower() in allowed else None

    return who


def route_path(scope: Scope) -> str:
    """Returns the path without a proxy's prefix."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def name_of(host: str) -> str:
    """Returns a Host header without port: `[::1]:7860` is `::1`."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_program(scope: Scope) -> bool:
    path = route_path(scope)
    is_page = Headers(scope=scope).get("x-gradio-user") == "app"
    return path.startswith(_CALL) or (path.startswith(_JOIN) and not is_page)


async def answer(
    send: Send,
    status: int,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Sends a complete response."""
    own = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    message = {"type": "http.response.start", "status": status, "headers": [*own, *headers]}
    await send(message)
    await send({"type": "http.response.body", "body": body})


async def refuse(
    send: Send, status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Sends an error in Gradio's format."""
    await answer(
        send, status, json.dumps({"detail": sentence}).encode(), "application/json", headers
    )


async def close_websocket(send: Send) -> None:
    """Refuses a websocket; the app has none."""
    await send({"type": "websocket.close", "code": 1008})
