"""Stores files at an address: the storage below a mirror.

Objects appear whole. `create` is atomic and never replaces an object. Names are relative paths.
Contents are untrusted: reads are limited in size, and listings contain only names that are safe
below a folder.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

from core.targets.errors import MirrorError, UnavailableError
from core.workspace.names import flaw_of_name
from core.workspace.places import make_folder, user_umask

_MOST_OBJECTS = 200_000
_PIECE_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class StoredObject:
    """Metadata of a stored object.

    Attributes:
        bytes: Size.
        version: Changes if the object is replaced; may be empty.
        modified: Unix seconds, by the store's clock; 0: unknown.
    """

    bytes: int
    version: str = ""
    modified: float = 0.0


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
    """A folder of this machine, perhaps on a network file system that others may write to.

    No link below it is followed, however late it was made.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.root = Path(os.path.expanduser(_path_of(address)))

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        objects: dict[str, StoredObject] = {}
        if not (self.root / prefix).is_dir() or self._is_link(prefix):
            return objects
        with explaining(self.address):
            for folder, _, files in os.walk(self.root / prefix if prefix else self.root):
                for file in files:
                    path = Path(folder, file)
                    name = path.relative_to(self.root).as_posix()
                    if file.startswith(".") or flaw_of_name(name):
                        continue
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        version = f"{status.st_mtime_ns}-{status.st_ino}"
                        objects[name] = StoredObject(status.st_size, version, status.st_mtime)
                    check_number(objects, self.address)
        return objects

    def read(self, name: str, most_bytes: int) -> bytes | None:
        with explaining(self.address):
            file = self._open(name)
            if file is None:
                return None
            with file:
                data = file.read(most_bytes + 1)
        check_size(f"{self.address}/{name}", len(data), most_bytes)
        return data

    def write(self, name: str, data: bytes) -> None:
        with explaining(self.address), self._drafting(name) as (folder, draft, last):
            with _new_file(folder, draft) as file:
                file.write(data)
            os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)

    def create(self, name: str, data: bytes) -> bool:
        with explaining(self.address), self._drafting(name) as (folder, draft, last):
            with _new_file(folder, draft) as file:
                file.write(data)
            try:
                os.link(draft, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def upload(self, path: Path, name: str) -> None:
        with explaining(self.address), self._drafting(name) as (folder, draft, last):
            with path.open("rb") as source, _new_file(folder, draft) as file:
                shutil.copyfileobj(source, file, _PIECE_BYTES)
            os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        with explaining(self.address):
            source = self._open(name)
            if source is None:
                raise missing(f"{self.address}/{name}")
            # A link would change with the mirror after it was verified.
            with source, path.open("wb") as file:
                done = 0
                while piece := source.read(_PIECE_BYTES):
                    done += len(piece)
                    check_size(f"{self.address}/{name}", done, most_bytes)
                    file.write(piece)

    def remove(self, names: Iterable[str]) -> None:
        with explaining(self.address):
            for name in names:
                with self._folder_of(name) as (folder, last):
                    if folder is not None:
                        with suppress(FileNotFoundError):
                            os.unlink(last, dir_fd=folder)
                if not self._is_link(name.rpartition("/")[0]):
                    _remove_empty((self.root / name).parent, self.root)

    def _open(self, name: str) -> IO[bytes] | None:
        """Opens an object; None if it is missing, or a link or pipe as none is listed."""
        with self._folder_of(name) as (folder, last):
            if folder is None:
                return None
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(last, flags, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                    return None
                raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb")

    @contextmanager
    def _drafting(self, name: str) -> Iterator[tuple[int, str, str]]:
        """Yields an object's folder and the names of a draft in it and of the object."""
        with self._folder_of(name, make=True) as (folder, last):
            assert folder is not None
            draft = f".{secrets.token_hex(8)}"
            try:
                yield folder, draft, last
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)

    @contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """Yields a descriptor of an object's folder, None if it is missing, and the last name.

        Each folder is opened from the one above it, so that no link can lead elsewhere.
        """
        *folders, last = checked_name(name, self.address).split("/")
        if make:
            make_folder(self.root)
        try:
            descriptor = os.open(self.root, _FOLDER)
        except FileNotFoundError:
            yield None, last
            return
        try:
            for folder in folders:
                is_new = make and _make_folder(folder, descriptor)
                try:
                    inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                except OSError as error:
                    is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
                    if make or not is_missing:
                        raise
                    yield None, last
                    return
                os.close(descriptor)
                descriptor = inner
                if is_new:
                    _apply_umask(descriptor, 0o777)
            yield descriptor, last
        finally:
            os.close(descriptor)

    def _is_link(self, name: str) -> bool:
        """Returns whether a folder below the root is, or lies in, a link."""
        parts = name.split("/") if name else []
        return any(
            self.root.joinpath(*parts[: count + 1]).is_symlink() for count in range(len(parts))
        )


def _make_folder(name: str, parent: int) -> bool:
    """Makes a folder; returns False if there is one."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return False
    return True


@contextmanager
def _new_file(folder: int, name: str) -> Iterator[IO[bytes]]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
        _apply_umask(file.fileno(), 0o666)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _apply_umask(descriptor: int, mode: int) -> None:
    """Gives others the rights that the user's umask leaves them: a mirror may be shared."""
    if (umask := user_umask()) != -1:
        os.fchmod(descriptor, mode & ~umask)


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


def check_number(listing: Sized, address: str) -> None:
    """Raises MirrorError for a listing with too many objects."""
    if len(listing) > _MOST_OBJECTS:
        raise MirrorError(
            f"The mirror {address} has too many objects",
            expected=f"at most {_MOST_OBJECTS:,}",
            fix="name the folder of one run, or don't use this mirror",
        )


def check_size(name: str, size: int, most_bytes: int) -> None:
    """Raises MirrorError for an object that is larger than allowed."""
    if size > most_bytes:
        raise MirrorError(
            f"{name} is too large",
            expected=f"at most {most_bytes:,} bytes",
            fix="don't use this mirror: this program writes no such objects",
        )


def missing(name: str) -> MirrorError:
    return MirrorError(
        f"{name} is missing",
        expected="an object that the mirror lists or names",
        fix="check the address; if the object was deleted, start the run again",
    )


def _path_of(address: str) -> str:
    path = urlsplit(address).path
    return path.removeprefix("/") if path.startswith("/~") else path


@contextmanager
def explaining(address: str) -> Iterator[None]:
    """Converts an OSError of a folder into UnavailableError."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"The mirror {address} can't be read or written",
            expected="a folder that this account may write to, with room on its disk",
            received=error.strerror or str(error),
            fix="check the folder; it is tried again",
            knows_cause=True,
        ) from error


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
