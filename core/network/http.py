"""Applies `core.network.outbound` to HTTP clients."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from fsspec.implementations.http import HTTPFileSystem

from core.network.outbound import (
    BASE_SECONDS,
    CONNECT_SECONDS,
    MOST_READ_BYTES,
    MOST_REDIRECTS,
    STALL_SECONDS,
    OutboundError,
    check_addresses,
    check_redirect,
    check_url,
    resolve,
)

_REDIRECTS = (301, 302, 303, 307, 308)
_hub_seconds: ContextVar[float | None] = ContextVar("_hub_seconds", default=None)


@contextmanager
def limiting_hub_requests(seconds: float) -> Iterator[None]:
    """Limits how long the Hub may be silent; its client waits forever by default."""
    before = _hub_seconds.set(seconds)
    try:
        yield
    finally:
        _hub_seconds.reset(before)


class GuardedHTTPFileSystem(HTTPFileSystem):
    """Guards fsspec's HTTP file system."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"get_client": guarded_session, **named})
        # fsspec passes these to every request.
        self.kwargs["max_redirects"] = MOST_REDIRECTS

    async def _get_file(
        self, rpath: str, lpath: Any, *, most_seconds: float = BASE_SECONDS, **named: Any
    ) -> None:
        await super()._get_file(rpath, lpath, timeout=_timeout(most_seconds), **named)


class _Response(aiohttp.ClientResponse):
    """Limits the size of `read`."""

    async def read(self) -> bytes:
        if self._body is None:
            body = bytearray()
            async for chunk in self.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > MOST_READ_BYTES:
                    self.close()
                    raise OutboundError(
                        f"The answer of {self.url.host} is too large",
                        expected=f"at most {MOST_READ_BYTES:,} bytes",
                        fix="use another address",
                    )
            self._body = bytes(body)
        return self._body


def _timeout(total_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=total_seconds, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS
    )


class _Resolver(AbstractResolver):
    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        resolved_hosts = await self._inner.resolve(host, port, family)
        check_addresses(host, port, [entry["host"] for entry in resolved_hosts])
        return resolved_hosts

    async def close(self) -> None:
        await self._inner.close()


async def _check_request(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    url = str(request.url)
    check_url(url, schemes=("http", "https"))
    response = await handler(request)
    location = response.headers.get("Location") or response.headers.get("URI")
    if response.status in _REDIRECTS and location:
        try:
            check_redirect(url, location, _peer(response))
        except BaseException:
            response.close()
            raise
    return response


def _peer(response: aiohttp.ClientResponse) -> str:
    transport = response.connection.transport if response.connection else None
    peer = transport.get_extra_info("peername") if transport else None
    return str(peer[0]) if peer else ""


async def guarded_session(**named: Any) -> aiohttp.ClientSession:
    """Returns a session that connects to allowed addresses only."""
    named.pop("loop", None)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Resolver(), use_dns_cache=False),
        middlewares=(_check_request,),
        timeout=_timeout(BASE_SECONDS),
        response_class=_Response,
        **named,
    )


class _HubClient:
    is_set = False

    def __call__(self) -> Any:
        from huggingface_hub.utils import _http

        client = _http.default_client_factory()
        client.max_redirects = MOST_REDIRECTS
        client.event_hooks["request"].append(_check_hub_request)
        client.event_hooks["response"].append(_check_hub_response)
        for transport in (client._transport, *client._mounts.values()):
            pool = getattr(transport, "_pool", None)
            if pool is not None:
                pool._network_backend = _GuardedBackend(pool._network_backend)
        return client


guarded_hub_client = _HubClient()


def _check_hub_request(request: Any) -> None:
    check_url(str(request.url), schemes=("http", "https"))
    seconds = _hub_seconds.get()
    if seconds is not None:
        own = request.extensions.get("timeout") or {}
        names = ("connect", "read", "write", "pool")
        limits = {name: min(own.get(name) or seconds, seconds) for name in names}
        request.extensions = {**request.extensions, "timeout": limits}


def _check_hub_response(response: Any) -> None:
    if response.has_redirect_location:
        stream = response.extensions.get("network_stream")
        peer = stream.get_extra_info("server_addr") if stream else None
        check_redirect(
            str(response.request.url), response.headers["Location"], str(peer[0]) if peer else ""
        )


class _GuardedBackend:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def connect_tcp(self, host: str, port: int, *arguments: Any, **named: Any) -> Any:
        try:
            addresses = resolve(host, port)
        except OSError as error:
            # Don't resolve again: the answer could differ.
            library = importlib.import_module(type(self._inner).__module__.partition(".")[0])
            raise library.ConnectError(str(error)) from error
        for address in addresses[:-1]:
            try:
                return self._inner.connect_tcp(address, port, *arguments, **named)
            except Exception:  # noqa: BLE001 -- the last one's error is the one to raise
                continue
        return self._inner.connect_tcp(addresses[-1], port, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
