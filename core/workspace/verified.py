"""Compares files with the hashes of their manifest, once per file and change."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from core.workspace.atomic import write_atomically
from core.workspace.manifests import MANIFEST_FILE, Manifest, damaged_files
from core.workspace.names import relative_name
from core.workspace.places import make_folder

_FOLDER = "verified"


def find_damage(folder: Path, manifest: Manifest, cache: Path) -> list[str]:
    """Verifies a manifest's files unless they are as when they were last found undamaged.

    Args:
        cache: The workspace's cache, which remembers that.

    Returns:
        A sentence per damaged file.
    """
    stamp = json.dumps([folder.as_posix(), _stamps(folder, manifest)])
    known = cache / _FOLDER / f"{sha256(stamp.encode()).hexdigest()[:16]}.json"
    if known.exists():
        return []
    problems = damaged_files(folder, manifest)
    if not problems:
        make_folder(known.parent)
        write_atomically(known, stamp + "\n")
    return problems


def _stamps(folder: Path, manifest: Manifest) -> list[list[Any]]:
    """Returns a stamp of each file; the time of its last change of status can't be set."""
    stamps = []
    for name in (MANIFEST_FILE, *manifest.files):
        path = folder / relative_name(name, f"The manifest of {folder}")
        if path.is_file():  # Otherwise it is reported as missing.
            status = path.stat()
            stamps.append(
                [name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            )
    return stamps
