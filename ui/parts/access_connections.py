"""Ends connections that wait for their visitor, so that they don't keep out others.

Uvicorn waits without limit for a request's header and for a reader of its response. It closes a
connection as soon as it has refused a request, and what arrives afterwards lets the visitor's
system throw the refusal away.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradio import http_server

HEADER_SECONDS = 10.0
_UNREAD_SECONDS = 60.0
_MOST_CONNECTIONS = 1024
# asyncio accepts so many before it handles the first.
_BACKLOG = 128
_TICKS_PER_SECOND = 10
_LINGER_SECONDS = 2.0


class _LingeringTransport:
    """A connection whose `close` lets the visitor read the response and end the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def ended(self) -> bool:
        return self._transport.is_closing()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)


class PatientServer(http_server.Server):
    """Gradio's server with limits of time and of number for connections."""

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        config.backlog = _BACKLOG
        config.load()
        most = _most_connections()

        class Limited(config.http_protocol_class):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(_LingeringTransport(transport))
                self.waits_since = self.opened = time.monotonic()
                others = [other for other in self.connections if not other.transport.ended]
                if len(others) > most:
                    others.remove(self)
                    _worst(others).transport.abort()

            def data_received(self, data: bytes) -> None:
                if not self.transport.is_closing():
                    super().data_received(data)

        config.http_protocol_class = Limited
        super().__init__(config, *args, **options)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % _TICKS_PER_SECOND == 0:
            _end_late(list(self.server_state.connections), time.monotonic())
        return await super().on_tick(counter)


def limit_connections() -> None:
    """Has Gradio start this server."""
    http_server.Server = PatientServer  # type: ignore[misc]


def _end_late(connections: Sequence[Any], now: float) -> None:
    for connection in connections:
        if _has_request(connection) and not connection.flow.write_paused:
            connection.waits_since = now
            continue
        most = _UNREAD_SECONDS if _has_request(connection) else HEADER_SECONDS
        if now - connection.waits_since > most:
            connection.transport.abort()


def _worst(connections: Sequence[Any]) -> Any:
    """Chooses the connection to end: without a request, of the busiest address, the oldest."""
    waiting = list(itertools.filterfalse(_has_request, connections)) or connections
    of_address = Counter(map(_address, waiting))
    return min(waiting, key=lambda waiter: (-of_address[_address(waiter)], waiter.opened))


def _has_request(connection: Any) -> bool:
    return connection.cycle is not None and not connection.cycle.response_complete


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""


def _most_connections() -> int:
    """Leaves half of the files that the process may open to everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft < 0 else min(_MOST_CONNECTIONS, soft // 2)
