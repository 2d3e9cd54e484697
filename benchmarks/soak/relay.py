"""Passes connections on to a server on loopback, and can be cut or stalled like a network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


class Relay:
    """Listens on a port of its own.

    Attributes:
        address: `ssh://127.0.0.1:PORT`.
        is_cut: Whether connections are refused; those that existed were dropped.
        is_open: Cleared while nothing passes, though connections stay.
    """

    def __init__(self, port: int, server_port: int) -> None:
        self.address = f"ssh://127.0.0.1:{port}"
        self.is_cut = False
        self.is_open = threading.Event()
        self.is_open.set()
        self._server_port = server_port
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Drops all connections, and refuses new ones."""
        self.is_cut = True
        self._drop_all()
        yield
        self.is_cut = False

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Lets nothing pass, as if packets were lost."""
        self.is_open.clear()
        yield
        self.is_open.set()

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()
        self.is_open.set()
        self._drop_all()

    def _drop_all(self) -> None:
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.is_open.wait()
        address = "127.0.0.1", self._server_port
        with client, suppress(OSError), socket.create_connection(address) as server:
            self._sockets |= {client, server}
            back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()
            self._sockets -= {client, server}

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self.is_open.wait()
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
