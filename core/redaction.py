"""Secrets that stay where they are: nothing written or shown holds a token or a password.

Tokens come from the environment or the Hub's own login. Whatever goes to a log, an event, or a
person passes through `redact` at that edge.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

HIDDEN = "[hidden]"
AUTH_VARIABLE = "STUDIO_AUTH"
# What only the app itself needs: it goes to no other process.
_FOR_THE_APP_ALONE = (AUTH_VARIABLE, "OAUTH_CLIENT_SECRET")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "OAUTH_CLIENT_SECRET")
_ADDRESSES = ("STUDIO_DATABASE_URL",)
_TOKEN = re.compile(r"\bhf_(?:(?:oauth|app|jwt)_)?[A-Za-z0-9]{16,}")
# Shorter ones would be found in plain words.
_SHORTEST_SECRET = 4
# Of a database, as "studio": shorter ones are looked for in addresses alone.
_SHORTEST_PASSWORD = 8


def redact(text: str) -> str:
    """Returns a text without the Hub's tokens and without the secrets of this environment."""
    for secret in _secrets():
        text = text.replace(secret, HIDDEN)
    for password in _passwords_of_addresses():
        text = text.replace(f":{password}@", f":{HIDDEN}@")
    return _TOKEN.sub(HIDDEN, text) if "hf_" in text else text


def redact_values(value: Any) -> Any:
    """Returns plain values, as of JSON, with the texts among them redacted.

    What is neither a number nor a list or dictionary becomes text. Numbers stay as they are: a
    short password could be found in one.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {redact(str(name)): redact_values(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(one) for one in value]
    return redact(str(value))


def for_other_processes(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without what only the app needs."""
    return {name: value for name, value in environment.items() if name not in _FOR_THE_APP_ALONE}


def for_strangers(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without any secret, for a process that answers to anybody."""
    kept = for_other_processes(environment)
    return {name: value for name, value in kept.items() if name not in (*_TOKENS, *_ADDRESSES)}


def parse_logins(text: str) -> list[tuple[str, str]]:
    """Reads `name:password`, several of them separated by commas or lines.

    Raises:
        ValueError: One has no name, no password or no colon; which one is said by its place.
    """
    entries = [entry.strip() for entry in re.split(r"[,\n]", text)]
    logins = []
    for place, entry in enumerate(filter(None, entries), 1):
        name, _, password = entry.partition(":")
        if not name.strip() or not password:
            raise ValueError(f"entry {place} is no name and password with a colon between them")
        logins.append((name.strip(), password))
    names = [name for name, _ in logins]
    if len(set(names)) < len(names):
        raise ValueError("a name is there twice")
    return logins


class RedactingStream:
    """A text stream that writes what it is given without the secrets.

    Args:
        stream: Where it goes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text."""
        self._stream.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hide_secrets_in_output() -> None:
    """Keeps secrets out of what this process prints from now on, tracebacks and logs included."""
    sys.stdout, sys.stderr = RedactingStream(sys.stdout), RedactingStream(sys.stderr)


def _passwords_of_addresses() -> list[str]:
    """Returns the passwords in addresses; all of an address that can't be read."""
    addresses = [os.environ.get(name, "") for name in _ADDRESSES]
    return list(filter(None, map(_password_in, addresses)))


def _secrets() -> list[str]:
    """Returns what is secret in this environment, the longest first."""
    found = [os.environ.get(name, "") for name in _TOKENS]
    found += [one for one in _passwords_of_addresses() if len(one) >= _SHORTEST_PASSWORD]
    try:
        found += [password for _, password in parse_logins(os.environ.get(AUTH_VARIABLE, ""))]
    except ValueError:
        found.append(os.environ[AUTH_VARIABLE])
    return sorted({one for one in found if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)


def _password_in(address: str) -> str:
    """Returns an address's password; all of an address that can't be read."""
    try:
        return urlsplit(address).password or ""
    except ValueError:
        return address
