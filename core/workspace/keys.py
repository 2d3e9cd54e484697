"""A workspace's secret key, by which it recognises what it has written itself.

The file has a key per line in hexadecimal digits: the first one signs, each verifies.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import ConfigError
from core.foreign_files import read_regular
from core.workspace.atomic import writing_whole_file
from core.workspace.places import is_shared, make_folder

# Hidden, so that no folder of texts includes it.
KEY_FILE = ".mirror-key"
_KEY_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}")
_MOST_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class Keys:
    """Secret keys: the first one signs, each verifies."""

    secrets: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str) -> Keys:
        """Parses keys between white space; raises ConfigError."""
        words = text.split()
        if not words or not all(map(_KEY.fullmatch, words)):
            raise ConfigError(
                "That is no key of a workspace",
                expected=f"{2 * _KEY_BYTES} hexadecimal digits, as `studio mirror key` prints them",
                received=f"{len(text.strip())} characters",
                fix="copy the whole key from the other computer",
            )
        return cls(tuple(map(bytes.fromhex, words)))

    def format(self) -> str:
        return " ".join(secret.hex() for secret in self.secrets)

    def derive(self, purpose: str) -> Keys:
        """Returns keys for one purpose, from which these can't be computed."""
        return Keys(tuple(_mac(secret, "derive", purpose.encode()) for secret in self.secrets))

    def sign(self, name: str, data: bytes) -> str:
        """Signs data under a name, in hexadecimal digits (HMAC-SHA256)."""
        return _mac(self.secrets[0], name, data).hex()

    def has_signed(self, name: str, data: bytes, signature: object) -> bool:
        if not isinstance(signature, str) or not _KEY.fullmatch(signature):
            return False
        signature_bytes = bytes.fromhex(signature)
        return any(
            hmac.compare_digest(_mac(secret, name, data), signature_bytes)
            for secret in self.secrets
        )


def read_keys(root: Path) -> Keys:
    """Reads a workspace's keys; none if it has not needed one yet. Raises ConfigError."""
    path = root / KEY_FILE
    if not path.exists():
        return Keys()
    return Keys.parse(
        read_regular(path, _MOST_FILE_BYTES, error=ConfigError).decode("ascii", "replace")
    )


def make_keys(root: Path) -> Keys:
    """Reads a workspace's keys; the first call makes one."""
    path = root / KEY_FILE
    if not path.exists():
        make_folder(root)
        draft = root / f"{KEY_FILE}.{secrets.token_hex(4)}"
        try:
            _write(draft, Keys((secrets.token_bytes(_KEY_BYTES),)), root)
            with suppress(FileExistsError):  # Another process was faster.
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return read_keys(root)


def import_key(root: Path, text: str) -> None:
    """Makes another workspace's key this one's; the earlier ones still verify.

    Raises ConfigError for anything but a key.
    """
    given, known = Keys.parse(text).secrets, make_keys(root).secrets
    with writing_whole_file(root / KEY_FILE) as draft:
        _write(draft, Keys(tuple(dict.fromkeys((*given, *known)))), root)


def _write(path: Path, keys: Keys, root: Path) -> None:
    mode = stat.S_IRUSR | stat.S_IWUSR
    mode |= (stat.S_IRGRP | stat.S_IWGRP) if is_shared(root) else 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="ascii") as file:
        file.writelines(f"{secret.hex()}\n" for secret in keys.secrets)
        file.flush()
        os.fsync(descriptor)


def _mac(key: bytes, name: str, data: bytes) -> bytes:
    return hmac.digest(key, name.encode() + b"\0" + data, "sha256")
