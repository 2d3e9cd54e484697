"""Checks an address before a server listens on it."""

from __future__ import annotations

import ipaddress
import socket

from core.errors import ConfigError, StudioError
from core.messages.redaction import AUTH_VARIABLE


def check_access(host: str, *, has_login: bool) -> None:
    """Raises ConfigError for a host on the network without a password."""
    if has_login or is_local(host):
        return
    raise ConfigError(
        f"Listening on {host} would let anyone on the network train, read and delete here",
        expected=f"a password in {AUTH_VARIABLE}, or --host 127.0.0.1",
        received=f"--host {host} without a password",
        fix=f"set {AUTH_VARIABLE}=name:password, or leave --host out and use an SSH tunnel",
    )


def is_local(name: str) -> bool:
    """Returns whether a host is loopback."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_port(host: str, port: int) -> None:
    """Raises StudioError for a port that is taken, or an address of another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise StudioError(
                f"The server can't listen on {host}, port {port}",
                expected="a free port on an address of this machine",
                received=getattr(error, "strerror", None) or str(error),
                fix="stop what uses it (perhaps another studio), or choose another with --port",
            ) from error
