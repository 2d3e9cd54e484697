"""Processes that finish parts write them to the bucket, where a stopped build finds them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.errors import ConfigError, CorpusError, ShardError
from core.records.events import Reporter, RunStopped
from core.shards.build import build
from core.shards.part_uploads import MARKER_FILE
from core.workspace.workspace import Workspace
from tests.core.runs.support import wait_for
from tests.core.shards.bucket import BucketServer
from tests.core.shards.conftest import BPE, write_damaged
from tests.core.shards.test_storage import PLACE, bucket, remote
from tests.texts import SCRIPTS, write_scripts, write_sentences

__all__ = ["bucket"]
_MARKER = f"{PLACE}/{MARKER_FILE}"
_BUILD = """
import sys
from core import ShardConfig, Workspace, build_shards
build_shards(ShardConfig.model_validate_json(sys.argv[1]), Workspace(sys.argv[2]))
"""


@pytest.fixture
def several(config: ShardConfig, tmp_path: Path) -> ShardConfig:
    """A build of several parts in this process."""
    text = write_sentences(tmp_path / "long.txt", 1500)
    changes = {"corpus": CorpusConfig(path=str(text)), "part_mb": 0.01, "workers": 1}
    return config.model_copy(update=changes)


def local(config: ShardConfig, workspace: Workspace) -> tuple[str, dict[str, bytes]]:
    artifact = build(config.model_copy(update={"name": "local"}), workspace)
    names = artifact.manifest.files
    return artifact.fingerprint, {name: (artifact.path / name).read_bytes() for name in names}


def uploaded(bucket: BucketServer) -> dict[str, bytes]:
    return {key.removeprefix(f"{PLACE}/"): content for key, content in bucket.files.items()}


def parts_in(bucket: BucketServer) -> dict[str, str]:
    """Returns when each shard file was written, by its key."""
    keys = [key for key in bucket.files if key.endswith(".tfrecord")]
    return {key: bucket.generation(key) for key in keys}


@pytest.mark.slow(5)
def test_parts_in_a_bucket_equal_local_shards(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace
) -> None:
    held: list[int] = []

    class Watching(Reporter):
        def progress(self, *arguments: object, **more: object) -> None:
            held.append(len(list(workspace.cache.rglob("*.tfrecord"))))

    artifact = build(remote(several), workspace, Watching())
    fingerprint, files = local(several, workspace)
    assert artifact.fingerprint == fingerprint
    found = uploaded(bucket)
    assert list(found)[-1] == "manifest.json"
    del found["manifest.json"]
    assert found == files and len(found) > 9
    # At most the sequences that the tails of all parts fill.
    assert held and max(held) <= 2


@pytest.mark.slow(5)
@pytest.mark.parametrize("script", [one for one in SCRIPTS if one != "english"])
def test_parts_of_other_scripts_in_a_bucket_equal_local_shards(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace, tmp_path: Path, script: str
) -> None:
    corpus = CorpusConfig(path=str(write_scripts(tmp_path, 60_000)[script]))
    settings = several.model_copy(update={"corpus": corpus, "tokenizer": BPE})
    artifact = build(remote(settings), workspace)
    fingerprint, files = local(settings, workspace)
    found = uploaded(bucket)
    del found["manifest.json"]
    assert artifact.fingerprint == fingerprint
    assert found == files and len(found) > 9


@pytest.mark.slow(4)
def test_stopped_build_goes_on_after_the_parts_in_the_bucket(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace
) -> None:
    class Stops(Reporter):
        def raise_if_stopped(self) -> None:
            if len(parts_in(bucket)) > 3:
                raise RunStopped("save")

    with pytest.raises(RunStopped):
        build(remote(several), workspace, Stops())
    before = parts_in(bucket)
    assert len(before) > 3 and _MARKER in bucket.files
    build(remote(several), workspace)
    after = parts_in(bucket)
    assert {key: after[key] for key in before} == before
    assert _MARKER not in bucket.files
    found = uploaded(bucket)
    del found["manifest.json"]
    assert found == local(several, workspace)[1]


@pytest.mark.slow(4)
def test_build_that_skips_parts_keeps_those_in_the_bucket(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    path = write_damaged(tmp_path / "damaged")
    corpus = CorpusConfig(path=str(path), drop_overlapping_validation=False)
    several = several.model_copy(update={"corpus": corpus})
    with pytest.raises(CorpusError, match=r"b\.txt is not UTF-8"):
        build(remote(several), workspace)
    before = parts_in(bucket)
    assert len(before) > 3
    artifact = build(remote(several).model_copy(update={"skip_failing_parts": True}), workspace)
    assert artifact.manifest.counts["parts_skipped"] == 1
    after = parts_in(bucket)
    assert {key: after[key] for key in before} == before


@pytest.mark.long
def test_refused_manifest_leaves_the_parts_for_the_next_build(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace
) -> None:
    bucket.refused.add(f"{PLACE}/manifest.json")
    with pytest.raises(ShardError, match="can't be written to gs://bucket/folder/shards"):
        build(remote(several), workspace)
    before = parts_in(bucket)
    assert f"{PLACE}/token_counts.npy" not in bucket.files and before
    bucket.refused.clear()
    build(remote(several), workspace)
    after = parts_in(bucket)
    kept = [key for key in before if after[key] == before[key]]
    assert len(kept) > 5 and f"{PLACE}/manifest.json" in bucket.files


@pytest.mark.long
def test_part_that_is_lost_in_the_bucket_is_built_again(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace
) -> None:
    bucket.refused.add(f"{PLACE}/manifest.json")
    with pytest.raises(ShardError):
        build(remote(several), workspace)
    bucket.refused.clear()
    lost, cut = list(parts_in(bucket))[:2]
    del bucket.files[lost]
    bucket.files[cut] = bucket.files[cut][:-1]
    build(remote(several), workspace)
    found = uploaded(bucket)
    del found["manifest.json"]
    assert found == local(several, workspace)[1]


@pytest.mark.slow(3)
def test_unfinished_shards_of_another_build_are_not_touched(
    bucket: BucketServer, several: ShardConfig, workspace: Workspace
) -> None:
    bucket.refused.add(f"{PLACE}/manifest.json")
    with pytest.raises(ShardError):
        build(remote(several), workspace)
    before = dict(bucket.files)
    for changes in ({"max_seq_length": 24}, {"part_mb": 64}):
        with pytest.raises(ConfigError, match="unfinished shards of another build") as raised:
            build(remote(several).model_copy(update=changes), workspace)
        assert raised.value.field == "output_dir"
    assert dict(bucket.files) == before


@pytest.mark.long
@pytest.mark.slow(30)
@pytest.mark.parametrize(
    ("script", "kills"),
    [("english", 1), *(pytest.param(one, 10, marks=pytest.mark.thorough) for one in SCRIPTS)],
)
def test_processes_write_to_the_bucket_themselves_and_a_killed_build_goes_on(
    bucket: BucketServer,
    several: ShardConfig,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kills: int,
) -> None:
    monkeypatch.setenv("FSSPEC_GS", '{"token": "anon"}')
    corpus = CorpusConfig(path=str(write_scripts(tmp_path, 200_000)[script]))
    several = several.model_copy(update={"corpus": corpus, "tokenizer": BPE})
    settings = remote(several).model_copy(update={"workers": 2, "name": "killed"})
    command = [sys.executable, "-c", _BUILD, settings.model_dump_json(), str(workspace.root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(1, kills + 1):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        wait_for(partial(_has_parts, bucket, number + 2, process), 120)
        time.sleep(random.uniform(0, 0.05))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert f"{PLACE}/manifest.json" not in bucket.files
    subprocess.run(command, env=environment, check=True)
    found = uploaded(bucket)
    del found["manifest.json"]
    assert found == local(several, workspace)[1]


def _has_parts(bucket: BucketServer, least: int, process: subprocess.Popen[bytes]) -> bool:
    return len(parts_in(bucket)) >= least or process.poll() is not None
