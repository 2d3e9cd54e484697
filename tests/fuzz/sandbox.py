"""The folders of one input, and the check that a reader touched nothing else.

base/a/b/c/d/          deep enough that a few `../` stay below `base`
    input/             the files of one input
    workspace/         where a reader may keep what it fetched
    tmp/               for temporary files; empty again after each input
    home/, cwd/        stay as they are
    canary/            files that no reader may open: their names are in the inputs
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# In the canary's files and the reader's environment: no result may contain it.
SECRET = "the-canary-sings-7f3a9c"

_IN_OPEN, _IN_ACCESS, _IN_MODIFY = 0x20, 0x1, 0x2
_EVENT = struct.Struct("iIII")


@dataclass(frozen=True)
class Fifo:
    """A named pipe without a writer."""


@dataclass(frozen=True)
class Folder:
    """A folder where a file is expected."""


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Entry = bytes | Fifo | Folder | Link
Files = Mapping[str, Entry]


class Sandbox:
    """The folders below `base`.

    Args:
        base: An empty folder.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "a" / "b" / "c" / "d"
        self.input = self.root / "input"
        self.workspace = self.root / "workspace"
        self.tmp = self.root / "tmp"
        self.home = self.root / "home"
        self.cwd = self.root / "cwd"
        self.canary = self.root / "canary"

    def create(self) -> None:
        """Makes the folders and the canary's files."""
        for folder in (self.input, self.workspace, self.tmp, self.home, self.cwd, self.canary):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ("secret.txt", "secret.bin", "model.safetensors", "dataset-0-1.tfrecord"):
            (self.canary / name).write_text(f"{SECRET}\n" * 8)

    def put(self, files: Files) -> None:
        """Replaces the input's files, and empties the workspace and the temporary folder."""
        for folder in (self.input, self.workspace, self.tmp):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.put_input(files)

    def put_input(self, files: Files) -> None:
        """Writes the input's files."""
        self.input.mkdir(parents=True, exist_ok=True)
        for name, entry in files.items():
            path = self.input / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(entry, bytes):
                path.write_bytes(entry)
            elif isinstance(entry, Fifo):
                os.mkfifo(path)
            elif isinstance(entry, Folder):
                path.mkdir()
            else:
                path.symlink_to(entry.target)

    def outside(self) -> dict[str, tuple[int, int, int]]:
        """Describes every path below `base` that no reader may change."""
        found = {}
        kept = {str(folder) for folder in (self.input, self.workspace, self.tmp)}
        for parent, folders, names in os.walk(self.base):
            folders[:] = [name for name in folders if f"{parent}/{name}" not in kept]
            for name in (*folders, *names):
                status = os.lstat(f"{parent}/{name}")
                is_folder = stat.S_ISDIR(status.st_mode)
                size = 0 if is_folder else status.st_size
                found[f"{parent}/{name}"] = (status.st_ino, size, status.st_mtime_ns)
        # Emptying the three folders above changes their parent's time.
        found.pop(str(self.root))
        return found


class Watch:
    """Detects by inotify if any library opens a file of a folder.

    Args:
        folder: Its files are watched, not its subfolders.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "inotify_init1"):
            self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            mask = _IN_OPEN | _IN_ACCESS | _IN_MODIFY
            libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)

    @property
    def works(self) -> bool:
        """Whether this system has inotify."""
        return self._descriptor >= 0

    def opened(self) -> list[str]:
        """Returns the names of the files that were opened since the last call."""
        names: set[str] = set()
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            place = 0
            while place < len(data):
                _, _, _, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size + length
                name = data[place - length : place].rstrip(b"\0")
                # Without a name it is the folder itself, which may be listed.
                names |= {os.fsdecode(name)} if name else set()
        return sorted(names)
