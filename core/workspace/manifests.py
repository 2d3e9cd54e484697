"""Reads, verifies and writes manifests, which describe artifacts."""

from __future__ import annotations

import json
import os
import platform
import re
import stat
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from core.errors import StudioError
from core.foreign_files import LARGEST_EXACT, check_depth, parse_bounded_json
from core.workspace.names import (
    LONGEST_PATH_BYTES,
    flaw_of_names,
    flaw_of_part,
    has_control,
    is_run_id,
    relative_name,
)

MANIFEST_FILE = "manifest.json"
MOST_MANIFEST_BYTES = 64 << 20
_MOST_FILES = 200_000
_MOST_TOTAL_BYTES = 1 << 50
# SHA-256 of the bytes before it.
_CHECKSUM_LINE = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n\}\n\Z')
_VERSIONED = ("tensorflow", "keras", "jax", "tokenizers", "transformers", "datasets", "numpy")


@dataclass(frozen=True)
class Manifest:
    """Metadata of an artifact.

    Attributes:
        name: Original name; in a workspace the folder's counts.
        inputs: Fingerprints by kind.
        files: Size and SHA-256 by path.
        created: Unix seconds.
        location: Folder or URL of files elsewhere; then `files` is empty.
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
    created: float = Field(default=0.0, ge=0, le=LARGEST_EXACT, allow_inf_nan=False)
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
            raise ValueError(f"it lists {MANIFEST_FILE} as one of the files")
        if sum(entry.bytes for entry in files.values()) > _MOST_TOTAL_BYTES:
            raise ValueError(f"its files have more than {_MOST_TOTAL_BYTES:,} bytes in total")
        return files

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: str) -> str:
        if run and not is_run_id(run):
            raise ValueError(f"{ascii(run)[:100]} is not a valid run id")
        return run

    @field_validator("location")
    @classmethod
    def _check_location(cls, location: str) -> str:
        if len(location) > LONGEST_PATH_BYTES or has_control(location):
            raise ValueError("its location is not a valid path or address")
        return location


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest; raises StudioError."""
    path = folder / MANIFEST_FILE
    try:
        return parse_manifest(_read_regular_file(path, MOST_MANIFEST_BYTES + 1))
    except (OSError, ValueError, TypeError) as error:
        raise StudioError(
            f"The manifest {path} can't be read",
            expected="an unchanged JSON file written by Pretrain Studio",
            received=str(error),
            fix="create the artifact again, or restore the folder from a copy",
        ) from error


def _read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Refuses a pipe or device, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it isn't a regular file")
        # `read` allocates the size given.
        return file.read(min(status.st_size, most_bytes))


def read_artifact(folder: Path) -> Artifact:
    """Reads an artifact, named by its folder, which may be renamed."""
    return Artifact(folder, replace(read_manifest(folder), name=folder.name))


def parse_manifest(data: bytes) -> Manifest:
    """Parses and verifies a manifest; the oldest have no checksum.

    Raises:
        ValueError, TypeError: Changed, or not a manifest.
    """
    if len(data) > MOST_MANIFEST_BYTES:
        raise ValueError(
            f"it has {len(data):,} bytes, more than the limit of {MOST_MANIFEST_BYTES:,}"
        )
    try:
        values = parse_bounded_json(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    check_depth(values)
    if not isinstance(values, dict):
        raise TypeError(f"a {type(values).__name__} instead of an object")
    if b"\\ud" in data.lower():
        # Lone surrogates can't be encoded.
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    seal = _CHECKSUM_LINE.search(data)
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
    """Serialises a manifest, ending in a checksum."""
    body = json.dumps(asdict(manifest), indent=2, ensure_ascii=False).removesuffix("\n}")
    seal = sha256(body.encode("utf-8")).hexdigest()
    return f'{body},\n  "seal": "{seal}"\n}}\n'


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the size and SHA-256 of files, except the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in paths
        if path.name != MANIFEST_FILE
    }


def fingerprint_of(value: Any) -> str:
    """Returns 16 hex digits, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8")).hexdigest()[:16]


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
    """Verifies a manifest's files; returns a sentence per damaged file."""
    source = f"The manifest of {folder}"
    return [
        problem
        for name, entry in manifest.files.items()
        if (problem := _damage(folder / relative_name(name, source), entry))
    ]


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _damage(path: Path, entry: dict[str, Any]) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path.name} has {size} bytes instead of {entry['bytes']}"
    return "" if hash_file(path) == entry["sha256"] else f"{path.name} has a wrong checksum"
