"""Tests of opening and reading shards, with and without a manifest."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.config.shards import ShardConfig
from core.errors import ConfigError, ShardError, StudioError
from core.shards import read
from core.shards.build import build
from core.shards.read import Shards, open_shards
from core.shards.records import Int64Records, ShardWriter
from core.workspace.manifests import write_manifest
from core.workspace.workspace import Workspace
from tests.core.shards.test_records import flip, write_with_tensorflow


@pytest.fixture(params=["bytes", "int64"])
def shards(request: pytest.FixtureRequest, config: ShardConfig, workspace: Workspace) -> Shards:
    build(config.model_copy(update={"record_format": request.param}), workspace)
    return open_shards("small", workspace)


def all_rows(shards: Shards) -> np.ndarray:
    return shards.train.take(np.arange(len(shards.train)))


def reopen(shards: Shards) -> Shards:
    return open_shards(str(shards.path))


def first_file(shards: Shards) -> Path:
    return shards.train.files[0].path


def test_sequences_are_read_in_any_order_across_files(shards: Shards) -> None:
    assert len(shards.train.files) > 3
    rows = all_rows(shards)
    indices = np.random.default_rng(0).integers(0, len(rows), 300)
    taken = shards.train.take(indices)
    assert taken.dtype == np.int32
    assert np.array_equal(taken, rows[indices])
    assert shards.train.take(np.array([], np.int64)).shape == (0, 16)


def test_index_out_of_range_is_refused(shards: Shards) -> None:
    for index in (-1, len(shards.train)):
        with pytest.raises(IndexError):
            shards.train.take(np.array([index]))


def test_name_folder_and_copy_give_the_same_shards(
    shards: Shards, workspace: Workspace, tmp_path: Path
) -> None:
    shutil.copytree(shards.path, tmp_path / "copy")
    for reference in ("small", str(shards.path), str(tmp_path / "copy")):
        other = open_shards(reference, workspace)
        assert other.fingerprint == shards.fingerprint
        assert np.array_equal(all_rows(other), all_rows(shards))


def test_folder_without_a_manifest_is_read(shards: Shards, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(shards.path, bare, ignore=shutil.ignore_patterns("manifest.json", "*.npy"))
    other = open_shards(str(bare))
    assert np.array_equal(all_rows(other), all_rows(shards))
    assert len(other.validation) == len(shards.validation)
    assert other.row_length == 16
    assert other.tokenizer_fingerprint == shards.tokenizer_fingerprint
    highest = other.vocab_size
    assert highest <= shards.vocab_size
    assert np.array_equal(other.token_counts, shards.token_counts[:highest])
    assert other.manifest.counts["train_rows"] == len(shards.train)


def test_padding_of_a_folder_without_a_manifest_follows_the_attention_mask(tmp_path: Path) -> None:
    rows = np.arange(1, 41).reshape(4, 10).astype(np.int32)
    rows[1:, 7:] = 0
    layouts = {"padded": Int64Records(10, 0), "full": Int64Records(10)}
    for name, layout in layouts.items():
        writer = ShardWriter(tmp_path / name / "train", layout, 10)
        writer.write(rows)
        writer.close()
    padded, full = (open_shards(str(tmp_path / name)) for name in layouts)
    assert (padded.line_by_line, full.line_by_line) == (True, False)
    assert (padded.token_counts[0], full.token_counts[0]) == (0, 9)
    assert padded.token_counts.sum() == 31
    (path,) = (tmp_path / "full" / "train").iterdir()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.raises(ShardError, match=r"is compressed.*gunzip"):
        open_shards(str(tmp_path / "full"))


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04" + bytes(100), b"PK\x05\x06" + bytes(18), b"\x80\x04]."]
)
def test_token_counts_of_another_format_are_refused(shards: Shards, content: bytes) -> None:
    fresh = reopen(shards)  # The sizes of files are compared when shards are opened.
    (shards.path / "token_counts.npy").write_bytes(content)
    with pytest.raises(ShardError, match="token counts"):
        _ = fresh.token_counts


def test_files_directly_in_the_folder_are_the_training_split(
    shards: Shards, tmp_path: Path
) -> None:
    shutil.copytree(shards.path / "train", tmp_path / "flat")
    other = open_shards(str(tmp_path / "flat"))
    assert np.array_equal(all_rows(other), all_rows(shards))
    assert len(other.validation) == 0
    assert other.tokenizer_folder is None
    assert other.tokenizer_fingerprint == ""


def test_fingerprint_of_a_folder_without_a_manifest_depends_on_its_content(
    shards: Shards, tmp_path: Path
) -> None:
    shutil.copytree(shards.path / "train", tmp_path / "flat")
    before = open_shards(str(tmp_path / "flat")).fingerprint
    assert open_shards(str(tmp_path / "flat")).fingerprint == before
    flip(tmp_path / "flat" / shards.train.files[1].path.name, 40)
    assert open_shards(str(tmp_path / "flat")).fingerprint != before


@pytest.mark.slow(4)
def test_shards_of_the_original_script_are_read(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 10_000, (25, 32))
    for split, part in (("train", rows[:20]), ("validation", rows[20:])):
        folder = tmp_path / split
        folder.mkdir()
        for shard, start in enumerate(range(0, len(part), 8)):
            chunk = part[start : start + 8]
            write_with_tensorflow(folder / f"dataset-{shard}-{len(chunk)}.tfrecord", chunk)
    shards = open_shards(str(tmp_path))
    assert np.array_equal(all_rows(shards), rows[:20])
    assert np.array_equal(shards.validation.take(np.arange(5)), rows[20:])
    assert shards.vocab_size == rows.max() + 1


def test_more_than_ten_files_are_read_in_numeric_order(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train", Int64Records(4), 2)
    rows = np.arange(4 * 25).reshape(25, 4)
    writer.write(rows)
    writer.close()
    assert np.array_equal(all_rows(open_shards(str(tmp_path))), rows)


def test_more_files_than_the_open_file_limit_are_read(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_max_open_files", lambda: 2)
    rows = all_rows(shards)
    indices = np.random.default_rng(0).permutation(len(rows))
    assert np.array_equal(reopen(shards).train.take(indices), rows[indices])


def test_damaged_record_is_reported_when_all_sequences_are_read(shards: Shards) -> None:
    path = shards.train.files[2].path
    flip(path, path.stat().st_size - 9)
    last = shards.train.files[2].records - 1
    with pytest.raises(ShardError, match=f"Record {last} of {path} is damaged"):
        list(reopen(shards).train.chunks())
    list(reopen(shards).validation.chunks())


def test_damaged_record_is_reported_on_reading(shards: Shards) -> None:
    path = shards.train.files[2].path
    flip(path, path.stat().st_size - 9)
    damaged = sum(file.records for file in shards.train.files[:3]) - 1
    last = shards.train.files[2].records - 1
    rows = reopen(shards).train
    rows.take(np.arange(damaged))
    with pytest.raises(ShardError, match=f"Record {last} of {path} is damaged"):
        rows.take(np.array([0, damaged, 3]))


def test_truncated_shard_is_reported_by_name_on_opening(shards: Shards) -> None:
    path = first_file(shards)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ShardError, match=f"{path} ends inside record 49"):
        reopen(shards)


def test_missing_shard_is_reported_by_name_on_opening(shards: Shards) -> None:
    first_file(shards).unlink()
    with pytest.raises(ShardError, match=f"The shard {first_file(shards)} is missing"):
        reopen(shards)


def test_record_count_that_differs_from_the_file_name_is_reported(
    shards: Shards, tmp_path: Path
) -> None:
    path = first_file(shards)
    (tmp_path / "flat").mkdir()
    other = tmp_path / "flat" / "dataset-0-51.tfrecord"
    shutil.copyfile(path, other)
    with pytest.raises(ShardError, match=rf"{other}.*Expected: 51 records.*Received: 50"):
        open_shards(str(tmp_path / "flat")).train.take(np.arange(51))


def test_damaged_manifest_is_reported(shards: Shards) -> None:
    path = shards.path / "manifest.json"
    write_manifest(shards.path, replace(shards.manifest, counts={}))
    with pytest.raises(ShardError, match="doesn't define the sequence layout"):
        reopen(shards)
    path.write_text("{", "utf-8")
    with pytest.raises(StudioError, match=r"manifest\.json can't be read"):
        reopen(shards)


def test_splits_with_different_sequence_lengths_are_refused(tmp_path: Path) -> None:
    for split, length in (("train", 8), ("validation", 16)):
        writer = ShardWriter(tmp_path / split, Int64Records(length), 10)
        writer.write(np.ones((3, length), np.int64))
        writer.close()
    with pytest.raises(ShardError, match="have different layouts"):
        open_shards(str(tmp_path))


def test_missing_shards_are_reported(workspace: Workspace, tmp_path: Path) -> None:
    for reference in ("nothing", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"The shards .* were not found"):
            open_shards(reference, workspace)
    with pytest.raises(ConfigError, match="No shards were named"):
        open_shards("", workspace)


def test_artifact_of_another_kind_is_refused(workspace: Workspace) -> None:
    folder = workspace.folder("tokenizer") / "bpe"
    with pytest.raises(ConfigError, match="has the wrong kind"):
        open_shards(str(folder), workspace)
