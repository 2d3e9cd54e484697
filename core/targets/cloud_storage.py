"""A folder in a bucket of Google Cloud Storage or S3, through fsspec."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.callbacks import Callback

from core.storage.files import connect
from core.targets.errors import MirrorError, UnavailableError
from core.targets.store import StoredObject, check_number, check_size, checked_name, missing
from core.workspace.names import flaw_of_name


class _Limit(Callback):
    """Ends a download that is longer than allowed."""

    def __init__(self, name: str, most_bytes: int) -> None:
        super().__init__()
        self._name, self._most_bytes = name, most_bytes

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        check_size(self._name, self.value, self._most_bytes)

    def absolute_update(self, value: int) -> None:
        super().absolute_update(value)
        check_size(self._name, self.value, self._most_bytes)


class CloudStore:
    """Objects appear whole, and `create` is atomic: both services promise that."""

    def __init__(self, address: str) -> None:
        self.address = address
        # Another process writes there, so nothing may be answered from memory.
        self._fs, self._root = connect(
            address, field="mirror", use_listings_cache=False, skip_instance_cache=True
        )

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        with self._explaining("listed"):
            try:
                infos = self._fs.find(self._path(prefix) if prefix else self._root, detail=True)
            except FileNotFoundError:
                return {}
        root = self._root.rstrip("/") + "/"
        objects: dict[str, StoredObject] = {}
        for path, info in infos.items():
            name = path.removeprefix(root)
            if path.startswith(root) and not flaw_of_name(name):
                size = int(info.get("size") or 0)
                objects[name] = StoredObject(size, _version(info), _time_of(info))
                check_number(objects, self.address)
        return objects

    def read(self, name: str, most_bytes: int) -> bytes | None:
        with self._explaining(f"read: {name}"):
            try:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, "object")
                    self._fetch(name, path, most_bytes)
                    return path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._explaining(f"written: {name}"):
            self._fs.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        with self._explaining(f"written: {name}"):
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def upload(self, path: Path, name: str) -> None:
        with self._explaining(f"written: {name}"):
            self._fs.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        with self._explaining(f"read: {name}"):
            try:
                self._fetch(name, path, most_bytes)
            except FileNotFoundError as error:
                raise missing(f"{self.address}/{name}") from error

    def _fetch(self, name: str, path: Path, most_bytes: int) -> None:
        """Downloads an object; MirrorError once more arrives than allowed, whatever is stated."""
        size = int(self._fs.info(self._path(name))["size"])
        check_size(f"{self.address}/{name}", size, most_bytes)
        limit = _Limit(f"{self.address}/{name}", most_bytes)
        self._fs.get_file(self._path(name), str(path), callback=limit)
        check_size(f"{self.address}/{name}", path.stat().st_size, most_bytes)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._explaining(f"removed: {name}"):
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{checked_name(name, self.address)}"

    @contextmanager
    def _explaining(self, action: str) -> Iterator[None]:
        try:
            yield
        except (MirrorError, UnavailableError):
            raise
        except Exception as error:  # Each library has errors of its own.
            raise UnavailableError(
                f"The mirror {self.address} can't be {action}",
                expected="a bucket that exists, and credentials that may read and write it",
                received=f"{type(error).__name__}: {error}"[:500],
                fix="check the address, the credentials and the network; it is tried again",
            ) from error


def _time_of(info: dict[str, Any]) -> float:
    for name in ("mtime", "updated", "LastModified"):
        stated = info.get(name)
        try:
            time = datetime.fromisoformat(stated) if isinstance(stated, str) else stated
        except ValueError:
            continue
        if isinstance(time, datetime):
            return time.timestamp()
    return 0.0


def _version(info: dict[str, Any]) -> str:
    return str(info.get("generation") or info.get("ETag") or info.get("mtime") or "")
