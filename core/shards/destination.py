"""Publishes shards to the workspace, a folder or an address, completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import ConfigError, ShardError
from core.parts.store import PartResult, PartStore
from core.records.events import Reporter
from core.shards.part_uploads import (
    MARKER_FILE,
    UPLOADED,
    PartUploads,
    check_uploaded,
    missing_files,
    read_marker,
    write_marker,
)
from core.storage.files import RemoteFolder, is_address, upload_folder
from core.workspace.atomic import DraftFolder, commit_folder
from core.workspace.manifests import MANIFEST_FILE, fingerprint_of_files, write_manifest
from core.workspace.names import expand_path
from core.workspace.places import make_folder
from core.workspace.workspace import Draft, Workspace


class Destination:
    """The workspace, or base of other destinations.

    Attributes:
        location: For the manifest; empty for the workspace.
    """

    location = ""

    def begin(self, recipe: str, store: PartStore, *, has_parts: bool) -> PartUploads | None:
        """Starts a build; returns how its parts reach the destination, if they do so themselves.

        Args:
            recipe: Hash of everything that decides the files.
            has_parts: Whether there are several parts, which are worth uploading one by one.
        """
        return None

    def collect(self, results: Sequence[PartResult]) -> None:
        """Takes note of the parts' uploaded files."""

    def folder(self, draft: Draft) -> Path:
        return draft.folder

    def publish(self, draft: Draft, reporter: Reporter) -> str:
        """Moves the output; returns its fingerprint, unless the draft does."""
        return ""

    def withdraw(self) -> None:
        """Removes published output."""

    def clean(self) -> None:
        """Removes unpublished output."""


class FolderDestination(Destination):
    """A folder outside the workspace; raises ConfigError unless it is empty and accessible."""

    def __init__(self, path: Path) -> None:
        # The finished folder can't replace a link or mount point.
        self._final = Path(os.path.realpath(path))
        if os.path.ismount(self._final):
            raise _mount_point(path)
        self._draft: DraftFolder | None = None
        self._published = False
        self.location = str(path.absolute())
        try:
            is_free = _is_free(self._final)
        except OSError as error:
            raise _not_writable(self._final, error) from error
        if not is_free:
            raise _not_empty(str(path))

    def folder(self, draft: Draft) -> Path:
        name = self._final.name
        try:
            self._draft = DraftFolder(self._final.parent, name, sweep=name)
        except OSError as error:
            raise _not_writable(self._final.parent, error) from error
        return self._draft.path

    def publish(self, draft: Draft, reporter: Reporter) -> str:
        assert self._draft
        manifest = draft.describe(self._draft.path)
        write_manifest(self._draft.path, manifest)
        if self._final.exists():
            self._final.rmdir()
        commit_folder(self._draft.path, self._final)
        self._published = True
        return manifest.fingerprint

    def withdraw(self) -> None:
        if self._published:
            shutil.rmtree(self._final, ignore_errors=True)

    def clean(self) -> None:
        if self._draft:
            self._draft.remove()


class RemoteDestination(Destination):
    """An address like gs://bucket/folder.

    Several parts are uploaded by the processes that finish them, and stay there if the build stops;
    a single one is staged locally.

    Raises:
        ConfigError: The address isn't empty, or its scheme is unknown.
        ShardError: The store isn't writable.
    """

    def __init__(self, address: str, staging: Path) -> None:
        self._remote = RemoteFolder(address)
        self._staging = staging
        self._draft: DraftFolder | None = None
        self._published: list[str] = []
        self._uploaded: dict[str, dict[str, Any]] = {}
        self._keeps_parts = False
        self.location = self._remote.address
        self._stored = {name: file.bytes for name, file in self._remote.files().items()}
        if self._stored and (MARKER_FILE not in self._stored or MANIFEST_FILE in self._stored):
            raise _not_empty(address)
        self._remote.check_writable()

    def begin(self, recipe: str, store: PartStore, *, has_parts: bool) -> PartUploads | None:
        if self._stored and read_marker(self._remote) != recipe:
            raise _unfinished(self.location)
        if not has_parts:
            return None
        for number, result in store.finished():
            if missing_files(result.values.get(UPLOADED, {}), self._stored):
                store.forget(number)
        make_folder(self._staging)
        write_marker(self._remote, recipe, self._staging)
        self._keeps_parts = True
        return PartUploads(self.location)

    def collect(self, results: Sequence[PartResult]) -> None:
        if self._keeps_parts:
            self._uploaded = check_uploaded([result.values for result in results], self._remote)

    def folder(self, draft: Draft) -> Path:
        self._draft = DraftFolder(self._staging, "upload")
        return self._draft.path

    def publish(self, draft: Draft, reporter: Reporter) -> str:
        assert self._draft
        manifest = draft.describe(self._draft.path)
        if self._uploaded:
            files = dict(sorted({**manifest.files, **self._uploaded}.items()))
            fingerprint = draft.fingerprint or fingerprint_of_files(files)
            manifest = replace(manifest, files=files, fingerprint=fingerprint)
        write_manifest(self._draft.path, manifest)
        self._published = upload_folder(self._draft.path, self._remote, reporter)
        if self._keeps_parts:
            self._remote.remove([MARKER_FILE])
        return manifest.fingerprint

    def withdraw(self) -> None:
        """Removes what isn't a part's."""
        with suppress(ShardError):
            self._remote.remove(self._published)

    def clean(self) -> None:
        if self._draft:
            self._draft.remove()


@contextmanager
def new_destination(output_dir: str, workspace: Workspace) -> Iterator[Destination]:
    """Yields a destination, emptied again after a failure."""
    destination = _destination_for(output_dir, workspace)
    try:
        yield destination
    except BaseException:
        destination.withdraw()
        raise
    finally:
        destination.clean()


def _destination_for(output_dir: str, workspace: Workspace) -> Destination:
    if not output_dir:
        return Destination()
    if is_address(output_dir):
        return RemoteDestination(output_dir, workspace.cache / "outgoing")
    return FolderDestination(expand_path(output_dir))


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _not_writable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The folder {folder} can't be written to",
        expected="a folder where this account can create folders",
        received=error.strerror or str(error),
        fix="set ⟬output_dir⟭ to another folder",
        field="output_dir",
    )


def _unfinished(address: str) -> ConfigError:
    return ConfigError(
        f"{address} has the unfinished shards of another build",
        expected="a new or empty folder, or one where the same build was stopped",
        received="parts that were built from other text, with other settings or with other "
        "versions of packages",
        fix="set ⟬output_dir⟭ to another folder, or empty this one",
        field="output_dir",
    )


def _mount_point(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is a mount point and can't be replaced",
        fix=f"set ⟬output_dir⟭ to a new folder inside it, such as {path / 'shards'}",
        field="output_dir",
    )


def _not_empty(location: str) -> ConfigError:
    return ConfigError(
        f"{location} isn't empty",
        expected="a new or empty folder, because existing files are never overwritten",
        fix="set ⟬output_dir⟭ to another folder, or empty this one; ⟬split=all⟭ writes both splits "
        "at once",
        field="output_dir",
    )
