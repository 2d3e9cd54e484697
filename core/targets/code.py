"""Packs this program's code into an archive for another machine.

The archive's bytes depend on the files only, so that its hash names the code.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import core
from core.errors import StudioError

_SUFFIXES = (".py", ".json", ".txt", ".html", ".css", ".js", ".svg", ".mako", ".sh")
_REQUIREMENTS = (
    "constraints.txt",
    "requirements.txt",
    "requirements-cloud.txt",
    "requirements-gpu.txt",
    "requirements-tpu.txt",
)


@dataclass(frozen=True)
class CodeArchive:
    """A gzipped tar archive of `core/` and the lists of packages.

    Attributes:
        sha256: Hex digits of its hash.
    """

    data: bytes
    sha256: str


@cache
def pack_code() -> CodeArchive:
    """Packs the running code; raises StudioError if the lists of packages aren't beside it."""
    package = Path(core.__file__).parent
    root = package.parent
    missing = [name for name in _REQUIREMENTS if not (root / name).is_file()]
    if missing:
        raise StudioError(
            "This installation can't start runs on other machines",
            expected=f"the project's folder with {', '.join(_REQUIREMENTS)}",
            received=f"no {', '.join(missing)} in {root}",
            fix="clone the project and install it there with: make setup",
        )
    files = [path for path in package.rglob("*") if path.suffix in _SUFFIXES and path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    data = _pack(root, sorted([*files, *(root / name for name in _REQUIREMENTS)]))
    return CodeArchive(data, sha256(data).hexdigest())


def bootstrap_source() -> str:
    """Returns the script that a machine runs first."""
    return Path(__file__).with_name("bootstrap.py").read_text("utf-8")


def _pack(root: Path, files: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)
