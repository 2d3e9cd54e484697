"""Finds, names and commits artifacts."""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.errors import ConfigError, StudioError
from core.messages.suggestions import did_you_mean
from core.workspace import confinement
from core.workspace.atomic import DraftFolder, commit_folder, remove_tombstones
from core.workspace.kinds import folder_of_kind
from core.workspace.locks import file_lock
from core.workspace.manifests import (
    MANIFEST_FILE,
    Artifact,
    Manifest,
    describe_files,
    fingerprint_of_files,
    library_versions,
    read_artifact,
    read_manifest,
    write_manifest,
)
from core.workspace.names import check_name, expand_path
from core.workspace.places import make_folder, register_root, restrict_access

_SHOWN_NAMES = 10

logger = logging.getLogger(__name__)


class Workspace:
    """A folder of artifacts and runs.

    Args:
        root: Default: `STUDIO_HOME`, else `./workspace`.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        chosen = root or os.environ.get("STUDIO_HOME") or "workspace"
        self.root = expand_path(chosen).absolute()
        register_root(self.root)

    @classmethod
    def of(cls, given: Workspace | str | Path | None) -> Workspace:
        """Returns a workspace that may be given by its folder; None: the default one."""
        return given if isinstance(given, Workspace) else cls(given)

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def make_root(self) -> None:
        """Makes the workspace's folder; raises WorkspaceMovedError."""
        make_folder(self.root)
        register_root(self.root)
        restrict_access(self.root)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def sweeps(self) -> Path:
        return self.root / "sweeps"

    @property
    def uploads(self) -> Path:
        return self.root / "uploads"

    def folder(self, kind: str) -> Path:
        return self.root / folder_of_kind(kind)

    def list(self, kind: str) -> Sequence[Artifact]:
        """Lists artifacts, newest first, skipping damaged manifests."""
        artifacts = []
        for path in self.folder(kind).glob(f"[!.]*/{MANIFEST_FILE}"):
            try:
                artifacts.append(read_artifact(path.parent))
            except StudioError as error:
                logger.warning("%s", error)
        return sorted(artifacts, key=lambda artifact: -artifact.manifest.created)

    def find(self, kind: str, reference: str, *, field: str = "") -> Artifact:
        """Finds an artifact by name or folder.

        Args:
            field: Option with the reference; default: named as the kind.

        Raises:
            ConfigError: There is none.
        """
        shelf, field = self.folder(kind), field or kind
        for folder in (shelf / reference, expand_path(reference, field=field)):
            if reference and (folder / MANIFEST_FILE).is_file():
                ours = folder.parent == shelf
                artifact = (
                    read_artifact(folder) if ours else Artifact(folder, read_manifest(folder))
                )
                return _of_kind(kind, artifact, field)
        known = f"{self._known_names(kind)}, or a folder with a {MANIFEST_FILE}"
        raise _unknown(kind, reference, known, field, self._names(kind))

    def find_own(self, kind: str, name: str, *, field: str = "") -> Artifact:
        """Finds an artifact by name only, otherwise as `find`."""
        field = field or kind
        folder = self.folder(kind) / expand_path(name, field=field)
        is_name = folder.parent == self.folder(kind) and not name.startswith(".")
        if not is_name or not (folder / MANIFEST_FILE).is_file():
            raise _unknown(kind, name, self._known_names(kind), field, self._names(kind))
        return _of_kind(kind, read_artifact(folder), field)

    def find_made(self, kind: str, fingerprint: str) -> Artifact | None:
        matching_artifacts = (
            artifact for artifact in self.list(kind) if artifact.fingerprint == fingerprint
        )
        return next(matching_artifacts, None)

    def free_name(self, kind: str, wanted: str, promised: Collection[str] = ()) -> str:
        """Returns a name, numbered if taken or `promised`."""
        used_names = {*promised, *(path.name for path in self.folder(kind).glob("*"))}
        candidates = [wanted, *(f"{wanted}-{number}" for number in range(2, 10_000))]
        return next(name for name in candidates if name not in used_names)

    def check_new_name(self, kind: str, name: str) -> None:
        """Raises ConfigError for a taken or invalid name."""
        check_name(name)
        if (self.folder(kind) / name).exists():
            raise ConfigError(
                f"The name {name!r} is taken",
                expected=f"a new name for the {kind}",
                received=name,
                fix="choose another name, or leave it empty",
                field="name",
            )

    @contextmanager
    def new_artifact(self, kind: str, name: str, *, exact: bool = True) -> Iterator[Draft]:
        """Yields a draft, which becomes an artifact if the block succeeds.

        Args:
            exact: Raise ConfigError for a taken name instead of numbering it.
        """
        check_name(name)
        if exact:
            self.check_new_name(kind, name)
        shelf = self.folder(kind)
        place = DraftFolder(shelf, name)
        remove_tombstones(shelf)
        draft = Draft(kind=kind, name=name, folder=place.path)
        try:
            yield draft
            with file_lock(self.root / "names.lock"):
                if exact:
                    self.check_new_name(kind, name)
                else:
                    draft.name = self.free_name(kind, name)
                draft.commit(shelf / draft.name)
        finally:
            place.remove()

    def allowed_roots(self) -> Sequence[Path]:
        """Returns the folders that the web app may read."""
        return confinement.allowed_roots(self.root)

    def confine(self, path: str, *, field: str) -> None:
        """Raises ConfigError for a path forbidden to the web app.

        fsspec URLs with file:// or :: lead back to this machine.
        """
        confinement.check_readable(path, self.allowed_roots(), field=field)

    def resolve_path(self, path: str) -> str:
        """Returns a path with a relative one resolved in the workspace.

        If nothing is there, one in the uploads or in an allowed folder is taken if it exists.
        """
        if not path or confinement.is_address(path) or path.startswith("~") or os.path.isabs(path):
            return path
        folders = [self.root.absolute(), self.uploads.absolute(), *self.allowed_roots()[1:]]
        places = [str(folder / path) for folder in folders]
        return next(filter(self.has_path, places), places[0])

    def has_path(self, path: str) -> bool:
        """Returns whether a path or pattern names something; addresses are not looked at."""
        if confinement.is_address(path) or expand_path(path).exists():
            return True
        return next(glob.iglob(str(expand_path(path)), recursive=True), None) is not None

    def confine_artifact(self, kind: str, reference: str, *, field: str) -> None:
        """Raises ConfigError for a reference to a forbidden folder."""
        if confinement.is_address(reference):
            self.confine(reference, field=field)
            return
        named = self.folder(kind) / reference
        self.confine(str(named), field=field)
        if (named / MANIFEST_FILE).is_file():
            # A name takes precedence over a folder.
            self._confine_location(named, field)
            return
        folder = expand_path(reference, field=field)
        if folder.exists():
            self.confine(reference, field=field)
            self._confine_location(folder, field)

    def _confine_location(self, folder: Path, field: str) -> None:
        try:
            manifest = read_manifest(folder)
        except StudioError:
            return  # Opening it reports the error.
        location = manifest.location
        if not location or ("://" in location and self._has_copy(manifest)):
            return
        if "://" not in location and not os.path.isabs(location):
            raise ConfigError(
                f"The manifest of {folder.name} has an invalid location",
                expected="an absolute path or an address",
                received=location,
                fix="build it again",
                field=field,
            )
        self.confine(location, field=field)

    def _has_copy(self, manifest: Manifest) -> bool:
        """Returns whether a local copy exists; manifests are written last."""
        copies = self.cache.glob(f"shards/*-{manifest.fingerprint}/{MANIFEST_FILE}")
        return bool(manifest.fingerprint) and any(True for _ in copies)

    def _names(self, kind: str) -> Sequence[str]:
        return [artifact.name for artifact in self.list(kind)]

    def _known_names(self, kind: str) -> str:
        names = self._names(kind)
        if not names:
            return f"the {kind} in {self.root} (there are none yet)"
        more = len(names) - _SHOWN_NAMES
        return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass
class Draft:
    """An artifact being written; the block sets its fields."""

    kind: str
    name: str
    folder: Path
    fingerprint: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    location: str = ""
    artifact: Artifact | None = None

    def commit(self, final: Path) -> Artifact:
        manifest = replace(self.describe(self.folder), location=self.location)
        write_manifest(self.folder, manifest)
        commit_folder(self.folder, final)
        self.artifact = Artifact(final, manifest)
        return self.artifact

    def describe(self, folder: Path) -> Manifest:
        files = describe_files(folder)
        return Manifest(
            kind=self.kind,
            name=self.name,
            fingerprint=self.fingerprint or fingerprint_of_files(files),
            config=self.config,
            inputs=self.inputs,
            counts=self.counts,
            files=files,
            versions=library_versions(),
            created=time.time(),
            run=self.run,
        )


def _unknown(
    kind: str, reference: str, known: str, field: str, names: Iterable[str] = ()
) -> ConfigError:
    verb = "were" if folder_of_kind(kind) == kind else "was"
    return ConfigError(
        f"The {kind} {reference!r} {verb} not found" if reference else f"No {kind} {verb} named",
        expected=f"one of {known}",
        received=reference or "nothing",
        fix=did_you_mean(reference, names) or "choose an existing name, or make one first",
        field=field,
    )


def _of_kind(kind: str, artifact: Artifact, field: str) -> Artifact:
    if artifact.kind != kind:
        raise ConfigError(
            f"{artifact.path} has the wrong kind",
            expected=f"a folder of kind {kind}",
            received=f"a folder of kind {artifact.kind}",
            field=field,
            fix=f"choose one from {folder_of_kind(kind)}/",
        )
    return artifact
