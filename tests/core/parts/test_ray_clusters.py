"""Clusters of simulated nodes: the same bytes, lost nodes, other versions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core import CorpusConfig, ShardConfig, TokenizerConfig, Workspace
from core.corpus.cleaning import parts
from core.corpus.cleaning.stage import clean
from core.errors import ConfigError, RunError
from core.parts.ray_cluster import open_cluster
from core.parts.workers import open_workers
from core.records.events import Reporter, RunStopped, StopMode
from core.shards.build import build
from core.tokenizer.training import train
from tests.core.corpus.cleaning.support import clean_config, write_documents
from tests.core.corpus.cleaning.test_stage import ALL_STEPS, mixed_documents, outcome
from tests.core.parts import tasks
from tests.core.parts.ray_support import other_package, simulated_cluster
from tests.ports import free_port
from tests.texts import write_scripts

ROOT = Path(__file__).parents[3]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def client_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Any]:
    with simulated_cluster(3, client_port) as started:
        yield started


class Killing(Reporter):
    """Kills a node when it hears of some progress."""

    def __init__(self, cluster: Any, heard: str) -> None:
        self.cluster = cluster
        self.node = next(iter(cluster.worker_nodes))
        self.heard = heard

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        if self.node and self.heard in f"{note} {done} {unit}":
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


class Stopping(Reporter):
    """Asks for a stop once a file exists."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def stop_requested(self) -> StopMode | None:
        return "save" if self.marker.exists() else None


@needs_ray
@pytest.mark.long
@pytest.mark.slow(60)
def test_one_and_three_nodes_give_the_same_bytes_and_one_may_die(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 60_000)
    text = write_documents(tmp_path / "text.jsonl", mixed_documents())
    workspace = Workspace(tmp_path / "workspace")
    alone = clean(clean_config(text, **ALL_STEPS), workspace)
    assert len(list((alone.path / "train").iterdir())) > 3
    reporter = Killing(cluster, "filtering, part 2 ")
    config = {**ALL_STEPS, "cluster": "ray://auto", "workers": None}
    three = clean(clean_config(text, name="three", **config), workspace, reporter)
    assert reporter.node is None and len(cluster.worker_nodes) == 2
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    one = clean(clean_config(text, name="one", **config), workspace)
    assert outcome(alone) == outcome(three) == outcome(one)
    assert alone.fingerprint == three.fingerprint == one.fingerprint
    for _ in range(2):
        cluster.add_node(num_cpus=1)


@needs_ray
@pytest.mark.long
@pytest.mark.slow(30)
def test_tokenizer_and_shards_of_a_cluster_that_loses_a_node_are_the_same(
    cluster: Any, tmp_path: Path
) -> None:
    write_scripts(tmp_path, 80_000)
    workspace = Workspace(tmp_path / "workspace")
    corpus = CorpusConfig(path=str(tmp_path / "*.txt"))
    words = {"corpus": corpus, "algorithm": "byte_level_bpe", "vocab_size": 400, "part_mb": 0.03}
    here = train(TokenizerConfig(name="W", **words), workspace)
    there = train(TokenizerConfig(name="V", cluster="ray://auto", **words), workspace)
    assert here.fingerprint == there.fingerprint
    values = {"corpus": corpus, "tokenizer": "W", "preset": "custom", "max_seq_length": 64,
              "part_mb": 0.03, "workers": 1}  # fmt: skip
    alone = build(ShardConfig(**values, name="alone"), workspace)
    config = ShardConfig(**{**values, "workers": None}, name="three", cluster="ray://auto")
    reporter = Killing(cluster, "B 2 parts")
    three = build(config, workspace, reporter)
    assert reporter.node is None
    assert len(list((alone.path / "train").iterdir())) > 3
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    one = build(config.model_copy(update={"name": "one"}), workspace)
    assert outcome(alone) == outcome(three) == outcome(one)
    assert alone.fingerprint == three.fingerprint == one.fingerprint
    for _ in range(2):
        cluster.add_node(num_cpus=1)


@needs_ray
@pytest.mark.long
def test_ray_client_maps_tasks_and_cancels_them(
    cluster: Any, client_port: int, tmp_path: Path
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    reporter = Stopping(paths[0].with_suffix(".started"))
    with (
        pytest.raises(RunStopped),
        open_workers(None, f"ray://127.0.0.1:{client_port}", reporter) as run,
    ):
        assert list(run(tasks.square, range(9))) == [number * number for number in range(9)]
        with pytest.raises(Exception, match="It failed") as failed:
            list(run(tasks.fail, [1]))
        assert failed.value.to_dict()["field"] == "path"  # type: ignore[attr-defined]
        list(run(tasks.write_later, paths))
    assert not paths[0].exists()


@needs_ray
@pytest.mark.long
def test_node_with_another_package_version_is_reported(cluster: Any, tmp_path: Path) -> None:
    path = other_package(tmp_path, "ftfy", "0.0.1")
    node = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(path)})
    with (
        pytest.raises(RunError, match="has other versions") as caught,
        open_workers(None, "ray://auto", Reporter()),
    ):
        pass
    assert caught.value.expected.startswith("ftfy 6.") and caught.value.received == "ftfy 0.0.1"
    cluster.remove_node(node)


@needs_ray
@pytest.mark.long
def test_cluster_with_another_python_is_reported(cluster: Any) -> None:
    from ray._raylet import GcsClient

    records = GcsClient(address=cluster.address)
    key, space = b"CLUSTER_METADATA", b"cluster"
    data = records.internal_kv_get(key, namespace=space)
    other = json.dumps({**json.loads(data), "python_version": "3.9.1"}).encode()
    records.internal_kv_put(key, other, overwrite=True, namespace=space)
    try:
        with (
            pytest.raises(RunError, match="another version of Python or Ray") as caught,
            open_workers(None, "ray://auto", Reporter()),
        ):
            pass
    finally:
        records.internal_kv_put(key, data, overwrite=True, namespace=space)
    assert "3.9.1" in caught.value.received and f"{sys.version_info[0]}." in caught.value.received


@needs_ray
@pytest.mark.parametrize("address", ["ray://127.0.0.1", "ray://127.0.0.1:1"])
def test_unreachable_cluster_is_reported(address: str) -> None:
    with (
        pytest.raises(RunError, match=f"The cluster {address} can't be used") as caught,
        open_cluster(address, None, Reporter()),
    ):
        pass
    assert "refused" in caught.value.received and caught.value.field == "cluster"


@needs_ray
def test_submitted_runs_connect_to_no_private_address() -> None:
    code = (
        "from core.records.events import Reporter\n"
        "from core.network.outbound import distrust_callers\n"
        "from core.parts.workers import open_workers\n"
        "distrust_callers()\n"
        "with open_workers(None, 'ray://127.0.0.1:1', Reporter()): pass\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Connections to 127.0.0.1:1 are not allowed" in ended.stderr


@pytest.mark.parametrize("address", ["dask", "ray:", "ray://", "ray://user@host", "http://host"])
def test_addresses_of_clusters_are_checked(address: str) -> None:
    with pytest.raises(ConfigError, match="cluster has an invalid value") as caught:
        clean_config(Path("text.jsonl"), cluster=address)
    assert caught.value.expected == "ray, ray://auto or ray://host:port"
