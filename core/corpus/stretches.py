"""Cuts files into stretches of about equal size that can be read apart.

A stretch of a text file begins after a line end (of paragraphs: after an empty line), so its
documents are those of the whole file. Finding the cuts reads some kilobytes per stretch.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, Any, Literal

from core.corpus.finding import TextFile
from core.corpus.unpack import open_regular
from core.errors import CorpusError

_BOM = b"\xef\xbb\xbf"
_LEAST_BYTES = 16
_READ_BYTES = 1 << 20
DOCUMENT_END = "<|endoftext|>"
_LINE_END = re.compile(rb"\n")
# Lines of white space between two line feeds.
_EMPTY_LINES = re.compile(rb"\n[ \t\r\f\v]*\n")
# With the rest of its line, so that the next document begins with a line.
_END_MARK = re.compile(re.escape(DOCUMENT_END.encode()) + rb"[ \t\r]{0,64}\n")
_LONGEST_END_MARK = len(DOCUMENT_END) + 65
_MOST_BLANK_BYTES = 1 << 16
# Bytes that begin a character of several bytes in some encoding, or change the meaning of later
# ones; and bytes that such a state would turn into other characters.
_BEGINNINGS = (
    *(bytes([first]) for first in range(256)),
    *(bytes([first, second]) for first in range(0x80, 256) for second in (0x30, 0x81, 0xA1)),
    *(b"\x1b" + rest for rest in (b"$B", b"$@", b"(J", b"(I", b"$A", b"$(C", b"$(D", b"$)C\x0e")),
    b"~{", b"+", b"+AGE",
)  # fmt: skip
_PROBES = (b"A", b"$B", b"0!", b"\xef\xbb\xbf", b"\xa1\xa2")

Unit = Literal["line", "paragraph", "mark"]


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
        """Returns a whole file; one that can't be read has a problem.

        Args:
            members: The number of files in an archive.
        """
        try:
            facts = file.path.stat()
        except OSError as error:
            problem = file.problem or error.strerror or str(error)
            return cls(file.path, file.format, file.member, problem)
        return cls(
            file.path, file.format, file.member, file.problem,
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


@lru_cache(maxsize=64)
def is_safe_to_cut(encoding: str, errors: str = "strict") -> bool:
    """Returns whether text in an encoding can be cut after a line feed.

    Then the byte of a line feed is nothing else, and what follows it doesn't depend on what
    precedes it.

    Args:
        errors: strict, replace or ignore.
    """

    def decoded(*stretches: bytes) -> str | None:
        try:
            return "".join(codecs.decode(stretch, encoding, errors) for stretch in stretches)
        except UnicodeError:
            return None

    lines = {start: decoded(start + b"\n") for start in _BEGINNINGS}
    return (
        decoded(b"\n") == "\n"
        and all(line is None or line.endswith("\n") for line in lines.values())
        and all(
            decoded(start + b"\n" + after) == decoded(start + b"\n", after)
            for start in _BEGINNINGS
            for after in _PROBES
        )
    )


def cut_lines(whole: Stretch, unit: Unit, encoding: str, target_bytes: int) -> Iterator[Stretch]:
    """Cuts an uncompressed text file; yields it whole if it is small.

    Args:
        whole: The file.
        encoding: Its encoding, unless it begins with a byte order mark.
        target_bytes: At least so much is in each stretch but the last.
    """
    target_bytes = max(target_bytes, _LEAST_BYTES)
    size = whole.file_bytes
    mark = _mark_of(unit)
    with open_regular(whole.path) as file:
        file_encoding = "utf-8" if file.read(len(_BOM)) == _BOM else encoding
        start = 0
        while size - start > target_bytes:
            stop = _place_after(file, start + target_bytes, mark)
            if stop is None or stop >= size:
                break
            yield _part(whole, start, stop, file_encoding)
            start = stop
    yield _part(whole, start, None, file_encoding) if start else whole


def shorten(stretch: Stretch, unit: Unit, target_bytes: int) -> Stretch:
    """Returns the beginning of a stretch, of at least so many bytes."""
    with open_regular(stretch.path) as file:
        stop = _place_after(file, stretch.start + target_bytes, _mark_of(unit))
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


def _mark_of(unit: Unit) -> re.Pattern[bytes]:
    return {"line": _LINE_END, "paragraph": _EMPTY_LINES, "mark": _END_MARK}[unit]


def _place_after(file: IO[bytes], near: int, mark: re.Pattern[bytes]) -> int | None:
    """Finds the first place from about `near` on that follows a mark."""
    position, before = max(0, near - 1), b""
    file.seek(position)
    while block := file.read(_READ_BYTES):
        data = before + block
        if match := mark.search(data):
            return position + match.end()
        before = _begun(data)
        position += len(data) - len(before)
    return None


def _begun(data: bytes) -> bytes:
    """Returns the end of a block that may begin a mark."""
    text = data[-_MOST_BLANK_BYTES:]
    blank = text[len(text.rstrip()) :]
    start = blank.find(b"\n")
    if start >= 0:
        return blank[start:]
    at = data.rfind(b"<", -_LONGEST_END_MARK)
    return data[at:] if at >= 0 else b""
