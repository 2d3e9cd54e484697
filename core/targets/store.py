"""Stores files at an address: the storage below a mirror.

Objects appear whole. `create` is atomic and never replaces an object. Names are relative paths.
Contents are untrusted: reads are limited in size, and listings contain only names that are safe
below a folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from core.targets.errors import MirrorError, UnavailableError
from core.workspace.atomic import writing_whole_file
from core.workspace.names import flaw_of_name
from core.workspace.places import make_folder

_MOST_OBJECTS = 200_000


@dataclass(frozen=True)
class StoredObject:
    """Metadata of a stored object.

    Attributes:
        bytes: Size.
        version: Changes if the object is replaced; may be empty.
    """

    bytes: int
    version: str = ""


class ObjectStore(Protocol):
    """A folder of objects at an address.

    All methods raise UnavailableError if the store can't be reached, and TargetError if it refuses.
    """

    address: str

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        """Lists the objects below a folder by full name; a missing folder is empty."""
        ...

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Reads an object; None if it is missing; MirrorError if it is larger than allowed."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Writes or replaces an object."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Writes a new object; returns False if it exists."""
        ...

    def upload(self, path: Path, name: str) -> None:
        """Uploads a file; an object of this name is replaced."""
        ...

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        """Downloads an object to a new file; MirrorError if it is missing or too large."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; missing ones are ignored."""
        ...


class FolderStore:
    """A folder of this machine, perhaps on a network file system."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.root = Path(os.path.expanduser(_path_of(address)))

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        found: dict[str, StoredObject] = {}
        with _explaining(self.address):
            for folder, _, files in os.walk(self.root / prefix if prefix else self.root):
                for file in files:
                    path = Path(folder, file)
                    name = path.relative_to(self.root).as_posix()
                    if file.startswith(".") or flaw_of_name(name) or path.is_symlink():
                        continue
                    stat = path.stat()
                    found[name] = StoredObject(stat.st_size, f"{stat.st_mtime_ns}-{stat.st_ino}")
                    check_number(found, self.address)
        return found

    def read(self, name: str, most_bytes: int) -> bytes | None:
        with _explaining(self.address):
            path = self._find(name)
            if path is None:
                return None
            with path.open("rb") as file:
                data = file.read(most_bytes + 1)
        check_size(f"{self.address}/{name}", len(data), most_bytes)
        return data

    def write(self, name: str, data: bytes) -> None:
        with _explaining(self.address), writing_whole_file(self._prepared(name)) as draft:
            draft.write_bytes(data)

    def create(self, name: str, data: bytes) -> bool:
        with _explaining(self.address):
            final = self._prepared(name)
            draft = final.with_name(f".{secrets.token_hex(8)}")
            try:
                draft.write_bytes(data)
                os.link(draft, final)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
        return True

    def upload(self, path: Path, name: str) -> None:
        with _explaining(self.address), writing_whole_file(self._prepared(name)) as draft:
            shutil.copyfile(path, draft)

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        with _explaining(self.address):
            source = self._find(name)
            if source is None:
                raise missing(f"{self.address}/{name}")
            check_size(f"{self.address}/{name}", source.stat().st_size, most_bytes)
            # A link would change with the mirror after it was verified.
            shutil.copyfile(source, path)

    def remove(self, names: Iterable[str]) -> None:
        with _explaining(self.address):
            for name in names:
                path = self._path(name)
                path.unlink(missing_ok=True)
                _remove_empty(path.parent, self.root)

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name, self.address)

    def _find(self, name: str) -> Path | None:
        """Returns an object's path; None if it is missing, or a link or pipe as none is listed."""
        path = self._path(name)
        return path if path.is_file() and not path.is_symlink() else None

    def _prepared(self, name: str) -> Path:
        path = self._path(name)
        make_folder(path.parent)
        return path


def checked_name(name: str, address: str) -> str:
    """Returns a name that is safe below a folder; raises MirrorError for any other."""
    if flaw := flaw_of_name(name):
        raise MirrorError(
            f"The mirror {address} names an object that is not accepted",
            expected="a relative path of visible files",
            received=f"{ascii(name)[:100]}, which {flaw}",
            fix="don't use this mirror: this program writes no such names",
        )
    return name


def check_number(found: Sized, address: str) -> None:
    """Raises MirrorError for a listing with too many objects."""
    if len(found) > _MOST_OBJECTS:
        raise MirrorError(
            f"The mirror {address} has too many objects",
            expected=f"at most {_MOST_OBJECTS:,}",
            received="more",
            fix="name the folder of one run, or don't use this mirror",
        )


def check_size(name: str, size: int, most_bytes: int) -> None:
    """Raises MirrorError for an object that is larger than allowed."""
    if size > most_bytes:
        raise MirrorError(
            f"{name} is too large",
            expected=f"at most {most_bytes:,} bytes",
            received="more",
            fix="don't use this mirror: this program writes no such objects",
        )


def missing(name: str) -> MirrorError:
    return MirrorError(
        f"{name} is missing",
        expected="an object that the mirror lists or names",
        received="none",
        fix="check the address; if the object was deleted, start the run again",
    )


def _path_of(address: str) -> str:
    path = urlsplit(address).path
    return path.removeprefix("/") if path.startswith("/~") else path


@contextmanager
def _explaining(address: str) -> Iterator[None]:
    """Converts an OSError of a folder into UnavailableError."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"The mirror {address} can't be read or written",
            expected="a folder that this account may write to, with room on its disk",
            received=error.strerror or str(error),
            fix="check the folder; it is tried again",
        ) from error


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
