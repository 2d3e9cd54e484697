"""Checks names and passwords, and limits wrong ones."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from core.errors import ConfigError, StudioError
from core.messages.redaction import AUTH_VARIABLE, parse_logins

WRONG_PER_ADDRESS = 10
WRONG_PER_ACCOUNT = 30
WRONG_IN_TOTAL = 60
_WRONG_PASSWORD_SECONDS = 1.0
# Unknown names count too, hiding which exist; fixed counters bound memory.
_COUNTERS = 4096
_ADDRESSES_KEPT = 1000


class LoginLimits:
    """Limits wrong passwords per minute: per address, per account and in total.

    Only the first applies to an address from which the account signed in before: guessing elsewhere
    can't lock its owner out. No refusal lasts over a minute after the last wrong password.
    """

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(WRONG_PER_ADDRESS)
        self._per_account = RateLimitItemPerMinute(WRONG_PER_ACCOUNT)
        self._in_total = RateLimitItemPerMinute(WRONG_IN_TOTAL)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def seconds_to_wait(self, account: str, address: str) -> int:
        """Returns seconds until the next password is checked."""
        waits = [
            self._limiter.get_window_stats(item, *keys).reset_time - time.time()
            for item, keys in self._limits_of(account, address)
            if not self._limiter.test(item, *keys)
        ]
        return max(1, math.ceil(max(waits))) if waits else 0

    def count_wrong(self, account: str, address: str) -> None:
        """Counts a wrong password."""
        for item, keys in self._limits_of(account, address):
            self._limiter.hit(item, *keys)

    def remember(self, account: str, address: str) -> None:
        """Records a sign-in from an address."""
        key = _counter(account), _network(address)
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _ADDRESSES_KEPT:
            self._known.popitem(last=False)

    def _limits_of(self, account: str, address: str) -> list[tuple[RateLimitItem, list[str]]]:
        counter, network = _counter(account), _network(address)
        own: list[tuple[RateLimitItem, list[str]]] = [(self._per_address, ["address", network])]
        if (counter, network) in self._known:
            return own
        return [*own, (self._per_account, ["account", counter]), (self._in_total, ["total"])]


class TooManyWrongPasswordsError(StudioError):
    """A password isn't checked after too many wrong ones.

    Attributes:
        seconds: Time until the next one is checked.
    """

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(
            "Too many wrong passwords",
            expected=f"at most {WRONG_PER_ADDRESS} in a minute",
            fix=f"wait {seconds} seconds, then try again",
        )


class Logins:
    """Names and passwords, compared in constant time."""

    def __init__(
        self, logins: Iterable[tuple[str, str]], limits: LoginLimits | None = None
    ) -> None:
        self._logins = [(_digest(name), _digest(password)) for name, password in logins]
        self._limits = limits or LoginLimits()

    async def fits(self, name: str | None, password: str, address: str) -> bool:
        """Returns whether name and password match; a mismatch takes a second.

        Args:
            name: None: any name with this password.
            address: The client's.

        Raises:
            TooManyWrongPasswordsError: Nothing was checked.
        """
        account = name or ""
        if seconds := self._limits.seconds_to_wait(account, address):
            raise TooManyWrongPasswordsError(seconds)
        given = _digest(account), _digest(password)
        matches = [
            (name is None or hmac.compare_digest(login[0], given[0]))
            & hmac.compare_digest(login[1], given[1])
            for login in self._logins
        ]
        # No await before: concurrent requests must see earlier counts.
        if any(matches):
            self._limits.remember(account, address)
            return True
        self._limits.count_wrong(account, address)
        await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
        return False


def logins_of_environment() -> list[tuple[str, str]]:
    """Reads names and passwords from STUDIO_AUTH; raises ConfigError."""
    try:
        return parse_logins(os.environ.get(AUTH_VARIABLE, ""))
    except ValueError as error:
        raise ConfigError(
            f"{AUTH_VARIABLE} can't be used",
            expected="name:password, several of them separated by commas or lines",
            received=str(error),
            fix=f"set {AUTH_VARIABLE} to a name and a password with a colon between them",
        ) from error


def _digest(text: str) -> bytes:
    # Equal lengths hide the secret's.
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _counter(account: str) -> str:
    return str(int.from_bytes(_digest(account)[:8], "big") % _COUNTERS)


def _network(address: str) -> str:
    """One IPv6 user may own a /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
