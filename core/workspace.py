"""Stores, names and commits artifacts.

A workspace is a folder:

    studio.db                 database (core.store)
    tokenizers/<name>/        tokenizer.json, ... and manifest.json
    shards/<name>/            train/, validation/, tokenizer/ and manifest.json
    models/<name>/            model.safetensors, config.json, tokenizer.json, ... and manifest.json
    runs/<id>/                one folder per run (core.runs.folder)
    cache/                    data that can be regenerated

An artifact is a folder with a `manifest.json`. It appears atomically: it is written to a hidden
folder beside its final path, synced and renamed. This module knows nothing of the artifacts'
content.
"""

from __future__ import annotations

import fcntl
import glob
import json
import logging
import os
import platform
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from core.errors import ConfigError, StudioError
from core.foreign_files import check_depth
from core.outbound import check_reachable
from core.paths import (
    LONGEST_NAME_BYTES,
    LONGEST_PATH_BYTES,
    flaw_of_names,
    flaw_of_part,
    has_control,
    is_run_id,
    relative_name,
)
from core.places import (
    apply_umask,
    apply_umask_below,
    check_not_moved,
    make_folder,
    register_root,
    restrict_access,
)

ArtifactKind = Literal["tokenizer", "shards", "model", "preflight"]

MANIFEST_FILE = "manifest.json"
ALLOWED_PATHS_VARIABLE = "STUDIO_ALLOWED_PATHS"
# Remote storage from which the web app may read.
_STORES = ("gs", "gcs", "s3", "hf", "az", "abfs", "https")
KINDS = ("tokenizer", "shards", "model", "preflight")
_FOLDERS: dict[str, str] = {
    "tokenizer": "tokenizers",
    "shards": "shards",
    "model": "models",
    "preflight": "preflights",
}
_DRAFT_SUFFIX = ".draft"
_DOOMED_SUFFIX = ".deleted"
# Limits of a manifest, far above the largest shards.
MOST_MANIFEST_BYTES = 64 << 20
_MOST_FILES = 200_000
_MOST_TOTAL_BYTES = 1 << 50
# A draft is created first and locked shortly after.
_LOCKED_AFTER_SECONDS = 60
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# The last line of a manifest: the SHA-256 of the bytes before it.
_SEAL = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n\}\n\Z')
_VERSIONED = ("tensorflow", "keras", "jax", "tokenizers", "transformers", "datasets", "numpy")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manifest:
    """Metadata of an artifact.

    Attributes:
        name: Its original name; in a workspace the folder's name counts.
        fingerprint: Identifies the content.
        inputs: Fingerprints of its input artifacts, by kind.
        counts: Statistics, such as documents, tokens, sequences and losses.
        files: Size and SHA-256 of each file, by path within the folder.
        created: Unix seconds.
        run: The id of the run that made it.
        location: Folder or URL of its files, such as gs://bucket/folder, if they aren't beside the
            manifest. Then `files` is empty, and the fingerprint covers the files there.
    """

    kind: str
    name: str
    fingerprint: str
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    created: float = 0.0
    run: str = ""
    location: str = ""


@dataclass(frozen=True)
class Artifact:
    """A committed artifact."""

    path: Path
    manifest: Manifest

    @property
    def kind(self) -> str:
        return self.manifest.kind

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint


class _FileEntry(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    bytes: int = Field(ge=0, le=_MOST_TOTAL_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _ManifestSchema(BaseModel):
    """Schema of a manifest from any source. `Manifest` documents the fields."""

    model_config = ConfigDict(strict=True, extra="ignore")

    kind: str = Field(pattern=r"^[a-z]{1,32}$")
    name: str
    # Empty for some checkpoints.
    fingerprint: str = Field(pattern=r"^([0-9a-f]{16})?$")
    config: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    counts: dict[str, Any] = {}
    files: dict[str, _FileEntry] = Field(default={}, max_length=_MOST_FILES)
    versions: dict[str, str] = {}
    created: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    run: str = ""
    location: str = ""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name and (flaw := flaw_of_part(name)):
            raise ValueError(f"the name {ascii(name)[:100]} {flaw}")
        return name

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: dict[str, _FileEntry]) -> dict[str, _FileEntry]:
        if flaw := flaw_of_names(files):
            raise ValueError(flaw)
        if any(name.rpartition("/")[2].casefold() == MANIFEST_FILE for name in files):
            raise ValueError(f"it lists a {MANIFEST_FILE} among the files")
        if sum(entry.bytes for entry in files.values()) > _MOST_TOTAL_BYTES:
            raise ValueError(f"its files have more than {_MOST_TOTAL_BYTES:,} bytes in all")
        return files

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: str) -> str:
        if run and not is_run_id(run):
            raise ValueError(f"{ascii(run)[:100]} can't be a run's id")
        return run

    @field_validator("location")
    @classmethod
    def _check_location(cls, location: str) -> str:
        if len(location) > LONGEST_PATH_BYTES or has_control(location):
            raise ValueError("its location can't be a path or an address")
        return location


class Workspace:
    """A folder of artifacts and runs.

    Args:
        root: The folder, made at the first write. None: `STUDIO_HOME`, else `./workspace`.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        chosen = root or os.environ.get("STUDIO_HOME") or "workspace"
        self.root = expand_path(chosen).absolute()
        register_root(self.root)

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def make_root(self) -> None:
        """Makes the workspace's folder if it is missing; raises WorkspaceMovedError if it was
        moved.
        """
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
    def uploads(self) -> Path:
        return self.root / "uploads"

    def folder(self, kind: str) -> Path:
        return self.root / _FOLDERS[kind]

    def list(self, kind: str) -> Sequence[Artifact]:
        """Returns the artifacts of a kind, newest first.

        Those with a damaged manifest are skipped and logged; `find` raises the error.
        """
        found = []
        for path in self.folder(kind).glob(f"[!.]*/{MANIFEST_FILE}"):
            try:
                found.append(read_artifact(path.parent))
            except StudioError as error:
                logger.warning("%s", error)
        return sorted(found, key=lambda artifact: -artifact.manifest.created)

    def find(self, kind: str, reference: str) -> Artifact:
        """Finds an artifact by name or folder; raises ConfigError if none of this kind matches."""
        shelf = self.folder(kind)
        for folder in (shelf / reference, expand_path(reference, field=kind)):
            if reference and (folder / MANIFEST_FILE).is_file():
                ours = folder.parent == shelf
                found = read_artifact(folder) if ours else Artifact(folder, read_manifest(folder))
                return _of_kind(kind, found)
        known = f"{self._known_names(kind)}, or a folder with a {MANIFEST_FILE}"
        raise _unknown(kind, reference, known)

    def find_own(self, kind: str, name: str) -> Artifact:
        """Finds an artifact by name, never a folder elsewhere; raises ConfigError otherwise."""
        folder = self.folder(kind) / expand_path(name, field=kind)
        is_name = folder.parent == self.folder(kind) and not name.startswith(".")
        if not is_name or not (folder / MANIFEST_FILE).is_file():
            raise _unknown(kind, name, self._known_names(kind))
        return _of_kind(kind, read_artifact(folder))

    def find_made(self, kind: str, fingerprint: str) -> Artifact | None:
        found = (one for one in self.list(kind) if one.fingerprint == fingerprint)
        return next(found, None)

    def free_name(self, kind: str, wanted: str, promised: Collection[str] = ()) -> str:
        """Returns `wanted`, with a number appended if that name is taken or `promised`."""
        taken = {*promised, *(path.name for path in self.folder(kind).glob("*"))}
        candidates = [wanted, *(f"{wanted}-{number}" for number in range(2, 10_000))]
        return next(name for name in candidates if name not in taken)

    def check_new_name(self, kind: str, name: str) -> None:
        """Raises ConfigError with `field="name"` if a name is taken or can't be a folder's."""
        check_name(name)
        if (self.folder(kind) / name).exists():
            raise ConfigError(
                f"The name {name!r} is taken",
                expected=f"a new name for the {kind}",
                received=name,
                fix="choose another, or leave it empty",
                field="name",
            )

    @contextmanager
    def new_artifact(self, kind: ArtifactKind, name: str, *, exact: bool = True) -> Iterator[Draft]:
        """Yields a draft folder, which becomes the artifact if the block succeeds.

        Drafts of failed blocks are removed at once, those of killed processes when the next
        artifact of the kind is begun. If another run takes the name meanwhile, `exact` fails; else
        a number is appended. Raises ConfigError if the name is taken or can't be a folder's.
        """
        check_name(name)
        if exact:
            self.check_new_name(kind, name)
        shelf = self.folder(kind)
        place = DraftFolder(shelf, name)
        _remove_tombstones(shelf)
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
        """Returns the folders that the web app may read: the workspace and STUDIO_ALLOWED_PATHS."""
        listed = os.environ.get(ALLOWED_PATHS_VARIABLE, "").split(os.pathsep)
        return [
            self.root.resolve(),
            *(expand_path(path).resolve() for path in listed if path),
        ]

    def confine(self, path: str, *, field: str) -> None:
        """Raises ConfigError for a path outside the folders that the web app may read.

        Remote URLs such as gs://bucket/folder are allowed, but not fsspec URLs that lead back to
        this machine: file://, or several joined with ::.
        """
        if not path:
            return
        if "://" in path or "::" in path:
            _check_address(path, field)
            return
        roots = self.allowed_roots()
        for real in _real_places(expand_path(path, field=field)):
            if not any(real.is_relative_to(root) for root in roots):
                raise ConfigError(
                    f"The page may not read {path}",
                    expected="a path within " + " or ".join(map(str, roots)),
                    received=str(real),
                    fix="upload the file here, or start the app with --allow FOLDER "
                    f"(or {ALLOWED_PATHS_VARIABLE})",
                    field=field,
                )

    def confine_artifact(self, kind: str, reference: str, *, field: str) -> None:
        """Raises ConfigError for a reference to a forbidden folder, perhaps through ../."""
        if "://" in reference or "::" in reference:
            self.confine(reference, field=field)
            return
        named = self.folder(kind) / reference
        self.confine(str(named), field=field)
        if (named / MANIFEST_FILE).is_file():
            # A name takes precedence over a folder of that name in the working directory.
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
                f"{folder.name} lies elsewhere, and its manifest doesn't say where",
                expected="an absolute path, or an address",
                received=location,
                fix="build it again",
                field=field,
            )
        self.confine(location, field=field)

    def _has_copy(self, manifest: Manifest) -> bool:
        """Returns True if a verified local copy exists, whose manifest is written last."""
        copies = self.cache.glob(f"shards/*-{manifest.fingerprint}/{MANIFEST_FILE}")
        return bool(manifest.fingerprint) and any(True for _ in copies)

    def _known_names(self, kind: str) -> str:
        names = [artifact.name for artifact in self.list(kind)]
        return ", ".join(names[:10]) if names else f"the {kind} in {self.root} (there are none yet)"


@dataclass
class Draft:
    """An artifact being written. Set its fields before the block ends."""

    kind: ArtifactKind
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


def expand_path(text: str | Path, *, field: str = "") -> Path:
    """Expands ~ and ~name in a typed path; raises ConfigError if no file system accepts it."""
    try:
        path = Path(os.path.expanduser(text))
        lengths = [len(os.fsencode(part)) for part in (str(path), *path.parts)]
    except ValueError:  # A null byte or a lone surrogate.
        lengths = [LONGEST_PATH_BYTES + 1]
    is_long = lengths[0] > LONGEST_PATH_BYTES or max(lengths[1:], default=0) > LONGEST_NAME_BYTES
    if is_long or "\0" in str(text):
        raise ConfigError(
            "That can't be a path",
            expected=f"at most {LONGEST_NAME_BYTES} bytes between slashes, and "
            f"{LONGEST_PATH_BYTES:,} in all",
            received=ascii(str(text))[:100],
            fix="check the path",
            field=field,
        )
    return path


class DraftFolder:
    """A hidden folder, locked by this process, for content that is to appear atomically.

    Also removes abandoned drafts in `parent`, all or only those of the name `sweep`.
    """

    def __init__(self, parent: Path, name: str, *, sweep: str = "") -> None:
        make_folder(parent)
        _remove_abandoned_drafts(parent, glob.escape(sweep) or "*")
        self.path = parent / f".{name}.{secrets.token_hex(4)}{_DRAFT_SUFFIX}"
        self.path.mkdir()
        self._lock = _lock_folder(self.path)

    def remove(self) -> None:
        """Removes the folder unless it was renamed, and releases the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _unknown(kind: str, reference: str, known: str) -> ConfigError:
    return ConfigError(
        f"There are no shards called {reference!r}"
        if kind == "shards"
        else f"There is no {kind} called {reference!r}",
        expected=f"one of {known}",
        received=reference or "nothing",
        fix=f"choose one of these, or make one first (the {kind} stage)",
        field=kind,
    )


def _real_places(path: Path) -> Iterator[Path]:
    """Yields the real path of a path, or of each match of a pattern.

    A pattern's text alone isn't enough: `l*k/../x` names a file beside the target of `link`.
    """
    yield path.resolve()
    if glob.has_magic(str(path)) and not path.exists():
        yield from (Path(os.path.realpath(one)) for one in glob.iglob(str(path), recursive=True))


def _check_address(address: str, field: str) -> None:
    if "::" in address or address.partition("://")[0] not in _STORES:
        raise ConfigError(
            f"The page may not read {address}",
            expected="a path on this machine, or an address that begins with "
            + ", ".join(f"{store}://" for store in _STORES),
            received=address,
            fix="use one of these; the shell takes any address that fsspec knows",
            field=field,
        )
    if address.startswith("https://"):
        try:
            check_reachable(address)
        except StudioError as error:
            raise ConfigError(
                f"The page may not read {address}",
                expected=error.expected,
                received=error.received,
                fix=error.fix,
                field=field,
            ) from error


def check_name(name: str) -> None:
    """Raises ConfigError with `field="name"` if a name can't be a folder's on every system."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "That can't be a name",
            expected="1 to 96 letters, digits, dots, dashes, underscores; a letter or digit first",
            received=repr(name),
            fix="choose another name, or leave it empty",
            field="name",
        )


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest; raises StudioError if it is missing or damaged."""
    path = folder / MANIFEST_FILE
    try:
        return parse_manifest(_read_regular_file(path, MOST_MANIFEST_BYTES + 1))
    except (OSError, ValueError, TypeError) as error:
        raise StudioError(
            f"The manifest {path} can't be read",
            expected="a JSON file written by the studio, byte for byte",
            received=str(error),
            fix="make the artifact again, or restore the folder from a copy",
        ) from error


def _read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Reads a file; raises OSError for a pipe or device, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it isn't a regular file")
        # Room is made for as much as is asked for.
        return file.read(min(found.st_size, most_bytes))


def read_artifact(folder: Path) -> Artifact:
    """Reads an artifact in a folder of the workspace; raises StudioError if that fails.

    Its name is the folder's, not the manifest's, since the folder may have been renamed or copied.
    """
    return Artifact(folder, replace(read_manifest(folder), name=folder.name))


def parse_manifest(data: bytes) -> Manifest:
    """Parses and verifies a manifest's bytes; the oldest manifests have no checksum.

    Raises:
        ValueError, TypeError: It isn't a manifest, was changed after it was written, or names files
            that can't be below its folder.
    """
    if len(data) > MOST_MANIFEST_BYTES:
        raise ValueError(
            f"it has {len(data):,} bytes, and at most {MOST_MANIFEST_BYTES:,} are read"
        )
    try:
        values = json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    check_depth(values)
    if not isinstance(values, dict):
        raise TypeError(f"a {type(values).__name__} where an object was expected")
    if b"\\ud" in data.lower():
        # Half of a surrogate pair, which JSON can carry and no file or page can.
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    seal = _SEAL.search(data)
    is_whole = (
        sha256(data[: seal.start()]).hexdigest().encode() == seal[1]
        if seal
        else values.keys() <= Manifest.__annotations__.keys()
    )
    if not is_whole:
        raise ValueError("it was changed after it was written")
    known = {name: values[name] for name in Manifest.__annotations__ if name in values}
    try:
        _ManifestSchema.model_validate(known)
    except ValidationError as error:
        raise ValueError(_complaint(error)) from None
    return Manifest(**known)


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(ascii(part).strip("'")[:60] for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    received = ascii(first["input"])
    if first["type"] == "value_error" or len(received) > 100:
        return f"{place}: {message}"
    return f"{place}: {message}, not {received}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).write_text(manifest_text(manifest), "utf-8")


def manifest_text(manifest: Manifest) -> str:
    """Serialises a manifest; its last line is the checksum of the bytes before it."""
    body = json.dumps(asdict(manifest), indent=2, ensure_ascii=False).removesuffix("\n}")
    seal = sha256(body.encode("utf-8")).hexdigest()
    return f'{body},\n  "seal": "{seal}"\n}}\n'


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns each file's size and SHA-256 by path below a folder, without the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in paths
        if path.name != MANIFEST_FILE
    }


def fingerprint_of_files(files: dict[str, dict[str, Any]]) -> str:
    lines = "".join(f"{name}\0{entry['sha256']}\n" for name, entry in sorted(files.items()))
    return sha256(lines.encode("utf-8")).hexdigest()[:16]


def hash_file(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Verifies the files of a manifest; returns one sentence per damaged file."""
    source = f"The manifest of {folder}"
    return [
        problem
        for name, entry in manifest.files.items()
        if (problem := _damage(folder / relative_name(name, source), entry))
    ]


def commit_folder(draft: Path, final: Path) -> None:
    """Syncs a folder with its content and renames it to `final`, which must not exist."""
    check_not_moved(final)
    for path in draft.rglob("*"):
        sync(path)
    sync(draft)
    apply_umask_below(draft)
    draft.rename(final)
    sync(final.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Removes a folder atomically, as seen by other processes.

    Remains are removed when the next artifact beside it is begun or removed.
    """
    check_not_moved(folder)
    _remove_tombstones(folder.parent)
    doomed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{_DOOMED_SUFFIX}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_tombstones(shelf: Path) -> None:
    for folder in shelf.glob(f".*{_DOOMED_SUFFIX}"):
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_drafts(shelf: Path, pattern: str) -> None:
    """Removes drafts of ended processes, which no longer hold their lock."""
    for folder in shelf.glob(f".{pattern}.*{_DRAFT_SUFFIX}"):
        with suppress(OSError):  # Another process removed or committed it.
            if time.time() - folder.stat().st_mtime < _LOCKED_AFTER_SECONDS:
                continue
            lock = _lock_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock_folder(folder: Path) -> int | None:
    """Takes a folder's lock; returns its descriptor, or None if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Takes a lock between processes; yields whether it is held, which is always so with `wait`."""
    make_folder(path.parent)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def single_instance(path: Path, what: str) -> Iterator[None]:
    """Holds a lock while the block runs; raises StudioError if another process holds it.

    `what` names the kind of process in the error, as in "app".
    """
    with file_lock(path, wait=False) as held:
        if not held:
            raise StudioError(
                f"Another {what} works on this workspace",
                expected=f"one {what} for {path.parent}",
                received=f"a second one, while the first holds {path.name}",
                fix="use the one that runs, stop it first, or name another --workspace",
            )
        yield


@contextmanager
def writing_whole_file(path: Path) -> Iterator[Path]:
    """Yields a draft file that replaces `path`, synced, when the block ends.

    If the block fails, the draft is removed. Two threads of the web app may write the same path.
    """
    check_not_moved(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.draft")
    try:
        yield draft
        sync(draft)
        apply_umask(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Writes a small text file atomically: readers see the old or the new content.

    The target of a link is replaced, not the link; a device or a pipe is written to.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
        return
    path = path.resolve()
    with writing_whole_file(path) as draft:
        draft.write_text(text, "utf-8")
    sync(path.parent)


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _of_kind(kind: str, artifact: Artifact) -> Artifact:
    if artifact.kind != kind:
        raise ConfigError(
            f"{artifact.path} is not what is needed here",
            expected=f"a folder of kind {kind}",
            received=f"a folder of kind {artifact.kind}",
            field=kind,
            fix=f"name one from {_FOLDERS[kind]}/",
        )
    return artifact


def _damage(path: Path, entry: dict[str, Any]) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path.name} has {size} bytes instead of {entry['bytes']}"
    return "" if hash_file(path) == entry["sha256"] else f"{path.name} has other bytes than written"
