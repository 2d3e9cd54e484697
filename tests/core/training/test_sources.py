"""The shards of a mixture are opened together, or refused with a reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.__main__ import build_parser
from core.cli.fields import stage_values
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, MissingDataError, ShardError, StudioError
from core.records.events import Reporter
from core.shards.build import build
from core.targets.blobs import collect_inputs
from core.training.inputs import TrainingInputs, open_inputs
from core.training.mixture import MixtureOrder
from core.training.planner import suggest
from core.training.sources import (
    check_epochs,
    check_unchanged,
    describe_epochs,
    find_most_sequences,
)
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.texts import write_sentences


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_inputs(tmp_path_factory.mktemp("sources"))
    text = write_sentences(workspace.root / "more.txt", 300, seed=1)
    corpus = CorpusConfig(source="files", path=str(text))
    for name, changes in (
        ("more", {}),
        ("foreign", {"tokenizer": "others"}),
        ("longer", {"max_seq_length": 24}),
        ("lines", {"line_by_line": True}),
    ):
        values = {"tokenizer": "words", "max_seq_length": 16, **changes}
        config = ShardConfig(name=name, preset="custom", corpus=corpus, **values)
        build(config, workspace, Reporter())
    return workspace


def opened(workspace: Workspace, mixture: str, **values: Any) -> TrainingInputs:
    config = TrainConfig(**{"preset": "custom", "mixture": mixture, **values})
    return open_inputs(config, workspace)


def test_sources_have_their_shares_and_the_epoch_ends_with_the_first(workspace: Workspace) -> None:
    inputs = opened(workspace, "rows=3 more=1")
    rows, more = inputs.sources.all
    assert [one.name for one in inputs.sources.all] == ["rows", "more"]
    assert (rows.share, more.share) == (49_152, 16_384)
    sizes = len(rows.train_rows), len(more.train_rows)
    ends = sizes[0] / 0.75, sizes[1] / 0.25
    assert inputs.epoch_length == int(min(ends))
    longer = opened(workspace, "rows=3 more=1", mixture_stop="all_exhausted")
    assert longer.epoch_length == pytest.approx(max(ends), rel=0.05)
    assert max(longer.sources.epochs(longer.epoch_length).values()) > 1
    for seed in range(20):
        order = longer.sources.order(seed)
        assert isinstance(order, MixtureOrder)
        assert min(order.epochs(longer.epoch_length)) >= 1


def test_sizes_decide_without_weights_and_temperature_evens_them_out(workspace: Workspace) -> None:
    by_size = opened(workspace, "rows more").sources.all
    sizes = [len(one.train_rows) for one in by_size]
    assert by_size[1].share / 65_536 == pytest.approx(sizes[1] / sum(sizes), abs=1e-4)
    even = opened(workspace, "rows more", mixture_temperature=100).sources.all
    assert even[1].share / 65_536 == pytest.approx(0.5, abs=0.01)


def test_token_counts_follow_the_shares(workspace: Workspace) -> None:
    inputs = opened(workspace, "rows=1 more=1")
    alone = {
        one: open_inputs(TrainConfig(preset="custom", shards=one), workspace).token_counts
        for one in ("rows", "more")
    }
    expected = sum(counts / counts.sum() for counts in alone.values()) / 2
    counts = inputs.token_counts
    assert np.allclose(counts / counts.sum(), expected, atol=2e-3)


def test_validation_limit_is_divided_in_proportion(workspace: Workspace) -> None:
    whole = [len(one.validation_rows) for one in opened(workspace, "rows=1 more=1").sources.all]
    limited = opened(workspace, "rows=1 more=1", max_eval_examples=4).sources.all
    found = [len(one.validation_rows) for one in limited]
    assert min(found) >= 1 and sum(found) <= 5 and found[0] >= found[1] and sum(whole) > 5


@pytest.mark.parametrize(
    ("mixture", "problem"),
    [
        ("rows=1 nowhere=1", "'nowhere' were not found"),
        ("rows=1 foreign=1", "differ in the tokenizer"),
        ("rows=1 longer=1", "differ in the sequence length"),
        ("rows=1 lines=1", "differ in the line_by_line"),
        ("rows=1000000 more=1", "more in the mixture rounds to zero"),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    workspace: Workspace, mixture: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        opened(workspace, mixture)


def test_source_that_is_read_too_often_is_refused(workspace: Workspace) -> None:
    inputs = opened(workspace, "rows=1 more=1")
    config = TrainConfig(preset="custom", mixture="rows=1 more=1", max_source_epochs=2)
    more = len(inputs.sources.all[1].train_rows)
    check_epochs(config, inputs.sources, 4 * more - 8)
    with pytest.raises(ConfigError, match="read the source more too often") as raised:
        check_epochs(config, inputs.sources, 4 * more + 40)
    assert "of more" in raised.value.received and "at most 2 epochs" in raised.value.expected
    assert describe_epochs({"a": 2.5, "b": 0.25}) == "2.5 epochs of a, 0.25 of b"


@pytest.mark.parametrize("mixture", ["rows more", "rows=1 more=1", "rows=5 more=2"])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_as_many_epochs_as_the_limit_are_allowed(
    workspace: Workspace, mixture: str, limit: int
) -> None:
    inputs = opened(workspace, mixture)
    config = TrainConfig(preset="custom", mixture=mixture, max_source_epochs=limit)
    most = find_most_sequences(config, inputs.sources)
    assert most is not None and most >= limit * inputs.epoch_length
    check_epochs(config, inputs.sources, most)
    with pytest.raises(ConfigError, match="too often"):
        check_epochs(config, inputs.sources, most + 1)


@pytest.mark.parametrize("how", ["changed", "missing", "foreign"])
def test_changed_part_of_a_source_is_an_error_before_training(
    workspace: Workspace, tmp_path: Path, how: str
) -> None:
    """The file keeps its size and time, and every record its checksum."""
    copy = tmp_path / "copy"
    shutil.copytree(workspace.folder("shards") / "more", copy)
    mixture = f"rows=1 {copy}=1"
    check_unchanged(opened(workspace, mixture).sources, workspace)
    path = next((copy / "train").iterdir())
    if how == "missing":
        path.unlink()
    elif how == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    else:
        manifest = json.loads((copy / "manifest.json").read_text())
        records = path.read_bytes()
        half = len(records) // 2 // (size := len(records) // int(path.stem.split("-")[-1])) * size
        path.write_bytes(records[half:] + records[:half])
        assert manifest["files"][f"train/{path.name}"]["bytes"] == path.stat().st_size
    expected = MissingDataError if how == "missing" else ShardError
    with pytest.raises(expected) as raised:
        check_unchanged(opened(workspace, mixture).sources, workspace)
    assert path.name in str(raised.value)


def test_sources_of_equal_names_are_told_apart(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.folder("shards") / "more", tmp_path / "rows")
    inputs = opened(workspace, f"rows=1 {tmp_path}/rows=1")
    assert [one.name for one in inputs.sources.all] == ["rows", "rows-2"]
    assert len(set(inputs.fingerprints)) == 4


def test_same_shards_twice_would_be_read_too_often(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.folder("shards") / "more", tmp_path / "copy")
    with pytest.raises(ConfigError, match="more and copy of the mixture are the same shards"):
        opened(workspace, f"rows=1 more=1 {tmp_path}/copy=1")


def test_fingerprint_depends_on_sources_and_shares(workspace: Workspace) -> None:
    found = {
        opened(workspace, mixture).fingerprints["shards"]
        for mixture in ("rows=1 more=1", "rows=2 more=1", "more=1 rows=1", "rows=2 more=2")
    }
    assert len(found) == 3


def test_command_line_takes_several_sources_and_replaces_shards_of_a_file(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"shards": "rows"}))
    words = ["train", "--mixture", "rows=3", "more=1.5", "--config", str(file)]
    options = build_parser().parse_args(words)
    config = TrainConfig.parse(stage_values(options, TrainConfig))
    assert (config.mixture, config.shards) == ("rows=3 more=1.5", "")


def test_all_sources_travel_to_another_machine(workspace: Workspace, tmp_path: Path) -> None:
    config = TrainConfig(preset="custom", mixture="rows=3 more=1")
    found = collect_inputs(config, workspace)
    assert [(one.field, one.name) for one in found.inputs] == [
        ("mixture", "rows"),
        ("mixture", "more"),
    ]
    assert found.values["mixture"] == "rows=3.0 more=1.0"
    shutil.copytree(workspace.folder("shards") / "more", tmp_path / "bare")
    (tmp_path / "bare" / "manifest.json").unlink()
    bare = TrainConfig(preset="custom", mixture=f"rows=3 {tmp_path}/bare=1")
    with pytest.raises(StudioError, match=r"can't be (sent|mixed)"):
        collect_inputs(bare, workspace)


def test_mixture_of_one_source_is_checked_and_single_shards_are_not(
    workspace: Workspace, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(workspace.folder("shards") / "more", copy)
    alone = TrainConfig(preset="custom", shards=str(copy), max_source_epochs=0.5)
    mixed = TrainConfig(preset="custom", mixture=f"{copy}=1", max_source_epochs=0.5)
    sources = [open_inputs(config, workspace).sources for config in (alone, mixed)]
    path = next((copy / "train").iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    check_epochs(alone, sources[0], sources[0].epoch_length)
    check_unchanged(sources[0], workspace)
    with pytest.raises(ConfigError, match="read the source copy too often") as raised:
        check_epochs(mixed, sources[1], sources[1].epoch_length)
    assert "weight" not in raised.value.fix
    with pytest.raises(ShardError, match="The source copy of the mixture has changed"):
        check_unchanged(sources[1], workspace)


@pytest.mark.parametrize("name", ["train/*", "token_counts.npy", "tokenizer/tokenizer.json"])
def test_changed_file_with_its_old_time_is_noticed(
    workspace: Workspace, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(workspace.folder("shards") / "more", copy)
    sources = opened(workspace, f"rows=1 {copy}=1").sources
    check_unchanged(sources, workspace)
    path = next(copy.glob(name))
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ShardError, match="The source copy of the mixture has changed"):
        check_unchanged(sources, workspace)


def test_suggested_steps_keep_the_limit_of_epochs(workspace: Workspace) -> None:
    config = TrainConfig(preset="custom", mixture="rows=1 more=1", max_source_epochs=2)
    inputs = open_inputs(config, workspace)
    found = suggest(config, {"tiny": inputs}, tokens=10**8)
    batch = found.values["per_replica_batch_size"]
    steps = found.values["num_train_steps"]
    check_epochs(config, inputs.sources, steps * batch)
    with pytest.raises(ConfigError):
        check_epochs(config, inputs.sources, (steps + 1) * batch)
    assert any("max_source_epochs" in remark for remark in found.remarks)
    strict = config.model_copy(update={"max_source_epochs": 1e-4})
    with pytest.raises(ConfigError, match="One training step reads a source") as raised:
        suggest(strict, {"tiny": inputs}, tokens=10**8)
    assert raised.value.field == "max_source_epochs"
