"""Uploads the files of finished parts, so that no machine holds the shards of a whole corpus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.errors import ShardError, StudioError
from core.storage.files import RemoteFolder
from core.workspace.manifests import hash_file

# In the destination until the manifest is: it holds the recipe of the parts.
MARKER_FILE = "unfinished.json"
UPLOADED = "uploaded"

_MOST_MARKER_BYTES = 1 << 16


@dataclass(frozen=True)
class PartUploads:
    """The destination of parts, which processes on other machines reach, too."""

    address: str

    def send(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Uploads the shard files of a part and removes them here.

        Returns:
            Size and SHA-256 by name, as in a manifest.
        """
        entries = {}
        for path in sorted(folder.glob("*/*.tfrecord")):
            name = path.relative_to(folder).as_posix()
            entries[name] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
            _open(self.address).upload(path, name)
            path.unlink()
        return entries


@lru_cache(maxsize=2)
def _open(address: str) -> RemoteFolder:
    return RemoteFolder(address)


def read_marker(remote: RemoteFolder) -> str:
    """Returns the recipe of an unfinished build; "" if there is none."""
    try:
        values = json.loads(remote.read(MARKER_FILE, most_bytes=_MOST_MARKER_BYTES))
        return str(values["recipe"])
    except (StudioError, ValueError, KeyError, TypeError):
        return ""


def write_marker(remote: RemoteFolder, recipe: str, folder: Path) -> None:
    path = folder / MARKER_FILE
    about = "Shards are being built here. They are complete when there is a manifest.json."
    path.write_text(json.dumps({"recipe": recipe, "about": about}) + "\n", "utf-8")
    try:
        remote.upload(path, MARKER_FILE)
    finally:
        path.unlink()


def missing_files(entries: Mapping[str, Mapping[str, Any]], stored: Mapping[str, int]) -> list[str]:
    """Returns the names of uploaded files that are gone, or have another size."""
    return [name for name, entry in entries.items() if stored.get(name) != entry["bytes"]]


def check_uploaded(
    results: Iterable[Mapping[str, Any]], remote: RemoteFolder
) -> dict[str, dict[str, Any]]:
    """Returns the files of all parts as entries of a manifest; raises ShardError for a lost one."""
    entries = {
        name: entry for values in results for name, entry in values.get(UPLOADED, {}).items()
    }
    stored = {name: file.bytes for name, file in remote.files().items()}
    if lost := missing_files(entries, stored):
        raise ShardError(
            f"Shards that were written to {remote.address} are gone",
            expected=f"{len(entries)} files, as they were uploaded",
            received=f"without {', '.join(lost[:3])}",
            fix="start the same command again: the parts of these files are built again",
            field="output_dir",
        )
    return entries
