"""Finds ports for the servers that tests start."""

from __future__ import annotations

import os
import random
import socket

# Above the ports that Ray gives its processes, and below the range from which systems take the
# ports of outgoing connections: several test processes connect at the same time, and could take a
# port between its choice and the server's start.
_FIRST, _LAST = 24_000, 31_000


def free_port() -> int:
    """Returns a port that nothing listens on."""
    chooser = random.Random(os.urandom(8))
    while True:
        port = chooser.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
