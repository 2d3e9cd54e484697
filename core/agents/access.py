"""Access control of the server over HTTP: its own host, and the web app's password."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from core.network.listening import is_local
from core.network.logins import Logins, TooManyWrongPasswordsError

_OWN_SITES = ("same-origin", "none")
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class GuardedServer:
    """ASGI middleware that answers only to this server's clients.

    Requests of other websites get 403: they could be made by a page in the user's browser. With
    logins, the header Authorization holds `Bearer PASSWORD`, or name and password as Basic.

    Args:
        logins: Names and passwords; without any, only names of this machine are served.
    """

    def __init__(self, app: ASGIApp, logins: Sequence[tuple[str, str]]) -> None:
        self._app = app
        self._logins = Logins(logins) if logins else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = await self._refusal(scope)
            await (refusal or self._app)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if not _is_own(headers, local_names_only=self._logins is None):
            return PlainTextResponse("This request comes from another website.", 403)
        if self._logins is None:
            return None
        address = (scope.get("client") or ("",))[0]
        given = _credentials(headers.get("authorization", ""))
        try:
            if given and await self._logins.fits(*given, address):
                return None
        except TooManyWrongPasswordsError as error:
            return PlainTextResponse(str(error), 429, {"Retry-After": str(error.seconds)})
        return PlainTextResponse(
            "Expected: the header Authorization with Bearer PASSWORD, or name and password as "
            "Basic: those of STUDIO_AUTH.",
            401,
            _CHALLENGE,
        )


def _is_own(headers: Headers, *, local_names_only: bool) -> bool:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or (local_names_only and not is_local(_host_of(f"//{hosts[0]}"))):
        return False
    is_same = all(_netloc(origin) == hosts[0].lower() for origin in headers.getlist("origin"))
    return is_same and all(site in _OWN_SITES for site in headers.getlist("sec-fetch-site"))


def _credentials(authorization: str) -> tuple[str | None, str] | None:
    """Returns name, None for any, and password of a header; None if it has none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return None, value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
