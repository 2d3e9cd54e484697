"""Disk usage, and the dependencies between artifacts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.artifacts.evaluations import fingerprint_of_weights
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.errors import RunError
from core.records.folder import RunFolder, RunRecord
from core.runs.disk_usage import (
    delete_artifact,
    disk_usage_bytes,
    list_artifact_usage,
    measure_disk_usage,
    runs_that_need,
)
from core.store import RunRow, Store
from core.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "words") as draft:
        (draft.folder / "tokenizer.json").write_bytes(b"x" * 10_000)
        draft.fingerprint = "1" * 16
    with workspace.new_artifact("shards", "rows") as draft:
        (draft.folder / "rows.tfrecord").write_bytes(b"x" * 200_000)
        draft.inputs = {"tokenizer": "1" * 16, "corpus": "c1"}
    return workspace


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


def test_artifacts_list_their_inputs_and_their_products(workspace: Workspace, store: Store) -> None:
    shards, tokenizer = list_artifact_usage(workspace, store)
    assert [one.name for one in tokenizer.turned_into] == ["rows"]
    assert [one.name for one in shards.made_from] == ["words"]
    assert (tokenizer.made_from, shards.turned_into, tokenizer.needed_by) == ([], [], [])
    assert shards.bytes > 200_000 > tokenizer.bytes > 10_000


def test_evaluation_is_listed_with_its_model(workspace: Workspace, store: Store) -> None:
    with workspace.new_artifact("model", "writer") as draft:
        (draft.folder / "config.json").write_bytes(b"{}")
        (draft.folder / "model.safetensors").write_bytes(b"weights")
    with workspace.new_artifact("evaluation", "writer-blimp") as draft:
        weights = fingerprint_of_weights(workspace.folder("model") / "writer")
        draft.inputs = {"model": weights}
    found = {one.artifact.name: one for one in list_artifact_usage(workspace, store)}
    assert [one.name for one in found["writer-blimp"].made_from] == ["writer"]
    assert [one.name for one in found["writer"].turned_into] == ["writer-blimp"]


def test_queued_run_is_listed_as_needing_its_artifact(workspace: Workspace, store: Store) -> None:
    config = ShardConfig(tokenizer="words").model_dump(mode="json")
    row = RunRow(
        id="waiting", stage="shards", name="", state="queued", config=config, after=[],
        created=1.0, warnings=[], results={},
    )  # fmt: skip
    store.add_run(row)
    shards, tokenizer = list_artifact_usage(workspace, store)
    assert [one.id for one in tokenizer.needed_by] == ["waiting"]
    assert shards.needed_by == []


def test_queued_run_needs_the_corpus_that_it_reads(workspace: Workspace, store: Store) -> None:
    with workspace.new_artifact("corpus", "texts") as draft:
        (draft.folder / "report.json").write_bytes(b"{}")
    config = ShardConfig(corpus=CorpusConfig(corpus_name="texts")).model_dump(mode="json")
    row = RunRow(
        id="waiting", stage="shards", name="", state="queued", config=config, after=[],
        created=1.0, warnings=[], results={},
    )  # fmt: skip
    store.add_run(row)
    [corpus] = workspace.list("corpus")
    with pytest.raises(RunError, match="needed by waiting"):
        delete_artifact(workspace, store, corpus)


def test_queued_cleaning_needs_the_corpora_that_it_compares_with(
    workspace: Workspace, store: Store
) -> None:
    for name in ("web", "books", "other"):
        with workspace.new_artifact("corpus", name) as draft:
            (draft.folder / "report.json").write_bytes(b"{}")
    row = RunRow(
        id="waiting", stage="clean", name="", state="queued",
        config=CleanConfig(against="web, books").model_dump(mode="json"), after=[],
        created=1.0, warnings=[], results={},
    )  # fmt: skip
    store.add_run(row)
    needed = [one.artifact.name for one in list_artifact_usage(workspace, store) if one.needed_by]
    assert sorted(needed) == ["books", "web"]


@pytest.mark.parametrize("named", ["shards/rows", "{}/shards/rows/", "link/shards/rows"])
def test_run_that_names_an_artifact_by_path_needs_it(
    tmp_path: Path, named: str, workspace: Workspace, store: Store
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    config = {"shards": named.format(tmp_path)}
    RunFolder.of(workspace, "waiting").write_record(
        RunRecord(id="waiting", stage="train", config=config, cwd=str(tmp_path))
    )
    row = RunRow(
        id="waiting", stage="train", name="", state="queued", config=config, after=[],
        created=1.0, warnings=[], results={},
    )  # fmt: skip
    store.add_run(row)
    [shards] = workspace.list("shards")
    assert [one.id for one in runs_that_need(workspace, store, shards)] == ["waiting"]
    with pytest.raises(RunError, match="can't be deleted"):
        delete_artifact(workspace, store, shards)
    assert shards.path.is_dir()


def test_hard_links_count_once(workspace: Workspace, store: Store) -> None:
    before = measure_disk_usage(workspace)
    source = workspace.folder("shards") / "rows" / "rows.tfrecord"
    workspace.runs.mkdir()
    os.link(source, workspace.runs / "copy")
    os.link(source, source.with_name("again"))
    after = measure_disk_usage(workspace)
    assert after.parts == before.parts
    assert after.total_bytes >= 200_000
    assert after.free_bytes > 0
    assert disk_usage_bytes(workspace.folder("tokenizer")) == after.parts["tokenizer"]


def test_missing_workspace_uses_no_space(tmp_path: Path) -> None:
    assert measure_disk_usage(Workspace(tmp_path / "nowhere")).total_bytes == 0
