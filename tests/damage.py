"""Damage to files: flipped bytes, truncation and deletion; and a full disk."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

FLIPS = 20


def flips_of(content: bytes, first: int = 0, last: int | None = None) -> Iterator[bytes]:
    """Yields the content with one byte changed, at 20 random positions from `first` to `last`."""
    generator = np.random.default_rng(len(content))
    for place in generator.integers(first, len(content) if last is None else last, FLIPS):
        changed = bytearray(content)
        changed[place] ^= int(generator.integers(1, 256))
        yield bytes(changed)


def damages_of(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yields the name of each kind of damage and the content after it; None: the file is gone."""
    for changed in flips_of(content):
        yield "flipped", changed
    for size in (0, len(content) // 2, len(content) - 1):
        yield f"cut to {size} bytes", content[:size]
    yield "gone", None


def leave(path: Path, content: bytes | None) -> None:
    """Writes the content that is left after a damage; deletes the file for None."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def with_a_small_disk(folder: Path) -> list[str]:
    """Returns a prefix for a command that mounts a disk of 4 MB at the folder.

    The prefix is empty if this machine doesn't allow mounts: `fill_disk` then limits file sizes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mount = 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else []


def fill_disk(folder: Path, *pids: int, limit_bytes: int = 16_384) -> None:
    """Fills the small disk at a folder; without one, limits the file sizes of the processes.

    Args:
        folder: The mount point of the small disk.
        *pids: The processes to limit; 0 is this one.
        limit_bytes: The limit of their file sizes.
    """
    if not folder.is_mount():
        _limit_files(limit_bytes, pids)
        return
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def make_room(folder: Path, *pids: int) -> None:
    """Undoes `fill_disk`."""
    if folder.is_mount():
        (folder / "filler").unlink()
    else:
        _limit_files(resource.RLIM_INFINITY, pids)


def _limit_files(size: int, pids: tuple[int, ...]) -> None:
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
