"""Tests of the TFRecord format: compatibility with TensorFlow, and reports of damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.errors import ShardError
from core.shards.protobuf import decode_varint_lists, encode_varints
from core.shards.records import (
    FixedRecords,
    Int64Records,
    RecordLayout,
    ShardWriter,
    detect_record_layout,
    frame,
    walk,
)
from core.storage.shard_names import file_name, parse_file_name

LAYOUTS = [FixedRecords(8, 2), FixedRecords(8, 4), Int64Records(8)]
SIZES = (0, 1, 127, 128, 16_383, 16_384, 65_535)


def some_rows(count: int, length: int = 8, highest: int = 60_000) -> np.ndarray:
    rows = np.random.default_rng(count).integers(0, highest, (count, length))
    rows[0, : min(length, len(SIZES))] = SIZES[:length]
    return rows


def write(folder: Path, layout: RecordLayout, rows: np.ndarray, shard_size: int = 100) -> Path:
    writer = ShardWriter(folder, layout, shard_size)
    writer.write(rows)
    writer.close()
    return folder / file_name(0, min(len(rows), shard_size))


def everything(path: Path, layout: RecordLayout, count: int) -> np.ndarray:
    return layout.map(path, count).read(np.arange(count))


@pytest.fixture(
    params=LAYOUTS, ids=lambda layout: f"{layout.name}{getattr(layout, 'id_bytes', '')}"
)
def layout(request: pytest.FixtureRequest) -> RecordLayout:
    return request.param


def test_records_round_trip(layout: RecordLayout, tmp_path: Path) -> None:
    rows = some_rows(30)
    path = write(tmp_path, layout, rows)
    numbers = np.array([29, 0, 7, 7])
    assert np.array_equal(layout.map(path, 30).read(numbers), rows[numbers])


def test_record_of_128_tokens_takes_298_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, FixedRecords(128, 2), some_rows(10, 128))
    assert path.stat().st_size == 10 * 298


def test_tensorflow_reads_fixed_width_records(tmp_path: Path) -> None:
    import tensorflow as tf

    for id_bytes, dtype in ((2, tf.uint16), (4, tf.int32)):
        rows = some_rows(30)
        path = write(tmp_path / str(id_bytes), FixedRecords(8, id_bytes), rows)
        features = {"input_ids": tf.io.FixedLenFeature([], tf.string)}
        parsed = [
            tf.io.decode_raw(tf.io.parse_single_example(record, features)["input_ids"], dtype)
            for record in tf.data.TFRecordDataset(str(path))
        ]
        assert np.array_equal(np.stack([row.numpy() for row in parsed]), rows)


def test_tensorflow_reads_int64_records_as_the_original_script_does(tmp_path: Path) -> None:
    import tensorflow as tf

    rows = some_rows(30)
    path = write(tmp_path, Int64Records(8), rows)
    features = {
        "input_ids": tf.io.FixedLenFeature(dtype=tf.int64, shape=(8,)),
        "attention_mask": tf.io.FixedLenFeature(dtype=tf.int64, shape=(8,)),
    }
    parsed = [
        tf.io.parse_single_example(record, features)
        for record in tf.data.TFRecordDataset(str(path))
    ]
    assert np.array_equal(np.stack([row["input_ids"].numpy() for row in parsed]), rows)
    assert all(row["attention_mask"].numpy().all() for row in parsed)


def test_tensorflow_verifies_our_checksums(layout: RecordLayout, tmp_path: Path) -> None:
    import tensorflow as tf

    path = write(tmp_path, layout, some_rows(3))
    flip(path, path.stat().st_size - 10)
    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(str(path)))


def write_with_tensorflow(path: Path, rows: np.ndarray, masks: np.ndarray | None = None) -> None:
    """Writes sequences as prepare_tfrecord_shards.py does."""
    import tensorflow as tf

    masks = np.ones_like(rows) if masks is None else masks
    with tf.io.TFRecordWriter(str(path)) as writer:
        for ids, mask in zip(rows.tolist(), masks.tolist(), strict=True):
            feature = {
                "input_ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
                "attention_mask": tf.train.Feature(int64_list=tf.train.Int64List(value=mask)),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def test_records_written_by_tensorflow_are_read(tmp_path: Path) -> None:
    rows = some_rows(30)
    masks = (np.arange(8) < 5).astype(np.int64) * np.ones_like(rows)
    path = tmp_path / file_name(0, 30)
    write_with_tensorflow(path, rows, masks)
    assert detect_record_layout(path) == Int64Records(8)
    mapped = Int64Records(8).map(path, 30)
    numbers = np.array([3, 29, 0])
    assert np.array_equal(mapped.read(numbers), rows[numbers])


def test_our_records_are_byte_identical_to_those_of_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    rows = some_rows(5).astype("<u2")
    path = write(tmp_path, FixedRecords(8, 2), rows)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for row in rows:
            value = tf.train.BytesList(value=[row.tobytes()])
            feature = {"input_ids": tf.train.Feature(bytes_list=value)}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    assert path.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_record_of_another_length_is_reported(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / file_name(0, 3)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for ids in ([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3]):
            value = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
            features = tf.train.Features(feature={"input_ids": value})
            writer.write(tf.train.Example(features=features).SerializeToString())
    with pytest.raises(ShardError, match=rf"Record 2 of {path}.*4 values.*Received: 3"):
        everything(path, detect_record_layout(path), 3)


def test_record_layout_is_detected(layout: RecordLayout, tmp_path: Path) -> None:
    wide = getattr(layout, "id_bytes", 2) == 4
    rows = some_rows(30, highest=250_000 if wide else 60_000)
    assert detect_record_layout(write(tmp_path, layout, rows)) == layout


def test_small_vocabulary_is_not_detected_as_four_byte_ids(tmp_path: Path) -> None:
    path = write(tmp_path, FixedRecords(8, 2), np.random.default_rng(0).integers(0, 40, (9, 8)))
    assert detect_record_layout(path) == FixedRecords(8, 2)


@pytest.mark.parametrize("place", ["header", "payload", "checksum"])
def test_flipped_byte_is_reported_with_file_and_record(
    layout: RecordLayout, tmp_path: Path, place: str
) -> None:
    path = write(tmp_path, layout, some_rows(9))
    starts = list(walk(path))
    start, end = starts[4], starts[5]
    ranges = {
        "header": (start, start + 12),
        "payload": (start + 12, end - 4),
        "checksum": (end - 4, end),
    }
    for offset in range(*ranges[place]):
        flip(path, offset)
        with pytest.raises(ShardError, match=rf"Record 4 of {path} is damaged|{path} ends inside"):
            everything(path, layout, 9)
        flip(path, offset)
    everything(path, layout, 9)


def test_intact_records_beside_a_damaged_one_are_read(tmp_path: Path) -> None:
    rows = some_rows(9)
    layout = FixedRecords(8, 2)
    path = write(tmp_path, layout, rows)
    flip(path, 4 * layout.dtype.itemsize + 30)
    numbers = np.array([0, 3, 5, 8])
    assert np.array_equal(layout.map(path, 9).read(numbers), rows[numbers])


def test_truncated_file_is_reported_with_the_record_it_ends_in(
    layout: RecordLayout, tmp_path: Path
) -> None:
    path = write(tmp_path, layout, some_rows(9))
    data = path.read_bytes()
    starts = list(walk(path))
    for cut in (starts[6] + 1, starts[6] + 13, starts[7] - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(ShardError, match=rf"{path} ends inside record 6"):
            layout.map(path, 9)


def test_file_with_missing_records_is_reported(layout: RecordLayout, tmp_path: Path) -> None:
    path = write(tmp_path, layout, some_rows(9))
    path.write_bytes(path.read_bytes()[: list(walk(path))[6]])
    with pytest.raises(ShardError, match=r"Expected: 9 records.*Received: 6"):
        layout.map(path, 9)


def test_files_are_split_at_the_shard_size(layout: RecordLayout, tmp_path: Path) -> None:
    rows = some_rows(25)
    write(tmp_path, layout, rows, shard_size=10)
    names = [file_name(0, 10), file_name(1, 10), file_name(2, 5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    parts = [everything(tmp_path / name, layout, parse_file_name(name)[1]) for name in names]
    assert np.array_equal(np.concatenate(parts), rows)


def test_file_in_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / file_name(0, 1)
    path.write_bytes(b"not a TFRecord file at all, just text")
    with pytest.raises(ShardError, match=str(path)):
        detect_record_layout(path)
    path.write_bytes(b"")
    with pytest.raises(ShardError, match=str(path)):
        detect_record_layout(path)


def test_records_without_input_ids_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / file_name(0, 1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for data in (b"\x00\x01 no example", b""):
            writer.write(data)
    with pytest.raises(ShardError, match="isn't a sequence of token ids"):
        detect_record_layout(path)


def test_empty_first_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / file_name(0, 1)
    empty_bytes = b"\n\x13\n\x11\n\tinput_ids\x12\x04\n\x02\n\x00"
    path.write_bytes(frame(empty_bytes))
    with pytest.raises(ShardError, match="isn't a sequence of token ids"):
        detect_record_layout(path)


def test_varints_round_trip() -> None:
    values = np.array([0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 2**31 - 1])
    data, sizes = encode_varints(values)
    assert sizes.tolist() == [1, 1, 1, 2, 2, 3, 3, 4, 5]
    decoded, counts = decode_varint_lists([data, b"", data[:3]])
    assert decoded.tolist() == [*values.tolist(), 0, 1, 127]
    assert counts.tolist() == [9, 0, 3]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)
