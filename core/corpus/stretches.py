"""Cuts files into stretches of about equal size that can be read apart.

A stretch of a text file begins after a line end (of paragraphs: after an empty line), so its
documents are those of the whole file. Finding the cuts reads some kilobytes per stretch.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Literal

from core.corpus.finding import TextFile
from core.corpus.unpack import open_regular
from core.errors import CorpusError

_BOM = b"\xef\xbb\xbf"
_LEAST_BYTES = 16
_READ_BYTES = 1 << 20
# In these encodings, the byte of a line feed is nothing else.
_SAFE_ENCODINGS = {
    "utf-8", "ascii", "iso8859-1", "iso8859-2", "iso8859-15", "cp1250", "cp1251", "cp1252",
    "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874", "koi8-r", "koi8-u", "cp949",
    "euc_kr", "euc_jp", "cp932", "shift_jis", "gb18030", "gbk", "gb2312", "big5",
}  # fmt: skip
_LINE_ENDS = (b"\n",)
_EMPTY_LINES = (b"\n\n", b"\n\r\n")

Unit = Literal["line", "paragraph"]


@dataclass(frozen=True)
class Stretch(TextFile):
    """A file, or a part of one.

    Attributes:
        start, stop: Bytes, or row groups of a Parquet file; `stop` None: to the end.
        bytes: About how much there is to read.
        file_bytes, modified_ns: The file's, when it was planned.
        column, columns: The table's, if it begins in an earlier stretch.
        encoding: The text's, if it begins in an earlier stretch.
    """

    start: int = 0
    stop: int | None = None
    bytes: int = 0
    file_bytes: int = 0
    modified_ns: int = 0
    column: str = ""
    columns: tuple[str, ...] = ()
    encoding: str = ""

    @classmethod
    def whole(cls, file: TextFile, members: int = 1) -> Stretch:
        """Raises OSError if the file can't be read.

        Args:
            members: The number of files in an archive.
        """
        facts = file.path.stat()
        return cls(
            file.path, file.format, file.member,
            bytes=facts.st_size // members, file_bytes=facts.st_size, modified_ns=facts.st_mtime_ns,
        )  # fmt: skip

    @property
    def is_cut(self) -> bool:
        return self.start > 0 or self.stop is not None

    def describe(self) -> str:
        """Names the file and the range."""
        if not self.is_cut:
            return self.shown
        unit = "row groups" if self.format == "parquet" else "bytes"
        stop = f"{self.stop:,}" if self.stop is not None else "the end"
        return f"{self.shown} ({unit} {self.start:,} to {stop})"

    def check_unchanged(self) -> None:
        """Raises CorpusError if the file has changed since it was planned."""
        facts = self.path.stat()
        if (facts.st_size, facts.st_mtime_ns) != (self.file_bytes, self.modified_ns):
            raise CorpusError(
                f"{self.shown} has changed while it was read",
                expected=f"the file of {self.file_bytes:,} bytes that the reading began with",
                received=f"a file of {facts.st_size:,} bytes that was written later",
                fix="start again when the file is complete",
                field="path",
            )


class Range(io.RawIOBase):
    """A stretch of a stream."""

    @classmethod
    def of(cls, stream: IO[bytes], start: int, stop: int | None) -> IO[bytes]:
        """Returns a buffered stream."""
        return io.BufferedReader(cls(stream, start, stop), _READ_BYTES)

    def __init__(self, stream: IO[bytes], start: int, stop: int | None) -> None:
        stream.seek(start)
        self._stream = stream
        self._left = sys.maxsize if stop is None else stop - start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def is_safe_to_cut(encoding: str) -> bool:
    """Returns whether text in an encoding can be cut after a line feed."""
    return encoding in _SAFE_ENCODINGS


def cut_lines(whole: Stretch, unit: Unit, encoding: str, target_bytes: int) -> Iterator[Stretch]:
    """Cuts an uncompressed text file; yields it whole if it is small.

    Args:
        whole: The file.
        encoding: Its encoding, unless it begins with a byte order mark.
        target_bytes: At least so much is in each stretch but the last.
    """
    target_bytes = max(target_bytes, _LEAST_BYTES)
    size = whole.file_bytes
    marks = _LINE_ENDS if unit == "line" else _EMPTY_LINES
    with open_regular(whole.path) as file:
        found = "utf-8" if file.read(len(_BOM)) == _BOM else encoding
        start = 0
        while size - start > target_bytes:
            stop = _place_after(file, start + target_bytes, marks)
            if stop is None or stop >= size:
                break
            yield _part(whole, start, stop, found)
            start = stop
    yield _part(whole, start, None, found) if start else whole


def shorten(stretch: Stretch, unit: Unit, target_bytes: int) -> Stretch:
    """Returns the beginning of a stretch, of at least so many bytes."""
    with open_regular(stretch.path) as file:
        marks = _LINE_ENDS if unit == "line" else _EMPTY_LINES
        stop = _place_after(file, stretch.start + target_bytes, marks)
    end = stretch.file_bytes if stretch.stop is None else stretch.stop
    if stop is None or stop >= end:
        return stretch
    return replace(stretch, stop=stop, bytes=stop - stretch.start)


def _part(whole: Stretch, start: int, stop: int | None, encoding: str) -> Stretch:
    size = (whole.file_bytes if stop is None else stop) - start
    encoding = encoding if start else ""
    return replace(whole, start=start, stop=stop, bytes=size, encoding=encoding)


def cut_groups(whole: Stretch, sizes: Sequence[int], target_bytes: int) -> Iterator[Stretch]:
    """Cuts a Parquet file between row groups.

    Args:
        sizes: Bytes of each row group.
    """
    start = size = 0
    for number, group in enumerate(sizes):
        if size and size + group > target_bytes:
            yield replace(whole, start=start, stop=number, bytes=size)
            start, size = number, 0
        size += group
    yield replace(whole, start=start, stop=len(sizes) if start else None, bytes=size)


def _place_after(file: IO[bytes], near: int, marks: tuple[bytes, ...]) -> int | None:
    """Finds the first place from `near` on that follows a mark."""
    longest = max(map(len, marks))
    position, before = near - longest, b""
    file.seek(max(0, position))
    position = max(0, position)
    while block := file.read(_READ_BYTES):
        data = before + block
        ends = [found + len(mark) for mark in marks if (found := data.find(mark)) >= 0]
        if ends:
            return position + min(ends)
        before = data[-(longest - 1) :] if longest > 1 else b""
        position += len(data) - len(before)
    return None
