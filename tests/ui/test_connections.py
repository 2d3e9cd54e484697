"""Connections that wait for their visitor keep out nobody."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn

from tests.ports import free_port
from ui.parts import access_body, access_connections
from ui.parts.access import Receive, Scope, Send, answer
from ui.parts.access_body import BodyLimits
from ui.parts.access_connections import PatientServer

INCOMPLETE = (
    b"",
    b"G",
    b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ",
    b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 30\r\n\r\nusername=",
    b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n4\r\nuser\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await answer(send, 200, b"hello")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(access_connections, "_MOST_CONNECTIONS", 20)
    monkeypatch.setattr(access_connections, "HEADER_SECONDS", 1.0)
    monkeypatch.setattr(access_body, "_MOST_BODIES_AT_ONCE", 4)
    app = BodyLimits(hello, most_json_bytes=99, most_upload_bytes=0, has_login=True)
    chosen = free_port()
    config = uvicorn.Config(app, port=chosen, log_level="warning", lifespan="off")  # type: ignore[arg-type]
    server = PatientServer(config)
    server.run_in_thread()
    yield chosen
    server.close()


def send_login(port: int) -> bytes:
    body = b"username=ann&password=x"
    head = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return connection.recv(4096)


@pytest.mark.parametrize("part", INCOMPLETE)
def test_incomplete_requests_keep_nobody_out(port: int, part: bytes) -> None:
    with ExitStack() as held:
        for _ in range(60):
            connection = socket.create_connection(("127.0.0.1", port), 20)
            held.enter_context(connection)
            connection.sendall(part)
        assert send_login(port).startswith(b"HTTP/1.1 200")


def test_header_has_a_limit_of_time_even_if_it_goes_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(4096)
        with pytest.raises(OSError):
            for _ in range(200):
                connection.sendall(b"G" if _ == 0 else b"x")
                time.sleep(0.05)
    assert send_login(port).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: x\r\n", b"400"),
        (b"Content-Length: 1000000\r\nContent-Type: application/json\r\n", b"413"),
    ],
)
def test_refusal_is_read_while_the_visitor_still_sends(
    port: int, head: bytes, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        # More than the server reads at once.
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n" + b"x" * 600_000)
        time.sleep(0.1)
        assert connection.recv(4096).split()[1] == status
        while connection.recv(4096):
            pass


def test_refused_visitors_who_stay_keep_nobody_out(port: int) -> None:
    with ExitStack() as held:
        for _ in range(60):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n")
        assert send_login(port).startswith(b"HTTP/1.1 200")
