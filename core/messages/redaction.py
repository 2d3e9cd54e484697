"""Redacts secrets from logs, events and error messages.

For anonymous users, texts aren't compared with secrets, which would confirm guesses.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from core.messages.system_errors import suppressed_if_full
from core.messages.terminal import without_controls

HIDDEN = "[hidden]"
AUTH_VARIABLE = "STUDIO_AUTH"
DATABASE_URL_VARIABLE = "STUDIO_DATABASE_URL"

_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|KEY|ACCESS_KEY_ID|SECRET|PASS|PASSWD|PASSPHRASE|PAT|CREDENTIALS?)S?$"
    r"|(?:PASSWORD|SECRET|APIKEY)S?$|_SAS$|CONNECTION_STRING$|WEBHOOK(?:_URL)?$",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\bhf_(?:(?:oauth|app|jwt)_)?[A-Za-z0-9]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{36,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bya29\.[\w-]{20,}"
    r"|(?<=hooks\.slack\.com/)[\w/-]{8,}|(?<=/api/webhooks/)[\w/-]{8,}"
)
_USERINFO = re.compile(r"(?<=://)([^\s:/@?#]*):([^\s/@]+)@")
_PASSWORD_PARAMETER = re.compile(
    r"((?:\b|[?&;_])(?:password|passwd|pwd|sslpassword|passphrase|secret|access_token|write_token|api_?key)=)"
    r"[^\s&;'\"<>]+",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"[?&;]([^=&;?]+)=([^&;]*)")
# Shorter secrets would match ordinary words.
_SHORTEST_SECRET = 4
# Shorter values may be words.
_SHORTEST_UNKNOWN_SECRET = 8
# Shorter ones, perhaps words, are hidden only in URLs.
_SHORTEST_PASSWORD = 8


def redact(text: str, sent: Iterable[str] = ()) -> str:
    """Hides this environment's secrets and secret-like text.

    Args:
        sent: The reader's texts; hiding their secrets would confirm guesses.
    """
    return _redactor()(text, tuple(sent))


def redact_forms(text: str) -> str:
    """Hides secret-like text, such as a URL's password."""
    text = _TOKEN.sub(HIDDEN, text)
    if "://" in text:
        text = _USERINFO.sub(rf"\1:{HIDDEN}@", text)
    return _PASSWORD_PARAMETER.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def redact_values(value: Any) -> Any:
    """Redacts the strings of a JSON-like value."""
    return _redacted(value, _redactor())


def has_password(value: str) -> bool:
    """Returns whether a value holds secret-like text."""
    return redact_forms(value) != value


def parse_logins(text: str) -> list[tuple[str, str]]:
    """Parses `name:password` entries; raises ValueError."""
    entries = [entry.strip() for entry in re.split(r"[,\n]", text)]
    logins = []
    for place, entry in enumerate(filter(None, entries), 1):
        name, _, password = entry.partition(":")
        if not name.strip() or not password:
            raise ValueError(f"entry {place} is not of the form name:password")
        logins.append((name.strip(), password))
    names = [name for name, _ in logins]
    if len(set(names)) < len(names):
        raise ValueError("a name occurs twice")
    return logins


class RedactingStream:
    """Redacts secrets, and removes control characters, in text written to a stream.

    Args:
        is_log: Whether text that a full disk doesn't take is dropped. Whoever prints into a log,
            perhaps because of the full disk, has to go on.
    """

    def __init__(self, stream: Any, *, is_log: bool = False) -> None:
        self._stream = stream
        self._guard = suppressed_if_full if is_log else nullcontext

    def write(self, text: str) -> int:
        with self._guard():
            self._stream.write(without_controls(redact(text)))
        return len(text)

    def flush(self) -> None:
        with self._guard():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hide_secrets_in_output(*, is_log: bool = False) -> None:
    """Redacts this process's output, tracebacks included; it can't control a terminal."""
    sys.stdout = RedactingStream(sys.stdout, is_log=is_log)
    sys.stderr = RedactingStream(sys.stderr, is_log=is_log)


def _redacted(value: Any, redactor: _Redactor) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {redactor(str(name)): _redacted(nested, redactor) for name, nested in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(nested, redactor) for nested in value]
    return redactor(str(value))


class _Redactor:
    def __init__(self, hidden: Mapping[str, str]) -> None:
        # Secrets may contain shorter ones.
        self._hidden = sorted(hidden.items(), key=lambda pair: len(pair[0]), reverse=True)

    def __call__(self, text: str, sent: tuple[str, ...] = ()) -> str:
        for part, hidden in self._hidden:
            if part in text and not any(part in sent_text for sent_text in sent):
                text = text.replace(part, hidden)
        return redact_forms(text)


def _redactor() -> _Redactor:
    return _redactor_of(tuple(os.environ.items()))


@lru_cache(maxsize=4)
def _redactor_of(environment: tuple[tuple[str, str], ...]) -> _Redactor:
    secrets: set[str] = set()
    in_addresses: dict[str, str] = {}
    for name, value in environment:
        if name == AUTH_VARIABLE:
            secrets |= set(_passwords_of_logins(value))
        elif name in _TOKEN_VARIABLES:
            secrets |= _spellings(value, _SHORTEST_SECRET)
        elif _SECRET_NAME.search(name):
            shortest = _SHORTEST_SECRET if "PASS" in name.upper() else _SHORTEST_UNKNOWN_SECRET
            secrets |= _spellings(value, shortest)
        is_database = name == DATABASE_URL_VARIABLE
        if is_database or ("://" in value and "@" in value):
            for password in _passwords_in(value, is_database=is_database):
                secrets |= _spellings(password, _SHORTEST_PASSWORD)
                in_addresses |= _in_contexts(password, _hosts_in(value))
    return _Redactor({**in_addresses, **dict.fromkeys(secrets, HIDDEN)})


def _passwords_of_logins(text: str) -> list[str]:
    try:
        passwords = [password for _, password in parse_logins(text)]
    except ValueError:
        passwords = [text]
    return [password for password in passwords if len(password) >= _SHORTEST_SECRET]


def _spellings(secret: str, shortest: int) -> set[str]:
    """Returns a secret plain, percent-encoded, percent-decoded and repr-escaped."""
    decoded = {secret, unquote(secret), unquote_plus(secret)}
    written = {encoded for text in decoded for encoded in (quote(text, safe=""), quote_plus(text))}
    escaped = {repr(text)[1:-1] for text in decoded}
    return {
        spelling for spelling in decoded | written | escaped if len(spelling.strip()) >= shortest
    }


def _passwords_in(address: str, *, is_database: bool) -> set[str]:
    """Returns possible passwords, as programs parse URLs differently."""
    passwords = {value for name, value in _PARAMETER.findall(address) if _is_secret(name)}
    _, colon, after = address.partition("://")[2].partition(":")
    if colon:
        passwords |= {after[: at.start()] for at in re.finditer("@", after)}
    try:
        passwords.add(urlsplit(address).password or "")
    except ValueError:
        passwords.add(address)
    if is_database:
        passwords |= _passwords_for_sqlalchemy(address)
    return {password for password in passwords if password}


def _hosts_in(address: str) -> set[str]:
    return set(re.findall(r"@([^@:/?#]+)", address))


def _passwords_for_sqlalchemy(address: str) -> set[str]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        return {address}
    values = [value for name, value in url.query.items() if _is_secret(name)]
    texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
    return {str(url.password or ""), *texts}


def _is_secret(parameter: str) -> bool:
    return bool(_SECRET_NAME.search(parameter)) or "pass" in parameter or "pwd" in parameter


def _in_contexts(password: str, hosts: Iterable[str]) -> dict[str, str]:
    """Maps contexts that hide even short passwords.

    Programs that split a password quote its parts as host or port.
    """
    contexts: dict[str, str] = {}
    for whole in _spellings(password, 1):
        contexts[f":{whole}@"] = f":{HIDDEN}@"
        contexts |= {
            f"{name}={whole}": f"{name}={HIDDEN}" for name in ("password", "passwd", "pwd")
        }
        places = [place.start() for place in re.finditer(r"[@:/?#%&]", whole)]
        ends = [whole, *(whole[place + 1 :] for place in places)]
        for part in filter(None, (*ends, *(whole[:place] for place in places))):
            contexts |= {f"{mark}{part}{mark}": f"{mark}{HIDDEN}{mark}" for mark in "\"'`"}
            if len(part) >= _SHORTEST_PASSWORD:
                contexts[part] = HIDDEN
        contexts |= {f"{end}@{host}": f"{HIDDEN}@{host}" for end in ends if end for host in hosts}
    return contexts
