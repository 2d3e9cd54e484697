"""Reads and writes TFRecord shards without TensorFlow.

Records are framed as

    length (uint64) | masked CRC32C of length (uint32) | data | masked CRC32C of data (uint32)

`FixedRecords` hold ids as bytes, so files are memory-mapped arrays; `Int64Records` hold lists of
varying size.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from core.errors import MissingDataError, ShardError
from core.messages.system_errors import is_disk_full
from core.shards.protobuf import (
    BYTES,
    INT64,
    decode_varint_lists,
    encode_varints,
    parse_example,
    serialize_example,
    serialize_feature,
)
from core.storage.shard_names import file_name
from core.workspace.places import make_folder

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"

_FRAME = struct.Struct("<QI")
_FRAME_BYTES = _FRAME.size
_CRC_BYTES = 4
_CRC_MASK_DELTA = 0xA282EAD8
_CHECKED_AT_ONCE = 4096
_LONGEST_SEARCH_BYTES = 1 << 20
_SAMPLED_RECORDS = 512
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_UINT16_VOCABULARY = 1 << 16


def masked_crc(data: bytes) -> int:
    """Computes TFRecord's masked CRC32C."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns little-endian uint16 or uint32."""
    return np.dtype("<u2" if vocab_size <= _LARGEST_UINT16_VOCABULARY else "<u4")


@dataclass(frozen=True)
class FixedRecords:
    """The layout with records of equal size.

    Attributes:
        id_bytes: 2 or 4.
    """

    row_length: int
    id_bytes: int

    name = "bytes"

    @cached_property
    def dtype(self) -> np.dtype:
        """The record: head, input_ids, crc."""
        return np.dtype(
            [
                ("head", f"V{len(self.head)}"),
                ("input_ids", f"<u{self.id_bytes}", (self.row_length,)),
                ("crc", "<u4"),
            ]
        )

    @cached_property
    def _examples(self) -> np.dtype:
        size = self.dtype.itemsize - _CRC_BYTES - _FRAME_BYTES
        return np.dtype(
            {
                "names": ["example"],
                "formats": [f"V{size}"],
                "offsets": [_FRAME_BYTES],
                "itemsize": self.dtype.itemsize,
            }
        )

    @cached_property
    def head(self) -> bytes:
        """The constant bytes before the ids."""
        payload_bytes = self.row_length * self.id_bytes
        example = serialize_example({INPUT_IDS: serialize_feature(BYTES, bytes(payload_bytes))})
        return _frame_head(len(example)) + example[: len(example) - payload_bytes]

    def pack(self, rows: NDArray) -> bytes:
        """Serialises sequences (n, row_length)."""
        records = np.empty(len(rows), self.dtype)
        records["head"] = np.void(self.head)
        records["input_ids"] = rows
        records["crc"] = self._crcs(records)
        return records.tobytes()

    def map(self, path: Path, records: int) -> MappedFixedRecords:
        """Maps a file after checking its size."""
        size = _size_of(path)
        whole, rest = divmod(size, self.dtype.itemsize)
        if rest and whole < records:
            raise _truncated(path, whole, size, records * self.dtype.itemsize)
        if rest or whole != records:
            raise _wrong_count(
                path, records, f"{whole} records and {rest} bytes" if rest else str(whole)
            )
        data = np.memmap(path, self.dtype, mode="r") if records else np.empty(0, self.dtype)
        return MappedFixedRecords(self, path, np.asarray(data))

    def _crcs(self, records: NDArray) -> NDArray[np.uint32]:
        data = records.view(self._examples)["example"].tolist()
        crcs = np.fromiter(map(google_crc32c.value, data), np.uint32, len(data))
        masked = ((crcs >> 15) | (crcs << 17)) + np.uint32(_CRC_MASK_DELTA)
        return masked.astype(np.uint32, copy=False)


@dataclass(frozen=True)
class MappedFixedRecords:
    layout: FixedRecords
    path: Path
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.data)

    def read(self, numbers: NDArray[np.int64]) -> NDArray:
        """Returns ids, (n, row_length), checking CRCs."""
        records = self.data.take(numbers)
        sound = records["head"] == np.void(self.layout.head)
        sound &= records["crc"] == self.layout._crcs(records)
        if not sound.all():
            raise _damaged(self.path, int(numbers[int(np.argmin(sound))]))
        return records["input_ids"]


@dataclass(frozen=True)
class Int64Records:
    """The original scripts' layout.

    Attributes:
        pad_id: Excluded by attention masks.
    """

    row_length: int
    pad_id: int | None = field(default=None, compare=False)

    name = "int64"

    def pack(self, rows: NDArray) -> bytes:
        """Serialises sequences (n, row_length) with attention masks."""
        values, sizes = encode_varints(rows.reshape(-1))
        ends = np.cumsum(sizes.reshape(rows.shape).sum(axis=1, dtype=np.int64))
        starts = ends - np.diff(ends, prepend=0)
        tokens = self._tokens(rows)
        masks = {
            length: serialize_feature(
                INT64, b"\x01" * length + b"\x00" * (self.row_length - length)
            )
            for length in set(tokens)
        }
        features = (
            {
                INPUT_IDS: serialize_feature(INT64, values[start:end]),
                ATTENTION_MASK: masks[length],
            }
            for start, end, length in zip(starts.tolist(), ends.tolist(), tokens, strict=True)
        )
        return b"".join(frame(serialize_example(row)) for row in features)

    def _tokens(self, rows: NDArray) -> list[int]:
        """Excludes trailing padding."""
        if self.pad_id is None:
            return [self.row_length] * len(rows)
        real = np.flip(rows, axis=1) != self.pad_id
        padding = np.where(real.any(axis=1), real.argmax(axis=1), self.row_length)
        return (self.row_length - padding).tolist()

    def map(self, path: Path, records: int) -> MappedInt64Records:
        """Maps a file and scans it for offsets."""
        _size_of(path)
        offsets = np.fromiter(walk(path, records), np.int64)
        if len(offsets) != records + 1:
            raise _wrong_count(path, records, str(len(offsets) - 1))
        data = np.memmap(path, np.uint8, mode="r") if records else np.empty(0, np.uint8)
        return MappedInt64Records(self, path, data, offsets)


@dataclass(frozen=True)
class MappedInt64Records:
    """A mapped file of int64 records.

    Attributes:
        offsets: Starts, then the file's size, int64 (n + 1,).
    """

    layout: Int64Records
    path: Path
    data: np.ndarray
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns ids, (n, row_length), checking CRCs and lengths."""
        lists = [self._ids(number) for number in numbers.tolist()]
        values, counts = decode_varint_lists(lists)
        wrong = np.flatnonzero(counts != self.layout.row_length)
        if len(wrong):
            raise _wrong_length(
                self.path, int(numbers[wrong[0]]), int(counts[wrong[0]]), self.layout
            )
        return values.reshape(len(lists), self.layout.row_length)

    def _ids(self, number: int) -> bytes:
        features = self._features(number)
        if INPUT_IDS not in features:
            raise _foreign(self.path, number, f"the features {', '.join(sorted(features))}")
        kind, contents = features[INPUT_IDS]
        varints = b"".join(contents)
        if kind != INT64 or (varints and varints[-1] >= 0x80):
            raise _foreign(self.path, number, f"a {INPUT_IDS} that isn't a list of int64")
        return varints

    def _features(self, number: int) -> dict[str, tuple[int, list[bytes]]]:
        try:
            return parse_example(self._record(number))
        except ValueError as error:
            raise _foreign(self.path, number, str(error)) from error

    def _record(self, number: int) -> bytes:
        start, end = self.offsets[number : number + 2].tolist()
        data = self.data[start:end].tobytes()
        example = data[_FRAME_BYTES:-_CRC_BYTES]
        if data != frame(example):
            raise _damaged(self.path, number)
        return example


RecordLayout = FixedRecords | Int64Records
MappedRecords = MappedFixedRecords | MappedInt64Records


class ShardWriter:
    """Writes files of `shard_size` records; the last may be smaller.

    Args:
        first: Number of the first file.
    """

    def __init__(self, folder: Path, layout: RecordLayout, shard_size: int, first: int = 0) -> None:
        make_folder(folder)
        self.rows = 0
        self._folder = folder
        self._layout = layout
        self._shard_size = shard_size
        self._shards = first
        self._in_file = 0
        self._draft = folder / ".shard.draft"

    def write(self, rows: NDArray) -> None:
        """Appends sequences (n, row_length)."""
        while len(rows):
            chunk = rows[: self._shard_size - self._in_file]
            self._append(self._layout.pack(chunk))
            self._in_file += len(chunk)
            self.rows += len(chunk)
            rows = rows[len(chunk) :]
            if self._in_file == self._shard_size:
                self._finish_file()

    def close(self) -> None:
        """Finishes the last file."""
        if self._in_file:
            self._finish_file()

    def _append(self, data: bytes) -> None:
        try:
            with self._draft.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise ShardError(
                f"The shards can't be written to {self._folder}",
                expected=f"space for {len(data)} more bytes",
                received=error.strerror or str(error),
                fix="free disk space, or set ⟬output_dir⟭ to another folder",
                knows_cause=is_disk_full(error),
            ) from error

    def _finish_file(self) -> None:
        self._draft.rename(self._folder / file_name(self._shards, self._in_file))
        self._shards += 1
        self._in_file = 0


def detect_record_layout(path: Path) -> RecordLayout:
    """Detects a file's layout and ids' width, which isn't stored.

    Read as uint32, ids below 22 bits have small upper and varied lower halves.
    """
    _check_not_packed(path)
    kind, contents = _first_features(path).get(INPUT_IDS, (0, []))
    if kind == INT64:
        return Int64Records(int(decode_varint_lists([b"".join(contents)])[1][0]))
    if kind != BYTES or len(contents) != 1 or not contents[0] or len(contents[0]) % 2:
        raise _foreign(path, 0, f"a record without {INPUT_IDS}, or with another type of it")
    return _fixed_layout(path, len(contents[0]))


def find_padding(path: Path, records: int, layout: RecordLayout) -> int | None:
    """Returns the id that attention masks exclude at the ends of a file's records, if any.

    Raises:
        ShardError: Masks exclude other tokens, too.
    """
    if not isinstance(layout, Int64Records) or not records:
        return None
    mapped = layout.map(path, records)
    padding_ids: set[int] = set()
    for number in np.unique(np.linspace(0, records - 1, _SAMPLED_RECORDS).astype(int)).tolist():
        features = mapped._features(number)
        if ATTENTION_MASK not in features:
            return None
        contents = [b"".join(features[name][1]) for name in (ATTENTION_MASK, INPUT_IDS)]
        mask, ids = (decode_varint_lists([content])[0] for content in contents)
        real_tokens = int(np.count_nonzero(mask))
        excluded = set(ids[real_tokens:].tolist())
        if len(mask) != len(ids) or not mask[:real_tokens].all() or len(padding_ids | excluded) > 1:
            raise _other_mask(path, number)
        padding_ids |= excluded
    return int(padding_ids.pop()) if padding_ids else None


def walk(path: Path, records: int | None = None) -> Iterator[int]:
    """Yields record offsets, then the file's size.

    Args:
        records: If given, damaged frames are skipped; reading them fails later.
    """
    size = path.stat().st_size
    damaged = []
    with path.open("rb") as file:
        position, number = 0, 0
        while position < size:
            yield position
            head = file.read(_FRAME_BYTES)
            if len(head) < _FRAME_BYTES:
                raise _truncated(path, number, size, position + _FRAME_BYTES)
            length, crc = _FRAME.unpack(head)
            if masked_crc(head[:8]) == crc:
                position += _FRAME_BYTES + length + _CRC_BYTES
            else:
                damaged.append(number)
                position = _next_record(file, position, size) if records else 0
                if not position:
                    raise _damaged(path, number)
            if position > size:
                raise _truncated(path, number, size, position)
            file.seek(position)
            number += 1
    if damaged and number != records:
        raise _damaged(path, damaged[0])
    yield size


def _next_record(file: BinaryIO, start: int, size: int) -> int:
    """Finds the next record, or the file's end; else 0."""
    file.seek(start)
    data = file.read(_LONGEST_SEARCH_BYTES)
    for position in range(_FRAME_BYTES + _CRC_BYTES, len(data) - _FRAME_BYTES + 1):
        length, crc = _FRAME.unpack_from(data, position)
        fits = length <= size - start - position - _FRAME_BYTES - _CRC_BYTES
        if fits and masked_crc(data[position : position + 8]) == crc:
            return start + position
    return size if start + len(data) == size else 0


def frame(data: bytes) -> bytes:
    """Frames `data` as a record."""
    return b"".join((_frame_head(len(data)), data, masked_crc(data).to_bytes(4, "little")))


def _frame_head(length: int) -> bytes:
    head = length.to_bytes(8, "little")
    return head + masked_crc(head).to_bytes(4, "little")


def _first_features(path: Path) -> dict[str, tuple[int, list[bytes]]]:
    if not _size_of(path):
        raise _wrong_count(path, 1, "none")
    offsets = np.fromiter(islice(walk(path), 2), np.int64)
    mapped = MappedInt64Records(Int64Records(0), path, np.memmap(path, np.uint8, mode="r"), offsets)
    return mapped._features(0)


def _fixed_layout(path: Path, payload_bytes: int) -> FixedRecords:
    narrow = FixedRecords(payload_bytes // 2, 2)
    if payload_bytes % 4:
        return narrow
    records = min(_size_of(path) // narrow.dtype.itemsize, _CHECKED_AT_ONCE)
    if not records:  # mapping reports this
        return narrow
    data = np.memmap(path, narrow.dtype, mode="r", shape=(records,))
    halves = np.asarray(data["input_ids"]).reshape(-1, 2)
    is_wide = halves[:, 1].max() < 64 and halves[:, 0].max() >= 4096
    return FixedRecords(payload_bytes // 4, 4) if is_wide else narrow


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise MissingDataError(
            f"The shard {path} can't be read",
            expected="a TFRecord file",
            received=error.strerror or str(error),
            fix="restore the file, or build the shards again",
        ) from error


def _check_not_packed(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_GZIP_MAGIC)) != _GZIP_MAGIC:
            return
    name = path.name.removesuffix(".gz")
    raise ShardError(
        f"The shard {path} is compressed",
        expected="TFRecord files without compression, which are read in any order",
        fix=f"unpack all files of the folder, as with gunzip -c {path.name} > unpacked/{name}, and "
        "choose the folder of the unpacked ones",
    )


def _other_mask(path: Path, number: int) -> ShardError:
    return ShardError(
        f"Record {number} of {path} has an attention mask of another kind",
        expected=f"an {ATTENTION_MASK} that excludes only one token, which pads the end",
        received="a mask that excludes other tokens",
        fix="write the shards again with padding at the end, or without a mask",
    )


def _damaged(path: Path, number: int) -> ShardError:
    return ShardError(
        f"Record {number} of {path} is damaged",
        expected="data that matches its checksums",
        fix="restore the file from a copy, or build the shards again",
    )


def _truncated(path: Path, number: int, size: int, needed: int) -> ShardError:
    return ShardError(
        f"{path} ends inside record {number}",
        expected=f"at least {needed} bytes",
        received=f"{size} bytes",
        fix="restore the file from a copy, or build the shards again",
    )


def _wrong_count(path: Path, expected: int, received: str) -> ShardError:
    return ShardError(
        f"{path} has the wrong number of records",
        expected=f"{expected} records, as in its name",
        received=received,
        fix="restore the file from a copy, or build the shards again",
    )


def _wrong_length(path: Path, number: int, count: int, layout: Int64Records) -> ShardError:
    return ShardError(
        f"Record {number} of {path} differs in length from the first record",
        expected=f"{layout.row_length} values of {INPUT_IDS} in every record",
        received=str(count),
        fix="build the shards again with sequences of one length",
    )


def _foreign(path: Path, number: int, received: str) -> ShardError:
    return ShardError(
        f"Record {number} of {path} isn't a sequence of token ids",
        expected=f"a tf.train.Example with the feature {INPUT_IDS} as bytes or int64",
        received=received,
        fix="use shards that this program or the original prepare_tfrecord_shards.py wrote",
    )
