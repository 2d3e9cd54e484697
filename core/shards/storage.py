"""Shards at an address like `gs://bucket/folder`, through fsspec.

Upload: every file is compared with what the store says it holds, and the manifest goes last, so a
folder with a manifest is whole. Download: to the workspace's cache, compared with the manifest's
sizes and SHA-256, the manifest last. What a store answers is not trusted to name files here.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import md5, sha256
from pathlib import Path, PurePosixPath
from typing import Any

from core.config import fingerprint_of
from core.errors import ConfigError, ShardError, StudioError
from core.events import Reporter, RunStopped
from core.shards.records import parse_file_name
from core.workspace import (
    MANIFEST_FILE,
    Manifest,
    Workspace,
    hash_file,
    manifest_text,
    parse_manifest,
    read_manifest,
    written_whole,
)

_ATTEMPTS = 3
# Stores without folders: there is nothing to make before a file is put.
_BUCKETS = {"gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "oci", "hf"}


def is_address(reference: str) -> bool:
    """Returns whether a reference is an address, like gs://bucket/folder."""
    return "://" in reference


def hub_address(reference: str) -> str:
    """Returns the address of the dataset repository `owner/name[@revision]` on the Hub."""
    return f"hf://datasets/{reference}"


@dataclass(frozen=True)
class StoredFile:
    """What a store says of a file.

    Attributes:
        bytes: Its size.
        md5: Its MD5 in hex, where the store tells; or a tag that looks like one. So a match proves
            the content, and a difference proves nothing.
        version: What changes when the file is written anew, in the store's own words; empty where
            it has none.
    """

    bytes: int
    md5: str = ""
    version: str = ""


class RemoteFolder:
    """A folder at an fsspec address.

    Args:
        address: Like gs://bucket/folder.

    Raises:
        ConfigError: No such kind of address is known, or what it needs isn't installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._fs, self._root = _connect(self.address)

    def files(self) -> dict[str, StoredFile]:
        """Returns the files below the folder, by relative path; none where there is no folder."""
        with _failures_named(f"{self.address} can't be listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        prefix = self._root.rstrip("/") + "/"
        # Some consoles make empty files whose names end in a slash, to show as folders.
        return {
            path.removeprefix(prefix): _stored_file(info)
            for path, info in found.items()
            if not path.endswith("/")
        }

    def read(self, name: str) -> bytes:
        """Returns a file's content."""
        with _failures_named(f"{self.address}/{name} can't be read"):
            return self._fs.cat_file(self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Copies a file to this machine."""
        with _failures_named(f"{self.address}/{name} can't be fetched"):
            self._fs.get_file(self._path(name), str(path))

    def upload(self, path: Path, name: str) -> None:
        """Copies a file to the store and compares what it holds then.

        Raises:
            ShardError: It holds something else, after several attempts.
        """
        for _ in range(_ATTEMPTS):
            with _failures_named(f"{path.name} can't be written to {self.address}"):
                self._make_folder(name)
                self._fs.put_file(str(path), self._path(name))
                self._fs.invalidate_cache()
            if self._holds(path, name):
                return
        raise ShardError(
            f"{self.address}/{name} isn't what was written there",
            expected="the same bytes as were sent",
            received="others",
            fix="try again, or name another place with output_dir",
        )

    def check_writable(self) -> None:
        """Writes a small file and removes it, to know before the work whether that can be done.

        Raises:
            ShardError: The store refuses.
        """
        name = f".studio-{os.getpid()}"
        with _failures_named(f"{self.address} can't be written to"):
            self._make_folder(name)
            self._fs.pipe_file(self._path(name), b"studio")
        self.remove([name])

    def remove(self, names: Iterable[str]) -> None:
        """Removes files; those that aren't there don't matter."""
        for name in names:
            with _failures_named(f"{self.address}/{name} can't be removed"):
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _holds(self, path: Path, name: str) -> bool:
        with _failures_named(f"{self.address}/{name} can't be read"):
            stored = _stored_file(self._fs.info(self._path(name)))
        if stored.bytes != path.stat().st_size:
            return False
        if stored.md5 and stored.md5 == _md5_of(path):
            return True
        # Of files that a store encrypts with a key of its own, an ETag only looks like an MD5.
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


def upload_folder(folder: Path, remote: RemoteFolder, reporter: Reporter) -> None:
    """Uploads all files of a folder, its manifest last. A failure leaves nothing behind."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
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


def fetch_shards(
    address: str, workspace: Workspace, reporter: Reporter, fingerprint: str = ""
) -> Path:
    """Returns a verified local copy of the shards at an address.

    Args:
        address: Their folder; with a manifest, or as the original script left it.
        workspace: Its cache keeps the copy.
        reporter: Hears how far the download is.
        fingerprint: What they should be, where that is known; a copy that is it is used without
            asking the store.

    Raises:
        ConfigError: There are no shards.
        ShardError: They are others, a file isn't what the manifest says, or the store refuses.
    """
    cache = workspace.cache / "shards"
    if fingerprint and (copy := _find_copy(cache, fingerprint)):
        return copy
    remote = RemoteFolder(address)
    stored = remote.files()
    if MANIFEST_FILE in stored:
        return _fetch_with_manifest(remote, cache, reporter, fingerprint)
    return _fetch_bare(remote, stored, cache, reporter)


def is_cached(fingerprint: str, workspace: Workspace) -> bool:
    """Tells whether a whole copy of shards from elsewhere is here."""
    return _find_copy(workspace.cache / "shards", fingerprint) is not None


def _fetch_with_manifest(
    remote: RemoteFolder, cache: Path, reporter: Reporter, fingerprint: str
) -> Path:
    manifest = _parse_manifest(remote)
    if fingerprint and manifest.fingerprint != fingerprint:
        raise ShardError(
            f"The shards at {remote.address} have changed",
            expected=f"those with the fingerprint {fingerprint}",
            received=f"others, with {manifest.fingerprint}",
            fix="build the shards again, or name the place itself",
        )
    folder = _cache_folder(cache, manifest.name, manifest.fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_complete(folder):
        sizes = {name: int(entry["bytes"]) for name, entry in manifest.files.items()}
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
            expected=f"{MANIFEST_FILE}, or files named like dataset-0-1000.tfrecord, there or in "
            "train/ and validation/",
            received=f"{len(stored)} other files" if stored else "nothing",
            fix="check the address",
            field="shards",
        )
    states = {name: [file.bytes, file.md5, file.version] for name, file in wanted.items()}
    name = PurePosixPath(remote.address).name
    folder = _cache_folder(cache, name, fingerprint_of([remote.address, states]))
    folder.mkdir(parents=True, exist_ok=True)
    for file in _with_progress({name: file.bytes for name, file in wanted.items()}, reporter, name):
        _fetch_file(remote, folder, file, {"bytes": wanted[file].bytes})
    return folder


def _fetch_file(remote: RemoteFolder, folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Fetches a file that isn't there yet; it appears whole and verified, or not at all."""
    final = folder / name
    if final.is_file() and final.stat().st_size == entry["bytes"]:
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(final) as draft:
        remote.download(name, draft)
        size = draft.stat().st_size
        if size != entry["bytes"] or entry.get("sha256", hash_file(draft)) != hash_file(draft):
            raise ShardError(
                f"{remote.address}/{name} isn't what its manifest says",
                expected=f"{entry['bytes']} bytes with the SHA-256 in the manifest",
                received=f"{size} bytes" if size != entry["bytes"] else "other bytes",
                fix="upload the file again, or build the shards again",
            )


def _parse_manifest(remote: RemoteFolder) -> Manifest:
    try:
        manifest = parse_manifest(remote.read(MANIFEST_FILE))
        sound = manifest.kind == "shards" and all(_is_inside(name) for name in manifest.files)
    except (ValueError, TypeError, AttributeError) as error:
        raise _bad_manifest(remote, str(error)) from error
    if not sound:
        raise _bad_manifest(remote, f"one of kind {manifest.kind}, or with paths outside of it")
    return manifest


def _bad_manifest(remote: RemoteFolder, received: str) -> ShardError:
    return ShardError(
        f"The manifest at {remote.address} can't be used",
        expected="one that this program wrote for shards",
        received=received,
        fix="build the shards again",
    )


def _find_copy(cache: Path, fingerprint: str) -> Path | None:
    copies = cache.glob(f"*-{fingerprint}") if cache.is_dir() else iter(())
    return next((copy for copy in copies if _is_complete(copy)), None)


def _is_complete(folder: Path) -> bool:
    """Returns whether a copy has its manifest, which is written last, and all files."""
    if not (folder / MANIFEST_FILE).is_file():
        return False
    files = read_manifest(folder).files
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == entry["bytes"]
        for name, entry in files.items()
    )


def _cache_folder(cache: Path, name: str, fingerprint: str) -> Path:
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-") or "shards"
    return cache / f"{plain}-{fingerprint}"


def _is_wanted(name: str) -> bool:
    """Whether a file belongs to shards without a manifest."""
    folder, _, file = name.rpartition("/")
    if folder == "tokenizer":
        return file.endswith(".json") and _is_inside(name)
    return folder in ("", "train", "validation") and parse_file_name(file) is not None


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _with_progress(sizes: Mapping[str, int], reporter: Reporter, address: str) -> Iterator[str]:
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        reporter.raise_if_stopped()
        yield name
        done += size
        reporter.progress(done, total, "bytes", f"fetching {address}")


def _write_synced(path: Path, data: bytes) -> None:
    with written_whole(path) as draft:
        draft.write_bytes(data)


# What stores call the version of a file: Google, Amazon and Azure, the Hub, and folders.
_VERSIONS = ("generation", "ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified")


def _stored_file(info: Mapping[str, Any]) -> StoredFile:
    """Reads what the stores call size and MD5: Google `md5Hash`, Amazon `ETag`."""
    checksum = ""
    if "md5Hash" in info:
        checksum = base64.b64decode(info["md5Hash"]).hex()
    elif len(tag := str(info.get("ETag", "")).strip('"')) == 32 and "-" not in tag:
        checksum = tag
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return StoredFile(int(info["size"]), checksum, version)


def _md5_of(path: Path) -> str:
    digest = md5(usedforsecurity=False)
    with path.open("rb") as file:
        shutil.copyfileobj(file, _Digest(digest), 1 << 20)
    return digest.hexdigest()


class _Digest:
    def __init__(self, digest: Any) -> None:
        self.write = digest.update


def _connect(address: str) -> tuple[Any, str]:
    import fsspec

    try:
        return fsspec.core.url_to_fs(address, **_options(address))
    except ImportError as error:
        raise ConfigError(
            f"{address} can't be reached from here",
            expected="the library for that kind of address",
            received=str(error),
            fix="pip install -r requirements-cloud.txt",
            field="output_dir",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{address} isn't an address that is known",
            expected="gs://, s3://, hf:// or another that fsspec knows",
            received=str(error),
            fix="check the address",
            field="output_dir",
        ) from error


def _options(address: str) -> dict[str, Any]:
    """Returns what a store is to be connected with; the Hub has an endpoint that may be set."""
    endpoint = os.environ.get("HF_ENDPOINT")
    return {"endpoint": endpoint} if endpoint and address.startswith("hf://") else {}


@contextmanager
def _failures_named(problem: str) -> Iterator[None]:
    """Turns what a store's library raises, each its own kinds, into a ShardError."""
    try:
        yield
    except (StudioError, RunStopped):
        raise
    except Exception as error:
        raise ShardError(
            problem,
            expected="a store that answers and lets this machine in",
            received=f"{type(error).__name__}: {error}",
            fix="check the address, the network, and that you are signed in to the store",
        ) from error
