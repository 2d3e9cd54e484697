"""Checks request origins and sets response headers.

Another port, a sibling subdomain and an opaque origin count as other websites, although browsers
send them the app's cookies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from core.network.listening import is_local
from ui.parts.access import (
    PAGE_PATH,
    App,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    close_websocket,
    name_of,
    route_path,
)

# A proxy's own Host makes own requests look foreign.
_REFUSAL = (
    b"This request comes from another website. Open the studio by its own address. A reverse proxy "
    b"before it must pass the Host on (nginx: proxy_set_header Host $http_host; "
    b"Apache: ProxyPreserveHost On)."
)
_OWN_SITES = ("same-origin", "none")
# Gradio signs out on a mere GET.
_CHANGING_PATHS = ("/logout", "/logout/")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SELF = "'self'"
# Gradio needs inline scripts and styles, and eval for `js_on_load`.
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


class OwnOriginOnly:
    """ASGI middleware that answers 403 to other websites' requests, whatever the method.

    Websites can make browsers send requests with cookies to 127.0.0.1; `Sec-Fetch-Site` and
    `Origin`, which they can't forge, reveal it. Only links to the root pass. Programs send neither
    header.

    Args:
        local_names_only: Refuses foreign DNS names for 127.0.0.1, needed without a sign-in.
        own_hosts: Names of the app besides the Host header.
        linked_paths: More paths that links may open.
        is_framed: Whether other websites may frame the app.
    """

    def __init__(
        self,
        app: App,
        *,
        local_names_only: bool,
        own_hosts: Iterable[str] = (),
        linked_paths: Iterable[str] = (),
        is_framed: bool = False,
    ) -> None:
        self._app = app
        self._local_names_only = local_names_only
        self._own_hosts = tuple(own_hosts)
        self._linked_paths = frozenset({PAGE_PATH, *linked_paths})
        self._navigations = ("", "document", *(["iframe", "fencedframe"] if is_framed else []))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await close_websocket(send)
        else:
            await answer(send, 403, _REFUSAL)

    def _is_own(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            return False
        host = hosts[0] if hosts else ""
        if self._local_names_only and not is_local(name_of(host)):
            return False
        own = (host, *self._own_hosts)
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        if not all(_is_at(origin, own) for origin in origins):
            return False
        if sites:
            return all(site in _OWN_SITES for site in sites) or self._is_link(scope, headers)
        return bool(origins) or self._is_own_referrer(scope, headers, own)

    def _is_link(self, scope: Scope, headers: Headers) -> bool:
        return (
            scope["type"] == "http"
            and scope["method"] in ("GET", "HEAD")
            and route_path(scope) in self._linked_paths
            and headers.getlist("sec-fetch-mode") == ["navigate"]
            and headers.get("sec-fetch-dest", "") in self._navigations
        )

    def _is_own_referrer(self, scope: Scope, headers: Headers, own: Sequence[str]) -> bool:
        """Browsers omit Origin and Sec-Fetch-Site over plain HTTP."""
        if route_path(scope) in self._linked_paths:
            return True
        if referrer := headers.get("referer"):
            return _is_at(referrer, own)
        is_browser = headers.get("user-agent", "").startswith("Mozilla/")
        return not (is_browser and route_path(scope) in _CHANGING_PATHS)


class ForwardedHeaders:
    """ASGI middleware that accepts only harmless proxy headers.

    `X-Forwarded-Host` must name the app: Gradio caches it in answers for everybody.

    Args:
        own_hosts: Names of the app besides the Host header.
    """

    def __init__(self, app: App, *, own_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._own_hosts = {host.encode() for host in own_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"])
            if given.get(b"x-forwarded-proto", b"").split(b",")[0].strip() == b"https":
                scope["scheme"] = "https"
            own = {given.get(b"host", b""), *self._own_hosts}
            scope["headers"] = [
                (name, value)
                for name, value in scope["headers"]
                if name not in (b"x-forwarded-host", b"x-gradio-server") or value in own
            ]
        await self._app(scope, receive, send)


class ResponseHeaders:
    """ASGI middleware that sets policy, framing, CORS and cookie headers.

    It removes Gradio's `Access-Control-*` headers, which admit any origin. Framed apps need
    `SameSite=None` cookies; there only `OwnOriginOnly` keeps other websites out.

    Args:
        framed_by: Websites that may frame the app.
    """

    def __init__(self, app: App, *, framed_by: Sequence[str] = ()) -> None:
        self._app = app
        self._is_framed = bool(framed_by)
        policy = f"{_POLICY}; frame-ancestors {' '.join([_SELF, *framed_by])}"
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
            *([] if framed_by else [(b"x-frame-options", b"SAMEORIGIN")]),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapper(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_secure = scope.get("scheme") == "https"
                headers = [
                    (name, self._cookie(value, is_secure) if name == b"set-cookie" else value)
                    for name, value in ((n.lower(), v) for n, v in message.get("headers", []))
                    if not name.startswith(b"access-control-")
                ]
                given = {name for name, _ in headers}
                added = [(name, value) for name, value in self._headers if name not in given]
                message = {**message, "headers": [*headers, *added]}
            await send(message)

        await self._app(scope, receive, wrapper if scope["type"] == "http" else send)

    def _cookie(self, cookie: bytes, is_secure: bool) -> bytes:
        pair, *attributes = (part.strip() for part in cookie.split(b";"))
        ours = (b"samesite", b"secure", b"httponly")
        kept_attributes = [
            attribute
            for attribute in attributes
            if attribute.split(b"=")[0].strip().lower() not in ours
        ]
        kept_attributes.append(b"HttpOnly")
        if self._is_framed:
            kept_attributes += [b"SameSite=None", b"Secure"]
        else:
            kept_attributes += [b"SameSite=Lax", *([b"Secure"] if is_secure else [])]
        return b"; ".join([pair, *kept_attributes])


def _is_at(address: str, hosts: Iterable[str]) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        own = [urlsplit(f"//{host}") for host in hosts if host]
        return any(
            (host.hostname, host.port or _DEFAULT_PORTS[parts.scheme]) == (parts.hostname, port)
            for host in own
        )
    except (ValueError, KeyError):
        return False
