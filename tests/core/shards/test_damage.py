"""Tests that damage to shards is reported before a damaged sequence reaches a model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.errors import ConfigError, MissingDataError, ShardError, StudioError
from core.shards.build import build
from core.shards.read import Shards, open_shards
from core.shards.records import walk
from core.training.batches import TolerantSequences
from core.workspace.workspace import Workspace
from tests.core.shards.conftest import UNIGRAM
from tests.damage import damages_of, flips_of, leave

RECORD = 4
FILLER = 1
# Byte ranges of a record's parts, relative to its start or its end.
PARTS = {"length": (0, 8), "length's CRC": (8, 12), "payload": (12, -4), "payload's CRC": (-4, 0)}


@pytest.fixture(scope="module", params=["bytes", "int64"])
def built(
    request: pytest.FixtureRequest, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workspace:
    """A workspace with shards of 20 sequences of 16 tokens per file, in either layout."""
    root = tmp_path_factory.mktemp(f"damage-{request.param}")
    shutil.copytree(trained / "workspace", root / "workspace")
    workspace = Workspace(root / "workspace")
    corpus = CorpusConfig(source="files", path=str(trained / "text.txt"), validation_percent=20)
    config = ShardConfig(
        name="small", preset="custom", corpus=corpus, tokenizer=UNIGRAM, max_seq_length=16,
        shard_size=20, record_format=request.param,
    )  # fmt: skip
    build(config, workspace)
    return workspace


@pytest.fixture
def shards(built: Workspace) -> Iterator[Shards]:
    """The shards, whose files are restored after each test."""
    shards = open_shards("small", built)
    contents = {path: path.read_bytes() for path in shards.path.rglob("*") if path.is_file()}
    yield shards
    for path, content in contents.items():
        path.write_bytes(content)


def rows_of(shards: Shards) -> np.ndarray:
    return shards.train.take(np.arange(len(shards.train)))


def span_of(path: Path, part: str) -> tuple[int, int]:
    """Finds the byte range of a part of the record that the tests damage."""
    start, end = list(walk(path))[RECORD : RECORD + 2]
    first, last = PARTS[part]
    return (start if first >= 0 else end) + first, (start if last > 0 else end) + last


@pytest.mark.parametrize("part", PARTS)
def test_flipped_byte_is_reported_with_file_and_record(shards: Shards, part: str) -> None:
    path = shards.train.files[1].path
    for damaged in flips_of(path.read_bytes(), *span_of(path, part)):
        path.write_bytes(damaged)
        damaged_shards = open_shards(str(shards.path))
        with pytest.raises(ShardError, match=f"Record {RECORD} of {re.escape(str(path))} is"):
            rows_of(damaged_shards)


@pytest.mark.parametrize("part", PARTS)
def test_tolerant_reader_replaces_only_the_damaged_record(shards: Shards, part: str) -> None:
    path, first = shards.train.files[1].path, shards.train.files[0].records
    numbers = first + np.arange(RECORD - 2, RECORD + 3)
    expected = shards.train.take(numbers)
    expected[2] = FILLER
    for damaged in flips_of(path.read_bytes(), *span_of(path, part)):
        path.write_bytes(damaged)
        heard: list[tuple[int, str]] = []
        fresh = open_shards(str(shards.path)).train
        rows = TolerantSequences(fresh, FILLER, lambda *said: heard.append(said))  # noqa: B023
        for _ in range(2):
            assert np.array_equal(rows.take(numbers), expected)
        ((count, problem),) = heard
        assert count == 1
        assert f"Record {RECORD} of {path} is damaged" in problem


def test_damage_to_the_last_record_of_a_file_is_reported(shards: Shards) -> None:
    path = shards.train.files[1].path
    last = shards.train.files[1].records - 1
    start = list(walk(path))[last]
    for damaged in flips_of(path.read_bytes(), start, start + 12):
        path.write_bytes(damaged)
        rows = open_shards(str(shards.path)).train
        rows.take(np.arange(shards.train.files[0].records + last))
        with pytest.raises(ShardError, match=f"Record {last} of {re.escape(str(path))} is damaged"):
            rows_of(open_shards(str(shards.path)))


def test_truncated_or_missing_shard_is_reported_by_name_on_opening(shards: Shards) -> None:
    path = shards.train.files[1].path
    content = path.read_bytes()
    starts = list(walk(path))
    for cut in (starts[RECORD] + 3, starts[RECORD] + 20, starts[RECORD + 1] - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ShardError, match=f"{re.escape(str(path))} ends inside record {RECORD}"):
            open_shards(str(shards.path))
    for cut in (0, starts[RECORD]):
        path.write_bytes(content[:cut])
        with pytest.raises(ShardError, match=re.escape(str(path))):
            open_shards(str(shards.path))
    path.unlink()
    with pytest.raises(MissingDataError, match=f"{re.escape(str(path))} is missing") as raised:
        open_shards(str(shards.path))
    assert raised.value.reason == "data_missing"


def test_damage_to_any_file_other_than_the_records_is_reported_by_name(
    built: Workspace, shards: Shards
) -> None:
    beside = [path for path in shards.path.rglob("*.*") if path.suffix in (".json", ".npy")]
    names = {path.name for path in beside}
    assert names >= {"manifest.json", "token_counts.npy", "tokenizer.json", "tokenizer_config.json"}
    for path in beside:
        content = path.read_bytes()
        for damage, damaged in damages_of(content):
            leave(path, damaged)
            is_manifest = path.name == "manifest.json"
            lost = is_manifest and damaged is None
            with pytest.raises(ConfigError if lost else StudioError) as raised:
                open_shards("small", built)
            assert ("'small'" if lost else path.name) in str(raised.value), (path.name, damage)
            path.write_bytes(content)
