"""Access control: origins, host names, cookies, frames, routes and known users."""

import asyncio
import re
from typing import Any

import pytest

from core.network.listening import is_local
from ui.parts.access import AccessControl, AllowedRoutes
from ui.parts.access_body import BodyLimits
from ui.parts.access_origin import OwnOriginOnly, ResponseHeaders


def status_of(method: str, *, local_names_only: bool = True, **headers: str) -> int:
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": method,
        "path": "/config",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    app = OwnOriginOnly(behind, local_names_only=local_names_only)
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860"])
def test_same_origin_request_is_accepted(host: str) -> None:
    assert status_of("POST", host=host, origin=f"http://{host}") == 200


def test_request_without_an_origin_is_accepted() -> None:
    assert status_of("POST", host="127.0.0.1:7860") == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1.evil.example"],
)
def test_cross_origin_request_is_refused(origin: str) -> None:
    assert status_of("POST", host="127.0.0.1:7860", origin=origin) == 403
    assert status_of("DELETE", host="127.0.0.1:7860", origin=origin) == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "", "[", "10.0.0.7:7860"])
def test_foreign_host_name_is_refused(host: str) -> None:
    assert status_of("GET", host=host) == 403


def test_any_host_name_is_accepted_behind_a_password() -> None:
    assert status_of("GET", local_names_only=False, host="studio.example") == 200
    refused = status_of(
        "POST", local_names_only=False, host="studio.example", origin="http://evil.example"
    )
    assert refused == 403


def test_refusal_explains_the_reverse_proxy_settings() -> None:
    status, said = ask(OwnOriginOnly(answering(200), local_names_only=True), "/login")
    assert status == 403
    assert b"proxy_set_header Host $http_host;" in said and b"ProxyPreserveHost On" in said


def test_local_host_names_are_recognised() -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "10.0.0.1", "example.org", "")))


def ask(
    app: Any, path: str, body: bytes = b"", method: str = "POST", headers: Any = ()
) -> tuple[int, bytes]:
    """Sends a request through a middleware and returns the status and the body."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    kind = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "headers": [*kind, *headers]}
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"]), b"".join(message.get("body", b"") for message in sent)


def answering(status: int) -> Any:
    """Builds an app that echoes the request body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said = (await receive())["body"]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": said})

    return app


def test_full_queue_is_answered_with_an_explanation() -> None:
    def allowed(status: int) -> Any:
        limited = BodyLimits(answering(status), most_json_bytes=9, most_upload_bytes=0)
        routes = re.compile("POST /gradio_api/queue/join")
        return AllowedRoutes(limited, routes=routes, full="Try again.")

    path = "/gradio_api/queue/join"
    assert ask(allowed(503), path) == (503, b'{"detail": "Try again."}')
    assert ask(allowed(200), path, b'"asking"') == (200, b'"asking"')
    assert ask(allowed(200), path, b'"questions, questions"')[0] == 413
    assert ask(allowed(200), path + "x", b'"asking"')[0] == 404
    assert ask(allowed(200), path, method="GET")[0] == 404


def test_access_control_admits_only_known_users() -> None:
    def door(who: str | None) -> AccessControl:
        return AccessControl(
            answering(200), who=lambda scope: who, open_routes=["POST /login"], page="<form>"
        )

    assert ask(door(None), "/config")[0] == 401
    assert ask(door(None), "/") == (401, b"<form>")
    assert ask(door(None), "/login", b"name") == (200, b"name")
    assert ask(door(None), "/login", method="PUT")[0] == 401
    assert ask(door("ann"), "/config", b"x") == (200, b"x")


def test_space_may_be_framed_only_by_hugging_face() -> None:
    async def headers_of(door: ResponseHeaders) -> dict[bytes, bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        await door({"type": "http", "headers": []}, receive, send)
        return dict(sent[0]["headers"])

    alone = asyncio.run(headers_of(ResponseHeaders(answering(200))))
    assert alone[b"x-frame-options"] == b"SAMEORIGIN"
    space = ResponseHeaders(answering(200), framed_by=["https://huggingface.co"])
    framed = asyncio.run(headers_of(space))
    assert b"x-frame-options" not in framed
    policy = framed[b"content-security-policy"]
    assert policy.endswith(b"frame-ancestors 'self' https://huggingface.co")


def test_crowded_demo_refuses_api_clients_but_not_its_own_requests() -> None:
    crowd = [True]
    door = AllowedRoutes(
        answering(200),
        routes=re.compile(r"POST /gradio_api/(?:queue/join|call/fill)|GET /gradio_api/call/fill/1"),
        full="Try again.",
        is_crowded=lambda: crowd[0],
    )
    assert ask(door, "/gradio_api/call/fill", b"question")[0] == 503
    assert ask(door, "/gradio_api/queue/join", b"question")[0] == 503
    by_page = [(b"x-gradio-user", b"app")]
    assert ask(door, "/gradio_api/queue/join", b"question", headers=by_page)[0] == 200
    assert ask(door, "/gradio_api/call/fill/1", method="GET")[0] == 200
    crowd[0] = False
    assert ask(door, "/gradio_api/call/fill", b"question")[0] == 200


def headers_of(app: Any, **scope: Any) -> list[tuple[bytes, bytes]]:
    """Returns the response headers of an app."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    asyncio.run(app({"type": "http", "headers": [], **scope}, receive, send))
    return list(sent[0]["headers"])


def setting(*cookies: bytes) -> Any:
    """Builds an app that sets cookies."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Set-Cookie", cookie) for cookie in cookies]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    return app


def test_cookies_are_same_site_lax_except_in_a_frame() -> None:
    given = b"session=a=b; path=/; Max-Age=9; httponly; samesite=none; secure"
    alone = ResponseHeaders(setting(given, b"plain=1"))
    for scheme, end in (("http", b""), ("https", b"; Secure")):
        found = [value for name, value in headers_of(alone, scheme=scheme) if name == b"set-cookie"]
        assert found == [
            b"session=a=b; path=/; Max-Age=9; HttpOnly; SameSite=Lax" + end,
            b"plain=1; HttpOnly; SameSite=Lax" + end,
        ]
    framed = ResponseHeaders(setting(given), framed_by=["https://huggingface.co"])
    [cookie] = [value for name, value in headers_of(framed) if name == b"set-cookie"]
    assert cookie == b"session=a=b; path=/; Max-Age=9; HttpOnly; SameSite=None; Secure"


def test_space_accepts_only_its_own_origin_and_the_sign_in_callback() -> None:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = OwnOriginOnly(
        behind,
        local_names_only=False,
        own_hosts=["ann-studio.hf.space"],
        linked_paths=["/login/callback"],
        is_framed=True,
    )

    def status(method: str, path: str, **headers: str) -> int:
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        given = [(name.encode(), value.encode()) for name, value in named]
        return ask(app, path, method=method, headers=[(b"host", b"10.0.0.7:7860"), *given])[0]

    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status("GET", "/", sec_fetch_dest="iframe", **link) == 200
    assert status("GET", "/login/callback", sec_fetch_dest="document", **link) == 200
    assert status("GET", "/logout", sec_fetch_dest="document", **link) == 403
    own = "https://ann-studio.hf.space"
    assert status("POST", "/x", origin=own, sec_fetch_site="same-origin") == 200
    for origin in ("https://eve-studio.hf.space", "https://huggingface.co", "null"):
        assert status("POST", "/x", origin=origin) == 403
        assert status("GET", "/config", origin=origin) == 403
    assert status("GET", "/config", sec_fetch_site="cross-site", sec_fetch_mode="cors") == 403


def test_cross_origin_websocket_is_closed() -> None:
    def closed(**headers: str) -> bool:
        sent: list[Any] = []

        async def behind(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "websocket.accept"})

        async def send(message: Any) -> None:
            sent.append(message)

        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        given = [(name.encode(), value.encode()) for name, value in named]
        app = OwnOriginOnly(behind, local_names_only=True)
        scope = {"type": "websocket", "path": "/queue/join", "headers": given}
        asyncio.run(app(scope, None, send))  # type: ignore[arg-type]
        return bool(sent[0]["type"] == "websocket.close")

    own = {"host": "127.0.0.1:7860"}
    assert closed(**own, origin="http://evil.example")
    assert closed(**own, origin="http://127.0.0.1:3000")
    assert closed(host="evil.example", origin="http://evil.example")
    assert not closed(**own, origin="http://127.0.0.1:7860")


def test_open_routes_are_the_same_behind_a_proxy_with_a_path_prefix() -> None:
    def page(path: str) -> int:
        control = AccessControl(
            answering(200), who=lambda scope: None, open_routes=["POST /login"], page="<form>"
        )

        async def prefixed(scope: Any, receive: Any, send: Any) -> None:
            await control({**scope, "root_path": "/studio"}, receive, send)

        return ask(prefixed, path)[0]

    assert page("/studio/login") == page("/login") == 200
    assert page("/studio/config") == page("/studio") == page("/studiologin") == 401
