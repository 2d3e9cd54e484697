"""Opens files as decompressed streams of limited size, detecting compression by content."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from core.errors import CorpusError

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (_ZSTD_MAGIC, "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
)
# Skippable frames of zstd and lz4; pzstd writes one before each frame.
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (_LZ4_MAGIC, "lz4 (unpack it first: lz4 -d)"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip (unpack it first)"),
    (b"Rar!", "RAR (unpack it first)"),
    (b"PAR1", "Parquet"),
    (b"%PDF", "PDF"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"SQLite format 3", "SQLite"),
    (b"\x89HDF", "HDF5"),
    (b"ARROW1", "Arrow"),
    (b"\xd0\xcf\x11\xe0", "Office"),
    (b"\x7fELF", "ELF"),
)
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
# Source: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"\nsize (\d{1,19})\n")

SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
_HEAD_BYTES = 512
# Smaller files may have any ratio.
RATIO_FREE_BYTES = 256_000_000
# Python keeps half a kilobyte per entry.
_MOST_ZIP_DIRECTORY_BYTES = 16 << 20
_ZIP_END_BYTES = (1 << 16) + 22
_MOST_TAR_MEMBERS = 1 << 20
_TAR_BLOCK_BYTES = 512
DEFAULT_RATIO = 200
_READ_BYTES = 1 << 18
# The zstd library's limit; a larger one is refused, so that a file can't fill the memory.
_MOST_ZSTD_WINDOW_MIB = 128


@dataclass(frozen=True)
class Packed:
    """A file, or a member of a zip or tar archive."""

    path: Path
    member: str = ""

    @property
    def shown(self) -> str:
        """The name in errors."""
        return f"{self.path}/{self.member}" if self.member else str(self.path)


class UnpackMeter:
    """Limits the ratio of unpacked to packed bytes."""

    def __init__(self, shown: str, packed_bytes: int, ratio: int) -> None:
        self._shown = shown
        self._most = max(RATIO_FREE_BYTES, packed_bytes * ratio)
        self._packed_bytes = packed_bytes
        self._ratio = ratio
        self._bytes = 0

    def add(self, count: int) -> None:
        """Counts bytes; raises CorpusError above the limit."""
        self._bytes += count
        if self._bytes > self._most:
            raise CorpusError(
                f"{self._shown} is too large after decompression",
                expected=f"at most {self._ratio} times its size of {self._packed_bytes:,} bytes",
                received=f"more than {self._most:,} bytes",
                fix="raise ⟬max_unpack_ratio⟭ if the file is the right one, or exclude it",
                field="max_unpack_ratio",
            )


class _Counted(io.RawIOBase):
    def __init__(self, stream: Any, meter: UnpackMeter) -> None:
        self._stream = stream
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _explaining_damage():
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._meter.add(len(data))
        return len(data)


def compression_of(head: bytes) -> str:
    """Detects compression from a file's first bytes."""
    head = _without_skippable(head)
    for magic, name in _MAGIC:
        if head.startswith(magic):
            is_other = name == "bzip2" and not head[4:].startswith(_BZIP2_BLOCKS)
            return "" if is_other else name
    return ""


def _without_skippable(head: bytes) -> bytes:
    """Removes zstd's skippable frames; the next frame may begin behind the head."""
    rest = head
    while rest[1:4] == _SKIPPABLE_MAGIC and rest[0] >> 4 == 5 and len(rest) >= 8:
        rest = rest[8 + int.from_bytes(rest[4:8], "little") :]
    if rest is head or rest.startswith(_LZ4_MAGIC):
        return head
    return rest or _ZSTD_MAGIC


def is_zip(head: bytes) -> bool:
    return head.startswith(_ZIP_MAGIC)


def is_tar(head: bytes) -> bool:
    return head[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC)


def check_no_pointer(shown: str, head: bytes) -> None:
    """Raises CorpusError for a pointer that Git LFS left in place of a file."""
    if not head.startswith(_LFS_MAGIC):
        return
    size = _LFS_SIZE.search(head)
    raise CorpusError(
        f"{shown} is a Git LFS pointer, not the file itself",
        expected=f"the file of {int(size[1]):,} bytes" if size else "the file",
        received="a few lines that name it",
        fix="run git lfs pull in the folder of its repository, or download the file again",
        field="path",
    )


def foreign_kind_of(head: bytes) -> str:
    """Detects a known file type without readable text."""
    if is_tar(head):
        return "tar"
    return next((name for magic, name in _FOREIGN if head.startswith(magic)), "")


def open_regular(path: Path) -> IO[bytes]:
    """Opens a file; raises OSError for pipes and devices."""
    # Otherwise opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def head_of(packed: Packed) -> bytes:
    """Returns the first bytes before decompression."""
    with _raw(packed) as stream:
        return stream.read(_HEAD_BYTES)


@contextmanager
def unpacked(packed: Packed, ratio: int) -> Iterator[tuple[IO[bytes], str]]:
    """Yields a decompressed stream and the compression; raises CorpusError above the ratio.

    A plain file's stream is seekable.
    """
    with _raw(packed, ratio) as raw:
        stream = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(Any, raw))
        head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        check_no_pointer(packed.shown, head)
        name = compression_of(head)
        suffix = Path(packed.member or packed.path).suffix.lower()
        if head and not name and suffix in SUFFIXES:
            raise OSError(0, f"it doesn't begin like a {SUFFIXES[suffix]} file")
        if not name and not packed.member:
            yield stream, ""
            return
        meter = UnpackMeter(packed.shown, packed.path.stat().st_size, ratio)
        with _decompressor(stream, name, packed.shown) as plain:
            counted = _Counted(plain, meter)
            archive = "tar" if isinstance(stream, _TarStream) else "zip"
            yield io.BufferedReader(counted, _READ_BYTES), name or archive


def beginning_of(packed: Packed, ratio: int) -> bytes:
    """Returns the first bytes after decompression; raises OSError for damaged files."""
    with _explaining_damage(), unpacked(packed, ratio) as (stream, _):
        return stream.read(_HEAD_BYTES)


@contextmanager
def _decompressor(stream: IO[bytes], name: str, shown: str) -> Iterator[Any]:
    if name == "gzip":
        import gzip

        with gzip.open(stream) as opened:
            yield opened
    elif name == "xz":
        import lzma

        with lzma.open(stream) as opened:
            yield opened
    elif name == "bzip2":
        import bz2

        with bz2.open(stream) as opened:
            yield opened
    elif name == "zstd":
        import pyarrow as pa

        with pa.CompressedInputStream(stream, "zstd") as opened, _explaining_window(shown):
            yield opened
    elif name == "zip":
        raise OSError(0, "it is a zip archive; rename it to end in .zip, or unpack it")
    else:
        yield stream


@contextmanager
def _explaining_window(shown: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if "too much memory" not in str(error):
            raise
        name = Path(shown).name
        raise CorpusError(
            f"{shown} needs too much memory to unpack",
            expected=f"a zstd file with a window of at most {_MOST_ZSTD_WINDOW_MIB} MiB",
            received="a larger window, as zstd --long=31 makes",
            fix=f"unpack it first: zstd -d --long=31 {name}",
            field="path",
        ) from error


@contextmanager
def _explaining_damage() -> Iterator[None]:
    """Raises OSError for whatever a decompressor raises for damaged data."""
    import lzma

    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, struct.error) as error:
        raise OSError(0, str(error) or type(error).__name__) from error


@contextmanager
def _raw(packed: Packed, ratio: int = DEFAULT_RATIO) -> Iterator[IO[bytes]]:
    with open_regular(packed.path) as file:
        if not packed.member:
            yield file
            return
        # The first bytes are read without a meter.
        with _opened_member(packed, file, ratio) as member, _explaining_damage():
            yield member


def _opened_member(packed: Packed, file: IO[bytes], ratio: int) -> IO[bytes]:
    if not is_zip(file.read(_HEAD_BYTES)):
        return _tar_of(packed.path, ratio).open(packed.member)
    with _explaining_zip():
        _check_zip_directory(file)
        return zipfile.ZipFile(file).open(packed.member)


def archive_members(path: Path, ratio: int) -> list[str]:
    """Lists the files of a zip or tar archive, sorted.

    Raises:
        OSError: It is damaged.
        CorpusError: It is a Git LFS pointer, or too large after decompression.
    """
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        check_no_pointer(str(path), head)
        if not is_zip(head) and path.suffix.lower() != ".zip":
            return sorted(_tar_of(path, ratio).members)
        with _explaining_zip():
            _check_zip_directory(file)
            with zipfile.ZipFile(file) as archive:
                return sorted(
                    {member.filename for member in archive.infolist() if not member.is_dir()}
                )


@dataclass(frozen=True)
class _Tar:
    """A tar archive without compression.

    Attributes:
        members: Start and size of each file.
    """

    file: IO[bytes]
    members: Mapping[str, tuple[int, int]]

    def open(self, name: str) -> IO[bytes]:
        if name not in self.members:
            raise OSError(0, "the archive has changed while it was read")
        return _TarStream(_TarMember(self.file.fileno(), *self.members[name]))


class _TarStream(io.BufferedReader):
    """A stream of a tar archive's member."""


class _TarMember(io.RawIOBase):
    def __init__(self, descriptor: int, start: int, size: int) -> None:
        self._descriptor = descriptor
        self._place, self._stop = start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._stop - self._place)
        data = os.pread(self._descriptor, count, self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def _tar_of(path: Path, ratio: int) -> _Tar:
    facts = path.stat()
    return _read_tar(path, ratio, facts.st_size, facts.st_mtime_ns)


# An archive is unpacked once, to a temporary file, as its members can't be found otherwise.
@lru_cache(maxsize=2)
def _read_tar(path: Path, ratio: int, size: int, modified_ns: int) -> _Tar:
    file: IO[bytes]
    with unpacked(Packed(path), ratio) as (stream, compression):
        if compression:
            file = tempfile.TemporaryFile()  # noqa: SIM115
            shutil.copyfileobj(stream, file, _READ_BYTES)
            file.flush()
        else:
            file = open_regular(path)
    file.seek(0)
    with _explaining_damage():
        return _Tar(file, dict(_list_tar(file)))


def _list_tar(file: IO[bytes]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields names, starts and sizes of regular files; raises OSError if the archive is damaged."""
    try:
        # Members are read by their places, so nothing is extracted.
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for number, member in enumerate(iter(archive.next, None)):
                archive.members = []  # type: ignore[attr-defined]  # otherwise all are kept
                if number >= _MOST_TAR_MEMBERS:
                    raise OSError(0, f"it has more than {_MOST_TAR_MEMBERS:,} members")
                if member.isreg() and not member.issparse():
                    yield member.name.removeprefix("./"), (member.offset_data, member.size)
            end = archive.offset
        # Otherwise tarfile stops at a damaged header without an error.
        file.seek(end)
        if file.read(_TAR_BLOCK_BYTES).strip(b"\0"):
            raise OSError(0, "it ends without the end mark of a tar archive")
    except (tarfile.TarError, ValueError, OverflowError, UnicodeError) as error:
        raise OSError(0, str(error) or type(error).__name__) from error


@contextmanager
def _explaining_zip() -> Iterator[None]:
    """Raises OSError, as a damaged archive can raise almost any error."""
    try:
        yield
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, KeyError, ValueError, EOFError,
            UnicodeError, struct.error) as error:  # fmt: skip
        raise OSError(0, str(error) or type(error).__name__) from error


def _check_zip_directory(file: IO[bytes]) -> None:
    """Refuses an archive whose directory is too large to list in memory."""
    directory = _zip_directory_bytes(file)
    if directory > _MOST_ZIP_DIRECTORY_BYTES:
        raise OSError(
            0,
            f"its file list has {directory:,} bytes, more than {_MOST_ZIP_DIRECTORY_BYTES:,}; "
            "unpack it first",
        )
    file.seek(0)


def _zip_directory_bytes(file: IO[bytes]) -> int:
    """Reads the directory's size from the end of an archive; 0 if it has no end record."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_BYTES))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    directory = int.from_bytes(tail[place + 12 : place + 16], "little") if place >= 0 else 0
    if directory == 0xFFFFFFFF:
        large = tail.rfind(b"PK\x06\x06", 0, place)
        directory = int.from_bytes(tail[large + 40 : large + 48], "little") if large >= 0 else size
    return directory
