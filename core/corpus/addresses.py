"""Downloads the files of an address (https://, gs://, s3://, hf://) to the workspace's cache.

Names, sizes and redirects of a store are untrusted.
"""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from core.config.base import fingerprint_of
from core.config.corpus import CorpusConfig
from core.corpus.finding import has_known_suffix
from core.errors import ConfigError, CorpusError, ShardError
from core.records.events import Reporter
from core.storage.files import RemoteFolder, StoredFile
from core.workspace.atomic import writing_whole_file
from core.workspace.confinement import is_address
from core.workspace.names import flaw_of_part, path_inside
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

# The most that a preview downloads.
SAMPLE_BYTES = 64 << 20
_KEPT_FREE_BYTES = 64 << 20
_WEB = ("http://", "https://")
_MAGIC = "*?["


@dataclass(frozen=True)
class _Listing:
    """Files of an address, by the name that they get here.

    Attributes:
        remote: The folder that holds them.
        paths: Their names in that folder.
    """

    remote: RemoteFolder
    files: Mapping[str, StoredFile]
    paths: Mapping[str, str]


def has_address(config: CorpusConfig) -> bool:
    """Returns whether files are read from an address."""
    is_files = config.source == "files"
    return is_files and (is_address(config.path) or is_address(config.validation_path))


def with_local_files(
    config: CorpusConfig, workspace: Workspace, reporter: Reporter, *, sample: bool = False
) -> CorpusConfig:
    """Downloads the files of addresses; returns the config with local paths.

    Files that were downloaded before and have not changed are not downloaded again.

    Args:
        sample: Only the first file, for a preview.

    Raises:
        ConfigError, CorpusError: The address can't be read.
    """
    places = {
        field: str(_local(getattr(config, field), field, config, workspace, reporter, sample))
        for field in ("path", "validation_path")
        if is_address(getattr(config, field))
    }
    return config.model_copy(update=places)


def _local(
    address: str,
    field: str,
    config: CorpusConfig,
    workspace: Workspace,
    reporter: Reporter,
    sample: bool,
) -> Path:
    try:
        listing = _list(address, field, config.file_format != "auto")
        names = sorted(listing.files)
        if sample:
            names = names[:1]
            _check_sample(address, listing.files[names[0]], field)
        folder = _folder(address, listing.files, workspace)
        _download(listing, names, folder, address, reporter)
    except ShardError as error:
        raise CorpusError.like(
            error,
            problem=f"{address} can't be read: {error.texts['problem']}",
            fix="check the address, the network and your login to the store",
            field=field,
        ) from error
    return folder / names[0] if len(names) == 1 else folder


def _list(address: str, field: str, takes_all: bool) -> _Listing:
    base, _, pattern = address.rpartition("/")
    if address.startswith(_WEB):
        return _one_file(base, pattern, address, field)
    if any(mark in address for mark in _MAGIC):
        return _matching(address, field)
    remote = RemoteFolder(address)
    files = {
        name: file
        for name, file in _visible(remote.files()).items()
        if takes_all or has_known_suffix(name)
    }
    if not files:
        return _one_file(base, pattern, address, field)
    return _Listing(remote, files, {name: name for name in files})


def _visible(files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
    """Leaves out hidden files, as in local folders; `..` is refused later."""
    return {
        name: file
        for name, file in files.items()
        if not any(part.startswith(".") and part != ".." for part in name.split("/"))
    }


def _one_file(base: str, name: str, address: str, field: str) -> _Listing:
    here = PurePosixPath(unquote(urlsplit(address).path)).name
    remote = RemoteFolder(base)
    stored = remote.find(name) if name and not flaw_of_part(here) else None
    if stored is None:
        raise _nothing_there(address, field)
    return _Listing(remote, {here: stored}, {here: name})


def _matching(address: str, field: str) -> _Listing:
    parts = address.split("/")
    first = next(place for place, part in enumerate(parts) if any(mark in part for mark in _MAGIC))
    remote = RemoteFolder("/".join(parts[:first]))
    wanted = parts[first:]
    files = {
        n: file for n, file in _visible(remote.files()).items() if _matches(n.split("/"), wanted)
    }
    if not files:
        raise _nothing_there(address, field)
    return _Listing(remote, files, {name: name for name in files})


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[place:], pattern[1:]) for place in range(len(name) + 1))
    is_same = bool(name) and fnmatch.fnmatchcase(name[0], pattern[0])
    return is_same and _matches(name[1:], pattern[1:])


def _folder(address: str, files: Mapping[str, StoredFile], workspace: Workspace) -> Path:
    states = {name: [file.bytes, file.md5, file.version] for name, file in files.items()}
    folder = workspace.cache / "addresses" / fingerprint_of([address, states])
    make_folder(folder)
    return folder


def _download(
    listing: _Listing, names: Sequence[str], folder: Path, address: str, reporter: Reporter
) -> None:
    places = {name: path_inside(folder, name, f"The listing of {address}") for name in names}
    missing = [name for name in names if not places[name].is_file()]
    room = shutil.disk_usage(folder).free - _KEPT_FREE_BYTES
    total = sum(max(0, listing.files[name].bytes) for name in missing)
    if total > room:
        raise CorpusError(
            f"There is too little disk space for the text at {address}",
            expected=f"{total:,} bytes on the disk of {folder}", received=f"{max(0, room):,} bytes",
            fix="free disk space, or choose another --workspace", field="path",
        )  # fmt: skip
    done = 0
    for name in missing:
        reporter.raise_if_stopped()
        size = listing.files[name].bytes
        make_folder(places[name].parent)
        with writing_whole_file(places[name]) as draft:
            listing.remote.download(
                listing.paths[name], draft, most_bytes=size if size >= 0 else room
            )
            _check_size(address, name, size, draft.stat().st_size)
            done += draft.stat().st_size
        reporter.progress(done, total or None, "bytes", f"downloading {address}")


def _check_size(address: str, name: str, expected: int, received: int) -> None:
    if expected not in (-1, received):
        raise CorpusError(
            f"{address} changed while it was downloaded",
            expected=f"{name} with {expected:,} bytes", received=f"{received:,} bytes",
            fix="start again", field="path",
        )  # fmt: skip


def _check_sample(address: str, first: StoredFile, field: str) -> None:
    if not 0 <= first.bytes <= SAMPLE_BYTES:
        size = f"{first.bytes:,} bytes" if first.bytes >= 0 else "a file of unknown size"
        raise CorpusError(
            f"{address} is too large for a preview",
            expected=f"a first file of at most {SAMPLE_BYTES:,} bytes", received=size,
            fix="preview a smaller file; a run has no such limit", field=field,
        )  # fmt: skip


def _nothing_there(address: str, field: str) -> ConfigError:
    return ConfigError(
        f"There is no text at {address}",
        expected="the address of a file; in a bucket also a folder or a pattern",
        fix="check the address",
        field=field,
    )
