"""Tests of shards in remote storage: a local server for gcsfs, and fsspec's memory filesystem."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.errors import ConfigError, ShardError
from core.records.events import Reporter, RunStopped
from core.shards.build import build
from core.shards.read import open_shards
from core.storage.files import RemoteFolder, fetch_shards
from core.workspace.workspace import Workspace
from tests.core.shards.bucket import BucketServer
from tests.targets.s3_server import BUCKET as S3_BUCKET
from tests.targets.s3_server import s3_server, use_s3

PLACE = "folder/shards"
ADDRESS = f"gs://bucket/{PLACE}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    # The detection of zonal buckets bypasses the emulator and contacts Google.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    gcsfs = pytest.importorskip(
        "gcsfs", reason="gcsfs is missing: pip install -r requirements-cloud.txt"
    )
    import fsspec

    server = BucketServer()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    for protocol in ("gs", "gcs"):
        monkeypatch.setitem(fsspec.config.conf, protocol, {"token": "anon"})
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield server
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.close()
    assert server.unknown_requests == []


def remote(config: ShardConfig, address: str = ADDRESS) -> ShardConfig:
    return config.model_copy(update={"output_dir": address})


def contents(workspace: Workspace) -> set[str]:
    """Lists the workspace's files, except cached counts and finished parts."""
    return {
        str(path.relative_to(workspace.root))
        for path in workspace.root.rglob("*")
        if path.is_file() and not {"corpora-2", "parts"} & set(path.parts)
    }


@pytest.mark.slow(3)
def test_shards_written_to_a_bucket_are_read_back(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    artifact = build(remote(config), workspace)
    local = build(config.model_copy(update={"name": "local"}), workspace)
    names = {key.removeprefix(f"{PLACE}/") for key in bucket.files}
    assert names == {*local.manifest.files, "manifest.json"}
    assert artifact.manifest.location == ADDRESS
    assert artifact.manifest.counts == local.manifest.counts
    assert artifact.fingerprint == local.fingerprint
    assert [path.name for path in artifact.path.iterdir()] == ["manifest.json"]
    for reference in (ADDRESS, "small", str(artifact.path)):
        shards = open_shards(reference, workspace)
        indices = np.arange(len(shards.train))
        expected = open_shards("local", workspace)
        assert np.array_equal(shards.train.take(indices), expected.train.take(indices))
        assert np.array_equal(shards.token_counts, expected.token_counts)
        assert shards.fingerprint == artifact.fingerprint
        assert shards.tokenizer_folder


def test_manifest_is_written_last(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    build(remote(config), workspace)
    assert list(bucket.files)[-1] == f"{PLACE}/manifest.json"


def test_cached_copy_is_reused_without_requests(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    build(remote(config), workspace)
    open_shards("small", workspace)
    bucket.requests.clear()
    assert len(open_shards("small", workspace).train)
    assert bucket.requests == []


def test_large_file_is_uploaded_in_parts(bucket: BucketServer, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(6_000_000)
    (tmp_path / "large").write_bytes(content)
    RemoteFolder(ADDRESS).upload(tmp_path / "large", "large")
    assert bucket.uploads and bucket.files[f"{PLACE}/large"] == content


def test_refused_upload_leaves_no_files(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    before = contents(workspace)
    bucket.refused.add(f"{PLACE}/manifest.json")
    with pytest.raises(ShardError, match="can't be written to gs://bucket/folder/shards"):
        build(remote(config), workspace)
    assert bucket.files == {}
    assert contents(workspace) == before
    assert not list(workspace.cache.glob("upload*"))


def test_read_only_bucket_is_refused_before_the_corpus_is_read(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    bucket.read_only = True
    corpus = CorpusConfig(source="files", path="/nowhere.txt")
    with pytest.raises(ShardError, match="gs://bucket/folder/shards can't be written to"):
        build(remote(config).model_copy(update={"corpus": corpus}), workspace)


def test_uploaded_file_is_verified_against_the_original(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    bucket.spoiled.add(f"{PLACE}/token_counts.npy")
    with pytest.raises(ShardError, match=r"token_counts\.npy differs from the uploaded file"):
        build(remote(config), workspace)
    assert bucket.files == {}


def test_stop_during_the_upload_leaves_no_files(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    class StopsWhenUploading(Reporter):
        def raise_if_stopped(self) -> None:
            if len(bucket.files) > 1:
                raise RunStopped("abort")

    with pytest.raises(RunStopped):
        build(remote(config), workspace, StopsWhenUploading())
    assert bucket.files == {}
    assert not list(workspace.folder("shards").glob("*"))


def test_non_empty_destination_is_refused(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    bucket.files[f"{PLACE}/notes.txt"] = b"mine"
    with pytest.raises(ConfigError, match="isn't empty") as caught:
        build(remote(config), workspace)
    assert caught.value.field == "output_dir"
    assert bucket.files == {f"{PLACE}/notes.txt": b"mine"}


def test_damaged_file_in_the_bucket_is_reported_by_name(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    build(remote(config), workspace)
    key = next(key for key in bucket.files if "/train/" in key)
    bucket.files[key] = bucket.files[key][:-1] + b"?"
    with pytest.raises(ShardError, match=f"gs://bucket/{key} doesn't match its manifest"):
        open_shards(ADDRESS, workspace)
    bucket.files[key] = bucket.files[key][:-1]
    with pytest.raises(ShardError, match=f"gs://bucket/{key} doesn't match its manifest"):
        open_shards(ADDRESS, workspace)


@pytest.mark.slow(4)
def test_replaced_shards_are_reported(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    build(remote(config), workspace)
    bucket.files.clear()
    build(remote(config).model_copy(update={"name": "new", "max_seq_length": 8}), workspace)
    with pytest.raises(ShardError, match="have changed"):
        open_shards("small", workspace)


def test_manifest_that_names_a_file_outside_the_cache_is_refused(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    build(remote(config), workspace)
    manifest = json.loads(bucket.files[f"{PLACE}/manifest.json"])
    manifest["files"]["../../../escaped"] = {"bytes": 1, "sha256": ""}
    bucket.files[f"{PLACE}/manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(ShardError, match="manifest at gs://bucket/folder/shards can't be used"):
        open_shards(ADDRESS, workspace)


def test_shards_without_a_manifest_are_fetched(
    bucket: BucketServer, config: ShardConfig, workspace: Workspace
) -> None:
    artifact = build(config.model_copy(update={"record_format": "int64"}), workspace)
    for path in (artifact.path / "train").iterdir():
        bucket.files[f"original/train/{path.name}"] = path.read_bytes()
    bucket.files["original/notes.txt"] = b"something else"
    shards = open_shards("gs://bucket/original", workspace)
    expected = open_shards("small", workspace)
    indices = np.arange(len(expected.train))
    assert np.array_equal(shards.train.take(indices), expected.train.take(indices))
    assert len(shards.validation) == 0


def test_rewritten_shards_without_a_manifest_are_fetched_again(
    config: ShardConfig, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    find, versions = MemoryFileSystem.find, {"mine": "1", "theirs": "1"}

    def with_versions(self: MemoryFileSystem, path: str, **options: Any) -> dict[str, Any]:
        return {
            name: {**info, "blob_id": versions[name.split("/")[1]]}
            for name, info in find(self, path, **options).items()
        }

    monkeypatch.setattr(MemoryFileSystem, "find", with_versions)
    artifact = build(config.model_copy(update={"record_format": "int64"}), workspace)
    (path,) = (artifact.path / "train").glob("*-0-*")
    first = path.read_bytes()
    other = first[::-1]  # Same length: a store without versions could not tell.
    store = MemoryFileSystem()
    for owner, content in (("mine", first), ("theirs", other)):
        store.pipe(f"/{owner}/rows/train/{path.name}", content)

    def fetched(owner: str) -> bytes:
        folder = fetch_shards(f"memory://{owner}/rows", workspace, Reporter())
        return (folder / "train" / path.name).read_bytes()

    assert (fetched("mine"), fetched("theirs")) == (first, other)
    store.pipe(f"/mine/rows/train/{path.name}", other)
    assert fetched("mine") == first  # The version is unchanged.
    versions["mine"] = "2"
    assert fetched("mine") == other


def test_address_without_shards_is_reported(bucket: BucketServer, workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="There are no shards at gs://bucket/nothing"):
        open_shards("gs://bucket/nothing", workspace)


@pytest.mark.slow(10)
def test_shards_in_s3_equal_local_shards(
    config: ShardConfig, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("moto", "s3fs"):
        pytest.importorskip(package, reason="pip install -r requirements-dev.txt")
    local = build(config.model_copy(update={"name": "local"}), workspace)
    with s3_server() as url:
        use_s3(url, monkeypatch)
        address = f"s3://{S3_BUCKET}/{PLACE}"
        there = build(remote(config, address), workspace)
        assert there.fingerprint == local.fingerprint
        shards = open_shards(address, workspace)
        indices = np.arange(len(shards.train))
        expected = open_shards("local", workspace)
        assert np.array_equal(shards.train.take(indices), expected.train.take(indices))
        other = config.model_copy(update={"max_seq_length": 24})
        with pytest.raises(ConfigError, match="isn't empty"):
            build(remote(other, address), workspace)


def test_memory_addresses_are_supported(config: ShardConfig, workspace: Workspace) -> None:
    artifact = build(remote(config, "memory://shards/one"), workspace)
    shards = open_shards("memory://shards/one", workspace)
    assert shards.fingerprint == artifact.fingerprint
    assert sum(map(len, shards.train.chunks())) == len(shards.train)


@pytest.mark.parametrize("is_spoiled", [False, True])
def test_etag_that_is_no_md5_is_not_used_for_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_spoiled: bool
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    info, put_file = MemoryFileSystem.info, MemoryFileSystem.put_file

    def tagged(self: MemoryFileSystem, path: str, **options: Any) -> dict[str, Any]:
        return {**info(self, path, **options), "ETag": '"0123456789abcdef0123456789abcdef"'}

    def put_spoiled(self: MemoryFileSystem, local: str, path: str, **options: Any) -> None:
        put_file(self, local, path, **options)
        self.pipe_file(path, b"?" * len(self.cat_file(path)))

    monkeypatch.setattr(MemoryFileSystem, "info", tagged)
    if is_spoiled:
        monkeypatch.setattr(MemoryFileSystem, "put_file", put_spoiled)
    (tmp_path / "rows").write_bytes(b"content")
    with (
        pytest.raises(ShardError, match="differs from the uploaded file")
        if is_spoiled
        else nullcontext()
    ):
        RemoteFolder("memory://encrypted").upload(tmp_path / "rows", "rows")


def test_two_threads_can_fetch_the_same_shards(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    name = "dataset-0-1.tfrecord"
    MemoryFileSystem().pipe_file("/fetched/twice/train/" + name, b"content")
    get_file, both = MemoryFileSystem.get_file, threading.Barrier(2, timeout=10)
    reading = threading.Lock()

    def get_together(self: MemoryFileSystem, *places: str, **named: object) -> None:
        both.wait()
        with reading:  # In-memory files share one read position.
            get_file(self, *places, **named)
        both.wait()

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_together)
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(fetch_shards, "memory://fetched/twice", workspace, Reporter())
            for _ in range(2)
        ]
        folders = {future.result() for future in waiting}
    (folder,) = folders
    assert (folder / "train" / name).read_bytes() == b"content"
    assert [path.name for path in (folder / "train").iterdir()] == [name]


def test_unknown_address_scheme_is_refused(config: ShardConfig, workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="unknown address type") as caught:
        build(remote(config, "nowhere://bucket/folder"), workspace)
    assert caught.value.field == "output_dir"


@pytest.mark.parametrize("size", ["many", float("inf"), [], {"a": 1}])
def test_listing_with_an_invalid_size_is_reported(
    monkeypatch: pytest.MonkeyPatch, workspace: Workspace, size: Any
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    entry = {"name": "/listed/train/dataset-0-1.tfrecord", "type": "file", "size": size}
    listing = {"/listed/train/dataset-0-1.tfrecord": entry}
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: listing)
    with pytest.raises(ShardError, match="can't be listed"):
        fetch_shards("memory://listed", workspace, Reporter())


def test_folder_in_place_of_a_file_is_reported(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem().makedirs("/odd/manifest.json")
    with pytest.raises(ShardError, match="can't be downloaded"):
        RemoteFolder("memory://odd").read("manifest.json", most_bytes=100)
