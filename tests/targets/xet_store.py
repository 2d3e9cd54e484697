"""The content-addressed store behind a loopback Hub, in the formats of hf_xet.

A file is a list of terms; a term is a range of a xorb's chunks. The store keeps xorbs as they
arrive, so it can join only chunks that are not compressed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HASH_BYTES = 32
_HEADER_BYTES = 8
# A shard's header, and each entry in it, has this size.
_ENTRY_BYTES = 48
_VERIFIED, _DESCRIBED = 1 << 31, 1 << 30


@dataclass(frozen=True)
class Chunk:
    """A chunk's bytes in its xorb, header included, and the length of its content."""

    start: int
    stop: int
    length: int


@dataclass(frozen=True)
class Term:
    """A range of a xorb's chunks that is part of a file."""

    xorb: str
    first: int
    stop: int


class XetStore:
    """Keeps xorbs and the terms of files in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._xorbs: dict[str, tuple[bytes, list[Chunk]]] = {}
        self._files: dict[str, list[Term]] = {}

    def __contains__(self, file: str) -> bool:
        return file in self._files

    def add_xorb(self, hash: str, data: bytes) -> None:
        """Keeps a xorb; raises ValueError if its chunks can't be read."""
        chunks = _chunks_of_xorb(data)
        with self._lock:
            self._xorbs[hash] = (data, chunks)

    def add_shard(self, data: bytes) -> None:
        """Keeps the files of a shard; raises ValueError if one needs an unknown xorb."""
        files = dict(_files_of_shard(data))
        for terms in files.values():
            for term in terms:
                if term.xorb not in self._xorbs:
                    raise ValueError(f"the shard names an unknown xorb: {term.xorb}")
        with self._lock:
            self._files.update(files)

    def xorb(self, hash: str) -> bytes:
        return self._xorbs[hash][0]

    def size(self, file: str) -> int:
        return sum(chunk.length for _, _, chunk in self._chunks(file))

    def content(self, file: str) -> bytes:
        """Returns the bytes of a file."""
        return b"".join(
            self.xorb(xorb)[chunk.stop - chunk.length : chunk.stop]
            for xorb, _, chunk in self._chunks(file)
        )

    def reconstruct(self, file: str, wanted: range, url: str) -> dict[str, Any]:
        """Lists the chunks that cover a range of a file's bytes.

        Args:
            file: The file's hash.
            wanted: The bytes, not empty.
            url: The address of a xorb, with `{hash}` in it.
        """
        terms: list[dict[str, Any]] = []
        fetches: dict[str, list[dict[str, Any]]] = {}
        offset = position = 0
        for xorb, index, chunk in self._chunks(file):
            start, position = position, position + chunk.length
            if position <= wanted.start or start >= wanted.stop:
                continue
            if not terms:
                offset = wanted.start - start
            if terms and (terms[-1]["hash"], terms[-1]["range"]["end"]) == (xorb, index):
                # The fetch shares this range.
                terms[-1]["range"]["end"] = index + 1
                terms[-1]["unpacked_length"] += chunk.length
                fetches[xorb][-1]["url_range"]["end"] = chunk.stop - 1
                continue
            chunks = {"start": index, "end": index + 1}
            terms.append({"hash": xorb, "unpacked_length": chunk.length, "range": chunks})
            place = {"start": chunk.start, "end": chunk.stop - 1}
            fetch = {"range": chunks, "url": url.format(hash=xorb), "url_range": place}
            fetches.setdefault(xorb, []).append(fetch)
        return {"offset_into_first_range": offset, "terms": terms, "fetch_info": fetches}

    def _chunks(self, file: str) -> Iterator[tuple[str, int, Chunk]]:
        """Yields the xorb, the index in it and the place of each chunk of a file."""
        for term in self._files[file]:
            for index in range(term.first, term.stop):
                yield term.xorb, index, self._xorbs[term.xorb][1][index]


def _chunks_of_xorb(data: bytes) -> list[Chunk]:
    """Reads a xorb's chunk headers.

    Source: https://huggingface.co/docs/xet/xorb
    """
    chunks, position = [], 0
    # A header begins with its version, 0; a footer, if there is one, with a letter.
    while position < len(data) and data[position] == 0:
        stored = int.from_bytes(data[position + 1 : position + 4], "little")
        length = int.from_bytes(data[position + 5 : position + 8], "little")
        if data[position + 4] != 0 or stored != length:
            raise ValueError("compressed chunk: set HF_XET_XORB_COMPRESSION_POLICY=none")
        chunks.append(Chunk(position, position + _HEADER_BYTES + stored, length))
        position = chunks[-1].stop
    if not chunks or position > len(data):
        raise ValueError("the xorb is truncated")
    return chunks


def _files_of_shard(data: bytes) -> Iterator[tuple[str, list[Term]]]:
    """Yields hash and terms of each file in a shard.

    Source: https://huggingface.co/docs/xet/shard
    """
    position = _ENTRY_BYTES
    while data[position : position + _HASH_BYTES] != b"\xff" * _HASH_BYTES:
        file, flags, count = struct.unpack_from("<32sII", data, position)
        terms = []
        for i in range(1, count + 1):
            fields = struct.unpack_from("<32s4I", data, position + i * _ENTRY_BYTES)
            terms.append(Term(_hash(fields[0]), fields[3], fields[4]))
        yield _hash(file), terms
        entries = 1 + count + (count if flags & _VERIFIED else 0) + bool(flags & _DESCRIBED)
        position += entries * _ENTRY_BYTES


def _hash(raw: bytes) -> str:
    """Writes a hash as hf_xet does: four little-endian numbers of 64 bits."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))
