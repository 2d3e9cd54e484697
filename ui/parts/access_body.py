"""Limits request bodies by size, time, type and content.

All before Gradio reads a byte: it stores forms on disk and downloads URLs that JSON names as files.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException

from core.errors import ConfigError
from ui.parts.access import App, Message, Receive, Scope, Send, answer, refuse, route_path

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
LOGIN_PATHS = ("/login", "/login/")
UPLOAD_PATH = "/gradio_api/upload"
MOST_LOGIN_BYTES = 4 << 10
MOST_JSON_BYTES = 8 << 20
MOST_UPLOAD_BYTES = 4 << 30
_MOST_QUERY_BYTES = 8 << 10
_MOST_HEADERS = 100
_MOST_DEPTH = 64
_MOST_BODIES_AT_ONCE = 256
_LOGIN_SECONDS = 10.0
_JSON_SECONDS = 120.0
# Without another part of an upload.
_SILENT_SECONDS = 60.0
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
# These fetch anything but an absolute local path.
_FILE_ROUTE = re.compile(r"/(?:gradio_api/)?(file[=/]|proxy=)(.*)", re.DOTALL)
_CLOSED_ROUTE = re.compile(
    r"/(?:gradio_api/)?(?:token|dev/reload|vibe-[a-z-]+|undo-vibe-edit|profiling/\w+|monitoring.*)/?"
)
_NO_DOWNLOADS = "The studio doesn't fetch addresses for a browser"


class BadBody(Exception):
    """Raised for a refused request."""

    def __init__(self, status: int, problem: str, expected: str, received: str, fix: str) -> None:
        self.status = status
        self.sentence = str(ConfigError(problem, expected=expected, received=received, fix=fix))
        super().__init__(self.sentence)


class BodyLimits:
    """ASGI middleware that reads bodies within limits.

    Logins are small forms, uploads are streamed, the rest is JSON.

    Args:
        most_upload_bytes: 0 refuses uploads.
        is_strict: Whether NaN is refused.
        seconds: Time for a body; logins have ten.
    """

    def __init__(
        self,
        app: App,
        *,
        most_json_bytes: int,
        most_upload_bytes: int,
        has_login: bool = False,
        is_strict: bool = False,
        seconds: float = _JSON_SECONDS,
    ) -> None:
        self._app = app
        self._most_json_bytes = most_json_bytes
        self._most_upload_bytes = most_upload_bytes
        self._has_login = has_login
        self._is_strict = is_strict
        self._seconds = seconds
        # Counted apart: anonymous logins must not block other requests.
        self._reading_now: dict[bool, dict[asyncio.Timeout, None]] = {True: {}, False: {}}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            receive = await self._checked(scope, receive)
        except BadBody as error:
            # The body's rest stays unread.
            await refuse(send, error.status, error.sentence, [(b"connection", b"close")])
            return
        await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        _check_head(scope, headers)
        length = _length_of(headers)
        if scope["method"] in _READ_METHODS:
            if length or "transfer-encoding" in headers:
                raise BadBody(
                    400,
                    f"A {scope['method']} request has a body",
                    "no body",
                    f"{length} bytes" if length else "a body",
                    "leave the body out, or send a POST request",
                )
            return receive
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if self._most_upload_bytes and route_path(scope) == UPLOAD_PATH:
            _check_kind(kind, MULTIPART)
            _check_length(length, self._most_upload_bytes)
            return _limited(receive, self._most_upload_bytes)
        is_login = self._has_login and route_path(scope) in LOGIN_PATHS
        most_bytes = MOST_LOGIN_BYTES if is_login else self._most_json_bytes
        expected = FORM if is_login else JSON
        if length or "transfer-encoding" in headers:
            _check_kind(kind, expected)
        _check_length(length, most_bytes)
        seconds = _LOGIN_SECONDS if is_login else self._seconds
        try:
            async with self._reading(seconds, is_login=is_login):
                body = b"".join([part async for part in _parts(receive, most_bytes)])
        except TimeoutError as error:
            raise _too_slow(f"the whole body within {seconds:g} seconds") from error
        if body:
            _check_kind(kind, expected)
        if body and not is_login:
            scope["studio.json"] = parse_json(body, is_strict=self._is_strict)
        return _given(body, receive)

    @asynccontextmanager
    async def _reading(self, seconds: float, *, is_login: bool) -> AsyncIterator[None]:
        """Limits the time, and the number of bodies: a new one ends the one that takes longest.

        Whoever sends many halves of requests must not keep out others.
        """
        reading = self._reading_now[is_login]
        if len(reading) >= _MOST_BODIES_AT_ONCE:
            oldest = next(iter(reading))
            del reading[oldest]
            oldest.reschedule(0.0)
        async with asyncio.timeout(seconds) as limit:
            reading[limit] = None
            try:
                yield
            finally:
                reading.pop(limit, None)


class LocalFilesOnly:
    """ASGI middleware that closes routes of Gradio.

    It would fetch URLs on file routes, and give scripts the login cookie's token, which they
    can't read themselves.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if _CLOSED_ROUTE.fullmatch(route_path(scope)):
                await answer(send, 404, b"There is nothing here.")
                return
            route = _FILE_ROUTE.fullmatch(route_path(scope))
            if route and (route[1] == "proxy=" or not route[2].startswith("/")):
                await refuse(send, 403, f"{_NO_DOWNLOADS}. Open it in the browser itself.")
                return
        await self._app(scope, receive, send)


def parse_json(body: bytes, *, is_strict: bool) -> Any:
    """Parses JSON; refuses what Gradio might read differently or download.

    Args:
        body: UTF-8.
        is_strict: Whether NaN and infinity are refused.

    Raises:
        BadBody: Invalid, too deep, a repeated key, or a file that wasn't uploaded.
    """
    try:
        text = body.decode()
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant if is_strict else None,
        )
        if text.count("[") + text.count("{") > _MOST_DEPTH:
            _check_depth(value)
    except UnicodeDecodeError as error:
        raise _not_json("bytes that are no UTF-8", "encode the JSON in UTF-8") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        # Also numbers with thousands of digits.
        raise _not_json(str(error)[:200], "check the JSON") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        [(twice, count)] = Counter(name for name, _ in pairs).most_common(1)
        raise BadBody(
            400,
            "A JSON object has a key twice",
            "each key once",
            f"{twice[:50]!r} {count} times",
            "leave one out",
        )
    if "path" in members and "meta" in members:
        _check_file(members)
    return members


def _check_file(file: dict[str, Any]) -> None:
    """Gradio's upload returns absolute local paths."""
    path = file["path"]
    is_path = isinstance(path, str) and os.path.isabs(path) and "\0" not in path
    if not is_path or not isinstance(file["meta"], dict):
        raise BadBody(
            400,
            f"{_NO_DOWNLOADS}, and a file in a request must have been uploaded",
            "the path that the upload answered with",
            f"{str(path)[:100]!r}",
            "upload the file, or enter its address in the form as text",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise BadBody(400, f"{name} is no number in JSON", "a finite number", name, "send a number")


def _check_depth(value: Any) -> None:
    layer, depth = [value], 0
    while layer:
        if depth > _MOST_DEPTH:
            raise _too_deep()
        layer = [
            inner
            for container in layer
            if isinstance(container, (dict, list))
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
        depth += 1


def _too_deep() -> BadBody:
    return BadBody(
        400,
        "The JSON is nested too deeply",
        f"at most {_MOST_DEPTH} levels",
        "more",
        "send flat values",
    )


def _not_json(received: str, fix: str) -> BadBody:
    return BadBody(400, "The body can't be read", "JSON", received, fix)


def _check_head(scope: Scope, headers: Headers) -> None:
    if len(scope.get("query_string", b"")) > _MOST_QUERY_BYTES:
        raise BadBody(
            414,
            "The address is too long",
            f"at most {_MOST_QUERY_BYTES} bytes after the question mark",
            str(len(scope["query_string"])),
            "send the values in the body of a POST request",
        )
    if len(headers) > _MOST_HEADERS:
        raise BadBody(
            431,
            "The request has too many headers",
            f"at most {_MOST_HEADERS}",
            str(len(headers)),
            "leave some out",
        )


def _length_of(headers: Headers) -> int:
    given = headers.get("content-length", "0")
    if not given.isdecimal():
        raise BadBody(400, "Content-Length is no length", "digits", given[:50], "correct it")
    return int(given)


def _check_kind(kind: str, expected: str) -> None:
    if kind != expected:
        raise BadBody(
            415,
            "The body has the wrong type",
            f"Content-Type: {expected}",
            kind[:100] or "none",
            f"set the Content-Type header to {expected}",
        )


def _check_length(length: int, most_bytes: int) -> None:
    if length > most_bytes:
        raise _too_long(most_bytes, f"{length} bytes")


def _too_long(most_bytes: int, received: str) -> BadBody:
    return BadBody(
        413, "The request is too long", f"at most {most_bytes} bytes", received, "send less"
    )


def _too_slow(expected: str) -> BadBody:
    return BadBody(
        408,
        "The request came too slowly",
        expected,
        "a part",
        "send it again",
    )


async def _parts(receive: Receive, most_bytes: int) -> AsyncIterator[bytes]:
    size, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadBody(
                400, "The request ended early", "the whole body", "a part", "send it again"
            )
        part = message.get("body", b"")
        size, is_more = size + len(part), bool(message.get("more_body"))
        if size > most_bytes:
            raise _too_long(most_bytes, "more")
        yield part


def _limited(receive: Receive, most_bytes: int) -> Receive:
    """Raises for an oversized or aborted upload, so that Gradio deletes its part."""
    size, is_more = 0, True

    async def wrapper() -> Message:
        nonlocal size, is_more
        try:
            async with asyncio.timeout(_SILENT_SECONDS if is_more else None):
                message = await receive()
        except TimeoutError as error:
            raise MultiPartException("The upload came too slowly.") from error
        if message["type"] == "http.disconnect":
            if is_more:
                raise MultiPartException("The upload was broken off.")
            return message
        size, is_more = size + len(message.get("body", b"")), bool(message.get("more_body"))
        if size > most_bytes:
            # Gradio answers 413 to this wording.
            raise MultiPartException(
                f"The upload exceeds the maximum allowed size of {most_bytes} bytes."
            )
        return message

    return wrapper


def _given(body: bytes, receive: Receive) -> Receive:
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def wrapper() -> Message:
        for message in messages:
            return message
        return await receive()

    return wrapper
