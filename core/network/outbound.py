"""Restricts connections to untrusted addresses (SSRF protection).

Non-public ones need to be configured in the environment.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urljoin, urlsplit

from core.errors import ConfigError, StudioError

ALLOWED_HOSTS_VARIABLE = "STUDIO_ALLOWED_HOSTS"
# Inherited only by runs from the command line.
TYPED_HOSTS_VARIABLE = "STUDIO_TYPED_HOSTS"
MOST_REDIRECTS = 5
CONNECT_SECONDS = 30.0
STALL_SECONDS = 60.0
# A timeout grows with the download's size.
BASE_SECONDS = 120.0
MOST_READ_BYTES = 64 << 20
SLOWEST_BYTES_PER_SECOND = 1 << 16

_PORTS = {"http": 80, "https": 443}
_CONFIGURED = (
    "HF_ENDPOINT", "STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "STUDIO_TPU_ENDPOINT", "STUDIO_WEBHOOK_URL",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
# Exempt: some networks serve it internally.
_HUB_HOST = ("huggingface.co", 443)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Port None: every port.
Host = tuple[str, int | None]


class OutboundError(StudioError):
    """A connection is not allowed."""


def configured_hosts(environment: Mapping[str, str] | None = None) -> frozenset[Host]:
    environment = os.environ if environment is None else environment
    named = [environment.get(name, "") for name in _CONFIGURED]
    for variable in (ALLOWED_HOSTS_VARIABLE, TYPED_HOSTS_VARIABLE):
        named += environment.get(variable, "").split(",")
    return frozenset({_HUB_HOST, *filter(None, (_parse_host(text.strip()) for text in named))})


_trusts_callers = True


def distrust_callers() -> None:
    """Restricts callers' addresses too."""
    global _trusts_callers
    _trusts_callers = False


def allow_typed_hosts(texts: Iterable[object]) -> None:
    """Allows hosts of typed URLs, of the web and of Ray clusters, also in submitted runs."""
    hosts = [host for text in texts if _is_url(text) and (host := _parse_host(str(text)))]
    if not hosts or not _trusts_callers:
        return
    known = [part for part in os.environ.get(TYPED_HOSTS_VARIABLE, "").split(",") if part]
    known += [_format_host(*host) for host in hosts]
    os.environ[TYPED_HOSTS_VARIABLE] = ",".join(dict.fromkeys(known))


def is_public(address: str) -> bool:
    """Returns whether an address and its embedded ones are public."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(
        address.is_global and not address.is_multicast and not address.is_reserved
        for address in _unwrapped(ip)
    )


def resolve(host: str, port: int, environment: Mapping[str, str] | None = None) -> list[str]:
    """Resolves a host to allowed IP addresses; raises OutboundError or OSError.

    Connect to these: another lookup may differ (DNS rebinding).
    """
    address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in address_infos))
    check_addresses(host, port, addresses, environment)
    return addresses


def check_addresses(
    host: str, port: int, addresses: Iterable[str], environment: Mapping[str, str] | None = None
) -> None:
    """Raises OutboundError for non-public addresses of unconfigured hosts."""
    if is_configured(host, port, environment):
        return
    if inner := [address for address in addresses if not is_public(address)]:
        raise _refusal(host, port, f"{host}, which resolves to {inner[0]}")


def is_configured(host: str, port: int, environment: Mapping[str, str] | None = None) -> bool:
    known = configured_hosts(environment)
    return not known.isdisjoint({(_normal(host), port), (_normal(host), None)})


def check_url(url: str, *, schemes: Iterable[str] = ("https",)) -> None:
    """Checks scheme and literal IP address; raises OutboundError."""
    scheme, host, port = _split(url)
    if scheme not in _PORTS or (scheme not in schemes and not is_configured(host, port)):
        raise OutboundError(
            f"Connections to {_shown(url)} are not allowed",
            expected="an address that begins with "
            + " or ".join(f"{allowed_scheme}://" for allowed_scheme in schemes),
            received=f"{scheme}://" if scheme else "an address without a scheme",
            fix=f"use an allowed address, or list your own hosts in {ALLOWED_HOSTS_VARIABLE}",
        )
    if _is_literal(host):
        check_addresses(host, port, [host.strip("[]")])


def check_reachable(url: str) -> None:
    """Checks an HTTPS URL and its host's addresses, if resolvable."""
    check_url(url)
    _, host, port = _split(url)
    try:
        resolve(host, port)
    except (OSError, UnicodeError):
        return


def check_redirect(url: str, location: str, peer: str) -> None:
    """Refuses a redirect from a public to a non-public address.

    Args:
        peer: IP address that responded, if known.
    """
    target = urljoin(url, location)
    _, host, port = _split(target)
    # Refuse a downgrade to HTTP.
    schemes = ("https",) if urlsplit(url).scheme == "https" else ("http", "https")
    check_url(target, schemes=schemes)
    if is_configured(host, port) and (not peer or is_public(peer)):
        try:
            inner = [address for address in resolve(host, port) if not is_public(address)]
        except OSError:
            return
        if inner:
            raise _refusal(host, port, f"a redirect from {_shown(url)} to {_shown(target)}")


def most_seconds(size_bytes: int) -> float:
    return BASE_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND


def guard_fsspec() -> None:
    """Guards fsspec's future HTTP file systems."""
    import fsspec

    for scheme in _PORTS:
        fsspec.register_implementation(
            scheme, "core.network.http.GuardedHTTPFileSystem", clobber=True
        )


def refusal_in(error: BaseException | None) -> StudioError | None:
    """Finds an OutboundError among an error's causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OutboundError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _unwrapped(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yields the addresses to which it may be routed."""
    if isinstance(ip, ipaddress.IPv4Address):
        yield ip
        return
    if ip.ipv4_mapped:
        yield ip.ipv4_mapped
        return
    yield ip
    if ip.sixtofour:
        yield ip.sixtofour
    if ip.teredo:
        yield from ip.teredo
    if ip in _NAT64:
        yield ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)


def _refusal(host: str, port: int, received: str) -> OutboundError:
    return OutboundError(
        f"Connections to {_format_host(host, port)} are not allowed",
        expected="an address on the public internet, or a host from your own configuration",
        received=received,
        fix="use another address; to allow this host, start the program with "
        f"{ALLOWED_HOSTS_VARIABLE}={_format_host(host, port)}",
    )


def _is_url(text: object) -> bool:
    return isinstance(text, str) and text.startswith(("http://", "https://", "ray://"))


def _split(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(
            f"{_shown(url)} is not a valid address",
            expected="an address like https://host/folder",
            received=str(error),
            fix="check the address",
        ) from error
    return parts.scheme, host, port or _PORTS.get(parts.scheme, 0)


def _parse_host(text: str) -> Host | None:
    if not text:
        return None
    has_scheme = "://" in text
    if not has_scheme and text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"  # IPv6
    try:
        parts = urlsplit(text if has_scheme else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (_normal(host), port or _PORTS.get(parts.scheme)) if host else None


def _normal(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _format_host(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return name if port is None else f"{name}:{port}"


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def _shown(url: str) -> str:
    """Removes query and credentials, perhaps secret."""
    return url.partition("?")[0].rpartition("@")[2][:200]
