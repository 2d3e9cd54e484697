"""Uploads and downloads shards through fsspec, verified.

The manifest comes last, so a folder with one is complete. Stores' file names are untrusted.
"""

from __future__ import annotations

import base64
import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import md5, sha256
from pathlib import Path, PurePosixPath
from typing import Any

from core.config.base import fingerprint_of
from core.errors import ConfigError, ShardError, StudioError
from core.foreign_files import files_inside
from core.messages.system_errors import in_temporary_folder
from core.network.hub import guard_hub
from core.network.outbound import (
    check_url,
    guard_fsspec,
    most_seconds,
    refusal_in,
)
from core.records.events import Reporter, RunStopped
from core.storage.shard_names import parse_file_name
from core.workspace.atomic import writing_whole_file
from core.workspace.manifests import (
    MANIFEST_FILE,
    MOST_MANIFEST_BYTES,
    Manifest,
    hash_file,
    manifest_text,
    parse_manifest,
    read_manifest,
)
from core.workspace.names import flaw_of_name, path_inside
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_ATTEMPTS = 3
_LONGEST_COPY_NAME = 96
# Kept free after downloads.
_KEPT_FREE_BYTES = 64 << 20
# Stores without folders.
_BUCKETS = {"gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "oci", "hf"}


def is_address(reference: str) -> bool:
    """True for an address like gs://bucket/folder."""
    return "://" in reference


def hub_address(reference: str) -> str:
    return f"hf://datasets/{reference}"


@dataclass(frozen=True)
class StoredFile:
    """A store's metadata of a file.

    Attributes:
        bytes: -1 if unknown.
        md5: Hex, or a look-alike: only a match proves anything.
        version: Changes when rewritten.
    """

    bytes: int
    md5: str = ""
    version: str = ""


class RemoteFolder:
    """An fsspec folder; raises ConfigError if its scheme is unusable."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._fs, self._root = connect(self.address)

    def files(self) -> dict[str, StoredFile]:
        """Lists files by relative path, if the folder exists."""
        with _failures_named(f"{self.address} can't be listed"):
            self._fs.invalidate_cache()
            try:
                file_infos = self._fs.find(self._root, detail=True)
            except FileNotFoundError as error:
                if refusal := refusal_in(error):
                    raise refusal from error
                return {}
            prefix = self._root.rstrip("/") + "/"
            # Some consoles mark folders by empty files with a final slash.
            return {
                path.removeprefix(prefix): _stored_file(info)
                for path, info in file_infos.items()
                if path.startswith(prefix) and not path.endswith("/")
            }

    def has(self, name: str) -> bool:
        """True if a file exists, for stores that list none."""
        return self.find(name) is not None

    def find(self, name: str) -> StoredFile | None:
        """Returns a file's metadata, or None if it doesn't exist."""
        with _failures_named(f"{self.address}/{name} can't be accessed"):
            try:
                return _stored_file(self._fs.info(self._path(name)))
            except FileNotFoundError as error:
                if refusal := refusal_in(error):
                    raise refusal from error
                return None

    def read(self, name: str, *, most_bytes: int) -> bytes:
        with in_temporary_folder(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            self.download(name, path, most_bytes=most_bytes)
            return path.read_bytes()

    def download(self, name: str, path: Path, *, most_bytes: int) -> None:
        """Downloads a file, aborting beyond `most_bytes`."""
        with _failures_named(f"{self.address}/{name} can't be downloaded"):
            limit = _limit(f"{self.address}/{name}", most_bytes)
            self._fs.get_file(
                self._path(name), str(path), callback=limit, **_time_limits(self._fs, most_bytes)
            )
            if path.is_dir():  # made by some stores
                path.rmdir()
                raise IsADirectoryError("a folder, not a file")
            limit.check(path.stat().st_size)

    def upload(self, path: Path, name: str) -> None:
        """Uploads and verifies a file, in several attempts."""
        for _ in range(_ATTEMPTS):
            with _failures_named(f"{path.name} can't be written to {self.address}"):
                self._make_folder(name)
                self._fs.put_file(str(path), self._path(name))
                self._fs.invalidate_cache()
            if self._has_same_content(path, name):
                return
        raise ShardError(
            f"{self.address}/{name} differs from the uploaded file",
            expected="the uploaded content",
            fix="try again, or set ⟬output_dir⟭ to another address",
        )

    def check_writable(self) -> None:
        """Writes and removes a small file."""
        name = f".studio-{os.getpid()}"
        with _failures_named(f"{self.address} can't be written to"):
            self._make_folder(name)
            self._fs.pipe_file(self._path(name), b"studio")
        self.remove([name])

    def remove(self, names: Iterable[str]) -> None:
        """Removes files, ignoring missing ones."""
        for name in names:
            with _failures_named(f"{self.address}/{name} can't be removed"):
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _has_same_content(self, path: Path, name: str) -> bool:
        with _failures_named(f"{self.address}/{name} can't be read"):
            stored = _stored_file(self._fs.info(self._path(name)))
        if stored.bytes != path.stat().st_size:
            return False
        if stored.md5 and stored.md5 == _md5_of(path):
            return True
        # With server-side encryption an ETag only looks like an MD5.
        return self._sha256(name) == hash_file(path)

    def _sha256(self, name: str) -> str:
        digest = sha256()
        with (
            _failures_named(f"{self.address}/{name} can't be read"),
            self._fs.open(self._path(name), "rb") as file,
        ):
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def _make_folder(self, name: str) -> None:
        protocols = self._fs.protocol
        if (
            not _BUCKETS & {protocols}
            if isinstance(protocols, str)
            else not _BUCKETS & {*protocols}
        ):
            self._fs.makedirs(str(PurePosixPath(self._path(name)).parent), exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def upload_folder(folder: Path, remote: RemoteFolder, reporter: Reporter) -> list[str]:
    """Uploads a folder, its manifest last; cleans up after a failure. Returns the files' names."""
    names = [str(path.relative_to(folder)) for path in files_inside(folder, error=ShardError)]
    names.sort(key=lambda name: name == MANIFEST_FILE)
    total = sum((folder / name).stat().st_size for name in names)
    done = 0
    try:
        for name in names:
            reporter.raise_if_stopped()
            remote.upload(folder / name, name)
            done += (folder / name).stat().st_size
            reporter.progress(done, total, "bytes", f"uploading to {remote.address}")
    except BaseException:
        with suppress(ShardError):
            remote.remove(names)
        raise
    return names


def fetch_shards(
    address: str, workspace: Workspace, reporter: Reporter, fingerprint: str = ""
) -> Path:
    """Returns a verified local copy of remote shards.

    Args:
        fingerprint: If cached, the store isn't contacted.

    Raises:
        ConfigError: There are no shards.
        ShardError: A file doesn't match, or the store refuses.
    """
    cache = workspace.cache / "shards"
    if fingerprint and (copy := _find_copy(cache, fingerprint)):
        return copy
    remote = RemoteFolder(address)
    stored = remote.files()
    if MANIFEST_FILE in stored or (not stored and remote.has(MANIFEST_FILE)):
        return _fetch_with_manifest(remote, cache, reporter, fingerprint)
    return _fetch_bare(remote, stored, cache, reporter)


def is_cached(fingerprint: str, workspace: Workspace) -> bool:
    """True if a complete copy is cached."""
    return _find_copy(workspace.cache / "shards", fingerprint) is not None


def _fetch_with_manifest(
    remote: RemoteFolder, cache: Path, reporter: Reporter, fingerprint: str
) -> Path:
    manifest = _parse_manifest(remote)
    if fingerprint and manifest.fingerprint != fingerprint:
        raise ShardError(
            f"The shards at {remote.address} have changed",
            expected=f"shards with the fingerprint {fingerprint}",
            received=f"the fingerprint {manifest.fingerprint}",
            fix="build the shards again, or set ⟬shards⟭ to the address itself",
        )
    folder = _cache_folder(cache, manifest.name, manifest.fingerprint, remote.address)
    if not _is_complete(folder):
        sizes = {name: entry["bytes"] for name, entry in manifest.files.items()}
        _check_room(sizes, folder, remote.address)
        for name in _with_progress(sizes, reporter, remote.address):
            _fetch_file(remote, folder, name, manifest.files[name])
        _write_synced(folder / MANIFEST_FILE, manifest_text(manifest).encode())
    return folder


def _fetch_bare(
    remote: RemoteFolder, stored: Mapping[str, StoredFile], cache: Path, reporter: Reporter
) -> Path:
    wanted = {name: file for name, file in stored.items() if _is_wanted(name)}
    if not wanted:
        raise ConfigError(
            f"There are no shards at {remote.address}",
            expected=f"{MANIFEST_FILE}, or files named like dataset-0-1000.tfrecord, in this "
            "folder or in train/ and validation/",
            received=f"{len(stored)} other files" if stored else "nothing",
            fix="check the address",
            field="shards",
        )
    if unknown := next((name for name, file in wanted.items() if file.bytes < 0), ""):
        raise ShardError(
            f"The shards at {remote.address} have no manifest and can't be downloaded",
            expected=f"{MANIFEST_FILE}, or a store that reports file sizes",
            received=f"no size for {unknown}",
            fix="build the shards again to write a manifest, or download the folder first",
        )
    states = {name: [file.bytes, file.md5, file.version] for name, file in wanted.items()}
    name = PurePosixPath(remote.address).name
    folder = _cache_folder(cache, name, fingerprint_of([remote.address, states]), remote.address)
    sizes = {name: file.bytes for name, file in wanted.items()}
    _check_room(sizes, folder, remote.address)
    for file in _with_progress(sizes, reporter, name):
        _fetch_file(remote, folder, file, {"bytes": wanted[file].bytes})
    return folder


def _fetch_file(remote: RemoteFolder, folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    final = path_inside(folder, name, f"The manifest at {remote.address}")
    if final.is_file() and final.stat().st_size == entry["bytes"]:
        return
    make_folder(final.parent)
    with writing_whole_file(final) as draft:
        remote.download(name, draft, most_bytes=entry["bytes"])
        size = draft.stat().st_size
        if size != entry["bytes"] or entry.get("sha256", hash_file(draft)) != hash_file(draft):
            raise ShardError(
                f"{remote.address}/{name} doesn't match its manifest",
                expected=f"{entry['bytes']} bytes with the SHA-256 in the manifest",
                received=f"{size} bytes" if size != entry["bytes"] else "other content",
                fix="upload the file again, or build the shards again",
            )


def _parse_manifest(remote: RemoteFolder) -> Manifest:
    try:
        manifest = parse_manifest(remote.read(MANIFEST_FILE, most_bytes=MOST_MANIFEST_BYTES))
    except (ValueError, TypeError) as error:
        raise _bad_manifest(remote, str(error)) from error
    if manifest.kind != "shards":
        raise _bad_manifest(remote, f"a manifest of kind {manifest.kind}")
    if not manifest.fingerprint:
        raise _bad_manifest(remote, "a manifest without a fingerprint")
    return manifest


def _bad_manifest(remote: RemoteFolder, received: str) -> ShardError:
    return ShardError(
        f"The manifest at {remote.address} can't be used",
        expected="a manifest that this program wrote for shards",
        received=received,
        fix="build the shards again",
    )


def _find_copy(cache: Path, fingerprint: str) -> Path | None:
    copies = cache.glob(f"*-{glob.escape(fingerprint)}") if cache.is_dir() else iter(())
    return next((copy for copy in copies if _is_complete(copy)), None)


def _is_complete(folder: Path) -> bool:
    if not (folder / MANIFEST_FILE).is_file():
        return False
    try:
        files = read_manifest(folder).files
    except StudioError:
        return False  # fetched again
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == entry["bytes"]
        for name, entry in files.items()
    )


def _cache_folder(cache: Path, name: str, fingerprint: str, address: str) -> Path:
    plain = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in name)
    plain = plain[:_LONGEST_COPY_NAME].strip("-") or "shards"
    folder = path_inside(cache, f"{plain}-{fingerprint}", f"The manifest at {address}")
    make_folder(folder)
    return folder


def _is_wanted(name: str) -> bool:
    if flaw_of_name(name):
        return False
    folder, _, file = name.rpartition("/")
    if folder == "tokenizer":
        return file.endswith(".json")
    return folder in ("", "train", "validation") and parse_file_name(file) is not None


def _check_room(sizes: Mapping[str, int], folder: Path, address: str) -> None:
    here = [folder / name for name in sizes]
    done = sum(path.stat().st_size for path in here if path.is_file())
    wanted, free = sum(sizes.values()) - done, shutil.disk_usage(folder).free
    if wanted > max(0, free - _KEPT_FREE_BYTES):
        raise ShardError(
            f"There is too little disk space for the shards at {address}",
            expected=f"{wanted:,} bytes on the disk of {folder}",
            received=f"{free:,} free bytes",
            fix="free disk space, choose another --workspace, or check that the shards should be "
            "this large",
        )


def _with_progress(sizes: Mapping[str, int], reporter: Reporter, address: str) -> Iterator[str]:
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        reporter.raise_if_stopped()
        yield name
        done += size
        reporter.progress(done, total, "bytes", f"downloading {address}")


def _write_synced(path: Path, data: bytes) -> None:
    with writing_whole_file(path) as draft:
        draft.write_bytes(data)


_VERSIONS = ("generation", "ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified")


def _stored_file(info: Mapping[str, Any]) -> StoredFile:
    """The MD5 is `md5Hash` at Google, `ETag` at Amazon."""
    checksum = ""
    if "md5Hash" in info:
        checksum = base64.b64decode(info["md5Hash"]).hex()
    elif len(tag := str(info.get("ETag", "")).strip('"')) == 32 and "-" not in tag:
        checksum = tag
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    size = info.get("size")
    return StoredFile(-1 if size is None else int(size), checksum, version)


def _md5_of(path: Path) -> str:
    digest = md5(usedforsecurity=False)
    with path.open("rb") as file:
        shutil.copyfileobj(file, _Digest(digest), 1 << 20)
    return digest.hexdigest()


class _Digest:
    def __init__(self, digest: Any) -> None:
        self.write = digest.update


def _limit(name: str, most_bytes: int) -> Any:
    from fsspec.callbacks import TqdmCallback

    class Limit(TqdmCallback):
        """A TqdmCallback, as the Hub's file system notifies no other."""

        def __init__(self) -> None:
            super().__init__()
            self.tqdm = self
            self.n = 0
            self.total: int | None = None

        def check(self, size: int) -> None:
            if size > most_bytes:
                raise ShardError(
                    f"{name} is larger than expected",
                    expected=f"at most {most_bytes:,} bytes",
                    received=f"{size:,} bytes, or more",
                    fix="upload the file again, or build the shards again",
                )

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            self.check(self.n)

        def relative_update(self, inc: int = 1) -> None:
            self.update(inc)

        def call(self, *_: Any, **__: Any) -> None:
            pass

        def close(self) -> None:
            pass

    return Limit()


def _time_limits(fs: Any, size_bytes: int) -> dict[str, Any]:
    from fsspec.implementations.http import HTTPFileSystem

    return {"most_seconds": most_seconds(size_bytes)} if isinstance(fs, HTTPFileSystem) else {}


def connect(address: str, *, field: str = "output_dir", **options: Any) -> tuple[Any, str]:
    """Returns an address's file system and path.

    Args:
        field: The setting that holds the address.

    Raises:
        ConfigError: The scheme is unusable.
    """
    import fsspec

    guard_fsspec()
    if address.startswith("hf://"):
        guard_hub()
    if address.startswith(("http://", "https://")):
        check_url(address, schemes=("http", "https"))
    try:
        return fsspec.core.url_to_fs(address, **_options(address), **options)
    except ImportError as error:
        raise ConfigError(
            f"Reading {address} needs a library that isn't installed",
            expected="the library for this type of address",
            received=str(error),
            fix="pip install -r requirements-cloud.txt",
            field=field,
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{address} has an unknown address type",
            expected="gs://, s3://, hf:// or another protocol of fsspec",
            received=str(error),
            fix="check the address",
            field=field,
        ) from error


def _options(address: str) -> dict[str, Any]:
    endpoint = os.environ.get("HF_ENDPOINT")
    return {"endpoint": endpoint} if endpoint and address.startswith("hf://") else {}


@contextmanager
def _failures_named(problem: str) -> Iterator[None]:
    """Turns any store library's exception into a ShardError."""
    try:
        yield
    except (StudioError, RunStopped):
        raise
    except Exception as error:
        if refusal := refusal_in(error):
            raise refusal from error
        raise ShardError(
            problem,
            expected="a reachable store that grants this machine access",
            received=f"{type(error).__name__}: {error}",
            fix="check the address, the network and your login to the store",
        ) from error
