"""Files of counted words, divided into buckets by the words' hashes.

A file begins with a table of the buckets; each bucket has the words' lengths in bytes, their
counts, and their UTF-8, by ascending UTF-8.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from core.errors import TokenizerError

BUCKETS = 256

_MAGIC = b"studio word counts 1\n"
_COLUMNS = 3  # offset, words, bytes
_TABLE_BYTES = BUCKETS * _COLUMNS * 8

Table = npt.NDArray[np.int64]


def write_counts(path: Path, words: Mapping[str, int]) -> None:
    """Writes a file of counted words; the order of the words doesn't matter."""
    buckets: list[list[tuple[bytes, int]]] = [[] for _ in range(BUCKETS)]
    for word, count in words.items():
        # Corpora have no lone surrogates, but callers' texts may.
        data = word.encode("utf-8", "surrogatepass")
        buckets[zlib.crc32(data) % BUCKETS].append((data, count))
    table: Table = np.zeros((BUCKETS, _COLUMNS), "<i8")
    with path.open("wb") as file:
        file.write(_MAGIC + table.tobytes())
        for number, bucket in enumerate(buckets):
            bucket.sort()
            table[number] = file.tell(), len(bucket), sum(len(data) for data, _ in bucket)
            file.write(np.array([len(data) for data, _ in bucket], "<u4").tobytes())
            file.write(np.array([count for _, count in bucket], "<i8").tobytes())
            file.write(b"".join(data for data, _ in bucket))
        file.seek(len(_MAGIC))
        file.write(table.tobytes())


def read_buckets(path: Path, buckets: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yields words of buckets and their counts; raises TokenizerError."""
    with path.open("rb") as file:
        table = _read_table(file, path)
        for bucket in buckets:
            offset, words, size = table[bucket].tolist()
            if words:
                file.seek(offset)
                yield from _read_bucket(file, path, words, size)


def _read_bucket(file: BinaryIO, path: Path, words: int, size: int) -> Iterator[tuple[str, int]]:
    lengths = np.frombuffer(_read(file, path, words * 4), "<u4")
    counts = np.frombuffer(_read(file, path, words * 8), "<i8").tolist()
    data = _read(file, path, size)
    start = 0
    for end, count in zip(np.cumsum(lengths, dtype=np.int64).tolist(), counts, strict=True):
        yield data[start:end].decode("utf-8", "surrogatepass"), count
        start = end


def count_in_file(path: Path) -> tuple[int, int]:
    """Returns the number of words and their bytes; raises TokenizerError."""
    with path.open("rb") as file:
        _, words, size = _read_table(file, path).sum(0).tolist()
    return words, size


def _read_table(file: BinaryIO, path: Path) -> Table:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damaged(path)
    return np.frombuffer(_read(file, path, _TABLE_BYTES), "<i8").reshape(BUCKETS, _COLUMNS)


def _read(file: BinaryIO, path: Path, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise _damaged(path)
    return data


def _damaged(path: Path) -> TokenizerError:
    return TokenizerError(
        "A file of counted words is damaged",
        expected="a complete file, as this version writes it",
        received=str(path),
        fix="delete the file, and train the tokenizer again",
    )
