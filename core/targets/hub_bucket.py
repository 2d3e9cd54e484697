"""A folder in a storage bucket of the Hugging Face Hub.

Objects appear whole. The Hub replaces objects without a condition, so `create` holds an election:
`core.targets.election`. Uploads go through hf_xet, everything else is plain HTTP.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from core.errors import ConfigError
from core.hub.client import connect
from core.network.hub_ids import flaw_of_hub_id
from core.targets.election import ELECTIONS_FOLDER, hold_election
from core.targets.errors import UnavailableError
from core.targets.hub import OWNER, asking_hub, is_missing, read_account
from core.targets.store import StoredObject, check_number, check_size, checked_name, missing
from core.workspace.names import flaw_of_name

_ADDRESS = re.compile(rf"hf://buckets/(?P<bucket>{OWNER}/{OWNER})(?:/(?P<folder>[^?#%]+))?")
_XET_HASH = re.compile(r"[0-9a-f]{64}")
_READ_TRIES = 3
_NAMES_PER_REQUEST = 500


class HubBucketStore:
    """A store at `hf://buckets/OWNER/NAME[/folder]`.

    A missing bucket of one's own is empty, and becomes a private one at the first write.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        bucket, folder = parse_bucket_address(address)
        self.bucket = Bucket(bucket)
        self._root = f"{folder}/" if folder else ""

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        objects: dict[str, StoredObject] = {}
        for file in self.bucket.list_files(self._root + (f"{prefix}/" if prefix else "")):
            name = str(file.path).removeprefix(self._root)
            if str(file.path).startswith(self._root) and not flaw_of_name(name):
                uploaded = file.uploaded_at.isoformat() if file.uploaded_at else ""
                modified = file.uploaded_at.timestamp() if file.uploaded_at else 0.0
                version = f"{file.xet_hash}-{uploaded}"
                objects[name] = StoredObject(int(file.size), version, modified)
        return objects

    def read(self, name: str, most_bytes: int) -> bytes | None:
        path, data = self._path(name), bytearray()

        def keep(piece: bytes) -> None:
            data.extend(piece)

        is_there = self.bucket.read(path, keep, data.clear, most_bytes, f"{self.address}/{name}")
        return bytes(data) if is_there else None

    def write(self, name: str, data: bytes) -> None:
        self.bucket.add([(data, self._path(name))])

    def create(self, name: str, data: bytes) -> bool:
        elections = f"{self._root}{ELECTIONS_FOLDER}/{checked_name(name, self.address)}"
        return hold_election(self.bucket, elections, self._path(name), data)

    def upload(self, path: Path, name: str) -> None:
        self.bucket.add([(path, self._path(name))])

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        source = self._path(name)
        with path.open("wb") as file:

            def restart() -> None:
                file.seek(0)
                file.truncate()

            is_there = self.bucket.read(
                source, file.write, restart, most_bytes, f"{self.address}/{name}"
            )
        if not is_there:
            path.unlink()
            raise missing(f"{self.address}/{name}")

    def remove(self, names: Iterable[str]) -> None:
        self.bucket.remove([self._path(name) for name in names])

    def _path(self, name: str) -> str:
        return self._root + checked_name(name, self.address)


class Bucket:
    """A bucket's files by their paths, which are trusted here.

    Args:
        id: OWNER/NAME.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self._api = connect()
        self._is_made = False
        self._is_own: bool | None = None

    def list_files(self, prefix: str) -> list[Any]:
        """Lists the files whose paths begin with a prefix."""
        files: list[Any] = []
        with self._asking("listed"):
            try:
                for entry in self._api.list_bucket_tree(self.id, prefix or None, recursive=True):
                    if entry.type == "file" and _XET_HASH.fullmatch(str(entry.xet_hash)):
                        files.append(entry)
                        check_number(files, self.id)
            except Exception as error:
                if not self._is_absent(error):
                    raise
        return files

    def has(self, path: str) -> bool:
        with self._asking("read"):
            return any(
                file.path == path for file in self._api.get_bucket_paths_info(self.id, [path])
            )

    def read(
        self,
        path: str,
        keep: Callable[[bytes], object],
        restart: Callable[[], object],
        most_bytes: int,
        name: str,
    ) -> bool:
        """Streams a file into `keep`, after `restart` if it breaks off; False if it is missing."""
        for left in reversed(range(_READ_TRIES)):
            try:
                with self._streaming(path) as response:
                    if response is None:
                        return False
                    check_size(name, _size(response), most_bytes)
                    received = 0
                    for piece in response.iter_bytes():
                        received += len(piece)
                        check_size(name, received, most_bytes)
                        keep(piece)
                    return True
            except UnavailableError:
                if not left:
                    raise
            restart()
            time.sleep(0.5 * (_READ_TRIES - left))
        raise AssertionError("the last try returns or raises")

    def add(self, files: Sequence[tuple[Path | bytes, str]]) -> None:
        """Uploads or replaces files, in a private bucket if there is none yet."""
        self._make()
        with self._asking("written"):
            self._api.batch_bucket_files(self.id, add=[*files])

    def copy(self, copies: Sequence[tuple[str, str]]) -> None:
        """Copies contents, by their hashes, to other paths."""
        sources = [("bucket", self.id, xet_hash, path) for xet_hash, path in copies]
        with self._asking("written"):
            self._api.batch_bucket_files(self.id, copy=sources)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files; missing ones are ignored."""
        from huggingface_hub.errors import BucketBatchError

        every = [*paths]
        for start in range(0, len(every), _NAMES_PER_REQUEST):
            some = every[start : start + _NAMES_PER_REQUEST]
            with self._asking("written"):
                try:
                    self._api.batch_bucket_files(self.id, delete=some)
                except BucketBatchError:
                    if any(self._api.get_bucket_paths_info(self.id, some)):
                        raise
                except Exception as error:
                    if not self._is_absent(error):
                        raise

    def _make(self) -> None:
        if self._is_made:
            return
        with self._asking("written"):
            try:
                self._api.bucket_info(self.id)
            except Exception as error:
                if not self._is_absent(error):
                    raise
                self._api.create_bucket(self.id, private=True, exist_ok=True)
        self._is_made = True

    @contextmanager
    def _streaming(self, path: str) -> Iterator[Any]:
        """Yields the response with a file's content; None if the file is missing."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = f"{self._api.endpoint}/buckets/{self.id}/resolve/{quote(path, safe='')}"
        # The size that the answer states must be that of the file.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        with (
            self._asking("read"),
            get_session().stream("GET", url, headers=headers) as response,
        ):
            error = _Refusal(response) if response.status_code >= 400 else None
            if error and not is_missing(error, "EntryNotFound") and not self._is_absent(error):
                raise error
            yield None if error else response

    def _is_absent(self, error: Exception) -> bool:
        """Checks whether an error says that this bucket is missing, and would be one's own."""
        if not is_missing(error, "RepoNotFound"):
            return False
        if self._is_own is None:
            account = read_account(self._api, f"The bucket {self.id} can't be read")
            self._is_own = self.id.partition("/")[0] in account.names
        return self._is_own

    def _asking(self, action: str) -> Any:
        return asking_hub(f"The bucket {self.id} can't be {action}", subject="bucket")


class _Refusal(Exception):
    """A refused download; its body, which may be long, isn't read."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.headers.get("X-Error-Message") or response.reason_phrase)
        self.response = response


def parse_bucket_address(address: str, *, field: str = "mirror") -> tuple[str, str]:
    """Splits an address into OWNER/NAME and folder; raises ConfigError."""
    match = _ADDRESS.fullmatch(address.rstrip("/"))
    flaw = "" if match else "not of this form"
    if match:
        folder = match["folder"] or ""
        flaw = flaw_of_hub_id(match["bucket"]) or (flaw_of_name(folder) if folder else "")
    if not match or flaw:
        raise ConfigError(
            "That can't be the address of a bucket on the Hub",
            expected="hf://buckets/OWNER/NAME, perhaps with /folder",
            received=f"{ascii(address)[1:200]}: {flaw}",
            fix="your buckets are listed at https://huggingface.co/settings/storage",
            field=field,
        )
    return match["bucket"], match["folder"] or ""


def _size(response: Any) -> int:
    stated = response.headers.get("Content-Length") or ""
    return int(stated) if stated.isdecimal() else 0
