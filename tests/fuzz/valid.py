"""Valid files, made once per session, by the program's own writers if it has them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tempfile
import zipfile
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from core.artifacts.checkpoint import Checkpoints, EvalResults, TrainingState
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.models import hf
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord
from core.report.settings import settings_file
from core.shards.build import build
from core.store import RunRow
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.core.models.families import small_architecture
from tests.core.models.test_interop import flax_tree, pack, tensorflow_bert, write_tensorflow
from tests.texts import sentences, write_sentences

FAMILIES = ("roberta", "bert", "modernbert", "gpt2", "t5", "bart")
_ROWS = [
    {"id": number, "text": f'{text} "quoted", cell', "label": ("a", None)[number % 2]}
    for number, text in enumerate(sentences(12))
]


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files below a folder by their relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def texts() -> dict[str, bytes]:
    """Returns a valid file of each kind of corpus, by its suffix."""
    table = pa.Table.from_pylist(_ROWS)
    comma, tab, parquet = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pa.csv.write_csv(table, comma)
    pa.csv.write_csv(table, tab, pa.csv.WriteOptions(delimiter="\t"))
    pq.write_table(table, parquet, row_group_size=5)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _ROWS)
    return {
        "txt": ("\n".join(sentences(9)) + "\n\nÜnïcödé\r\nend\n").encode(),
        "jsonl": lines.encode(),
        "json": json.dumps(_ROWS).encode(),
        "csv": comma.getvalue(),
        "tsv": tab.getvalue(),
        "parquet": parquet.getvalue(),
    }


def packers() -> dict[str, Callable[[bytes], bytes]]:
    """Returns compression functions by suffix."""
    found = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zip": zipped}
    try:
        import zstandard
    except ImportError:
        return found
    return {**found, "zst": zstandard.ZstdCompressor().compress}


def zipped(data: bytes, name: str = "text.txt") -> bytes:
    """Returns a zip archive of one file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return content.getvalue()


class Artifacts:
    """A workspace with tokenizers and shards of both formats."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-valid-")
        self.root = Path(self._folder.name)
        self.workspace = Workspace(self.root / "workspace")
        text = write_sentences(self.root / "text.txt", 200)
        self._corpus = CorpusConfig(source="files", path=str(text), validation_percent=20)

    @cached_property
    def tokenizers(self) -> dict[str, dict[str, bytes]]:
        """The files of a tokenizer of each algorithm."""
        sizes = {"unigram": 90, "byte_level_bpe": 300, "wordpiece": 110}
        found = {}
        for algorithm, size in {**sizes, "sentencepiece_unigram": 190}.items():
            config = TokenizerConfig(
                name=algorithm.replace("_", "-"), preset="custom", corpus=self._corpus,
                algorithm=algorithm, vocab_size=size,
            )  # fmt: skip
            found[algorithm] = files_of(train(config, self.workspace).path)
        return found

    @lru_cache  # noqa: B019  The object lives as long as the session.
    def shards(self, record_format: str) -> dict[str, bytes]:
        """The files of shards in a format."""
        assert self.tokenizers
        config = ShardConfig(
            name=record_format, preset="custom", corpus=self._corpus, tokenizer="byte-level-bpe",
            max_seq_length=16, shard_size=150, record_format=record_format,
        )  # fmt: skip
        return files_of(build(config, self.workspace).path)


@lru_cache
def model(family: str) -> dict[str, bytes]:
    """Returns `config.json` and `model.safetensors` of a small model."""
    return _written(lambda folder: hf.write_weights(folder, _weights(family), _small(family)))


@lru_cache
def tensors(family: str) -> dict[str, Any]:
    """Returns the tensors of a small model by their PyTorch names."""
    from safetensors.numpy import load

    return dict(load(model(family)[hf.WEIGHTS_FILE]))


@lru_cache
def split_model() -> dict[str, bytes]:
    """Returns a model whose weights are in two files with an index."""
    from safetensors.numpy import save

    items = list(tensors("bert").items())
    parts = {
        "model-00001-of-00002.safetensors": dict(items[:9]),
        "model-00002-of-00002.safetensors": dict(items[9:]),
    }
    places = {name: file for file, part in parts.items() for name in part}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": places}).encode()
    return {
        "config.json": model("bert")["config.json"],
        "model.safetensors.index.json": index,
        **{file: save(part) for file, part in parts.items()},
    }


@lru_cache
def tensorflow_model() -> dict[str, bytes]:
    """Returns a model with a `tf_model.h5`."""
    files = _written(lambda folder: write_tensorflow(folder, tensorflow_bert(tensors("bert"))))
    return {"config.json": model("bert")["config.json"], **files}


@lru_cache
def flax_model() -> dict[str, bytes]:
    """Returns a model with a `flax_model.msgpack`."""
    content = pack(flax_tree(tensors("bert")))
    return {"config.json": model("bert")["config.json"], "flax_model.msgpack": content}


@lru_cache
def settings() -> dict[str, bytes]:
    """Returns exported settings, by stage."""
    common = {"after": [], "created": 1.0, "warnings": [], "results": {}, "state": "done"}
    configs = {
        "train": TrainConfig(shards="one", preset="classic"),
        "tokenizer": TokenizerConfig(),
        "shards": ShardConfig(tokenizer="one"),
    }
    return {
        stage: settings_file(
            RunRow(id=stage, stage=stage, config=config.model_dump(mode="json"), **common)
        ).encode()
        for stage, config in configs.items()
    }


@lru_cache
def checkpoints() -> dict[str, bytes]:
    """Returns the files of a run's folder with two checkpoints."""

    def write(folder: Path) -> None:
        place = Checkpoints(folder / "checkpoints")
        for step in (1, 2):
            evaluated = EvalResults(step, 5.0 - step, 0.1, 148.4, 6.0)
            state = TrainingState(
                step=step, next_batch=step, seconds=1.5, seed=0, evaluated=evaluated,
                config=TrainConfig(shards="one").model_dump(mode="json"),
                plan={"num_train_steps": 100}, fingerprints={"shards": "aa", "tokenizer": "bb"},
                engine="jax", pending_losses=[0.1],
            )  # fmt: skip
            arrays = {"slot": np.full((2, 3), step, np.float32), "seed": np.array([1], np.int64)}
            place.write(state, arrays, lambda draft: _put(draft, model("bert")))
        place.remember_skipped([[2, 3, 4]])

    return _written(write)


@lru_cache
def run() -> dict[str, bytes]:
    """Returns the files of a run's folder after its end."""

    def write(folder: Path) -> None:
        place = RunFolder(folder)
        config = TrainConfig(shards="one").model_dump(mode="json")
        place.write_record(RunRecord("train-1", "train", config, created=1.0, cwd="/tmp"))
        reporter = FolderReporter(folder, echo=False)
        reporter.event("started", process={"pid": 1, "started": 1.0, "boot_id": "x"})
        reporter.note("CPU, for there is nothing else")
        reporter.progress(1, 10, "steps", "training")
        reporter.metrics(1, {"loss": 5.0, "learning_rate": 1e-3})
        reporter.warn("look at this", alert="loss")
        reporter.event("resumed", step=1)
        reporter.event("checkpoint", step=2, path="checkpoints/step-00000002")
        made = {"kind": "model", "name": "one", "path": "/x/one", "fingerprint": "0"}
        artifact = {**made, "created": 1.0, "counts": {}, "inputs": {}}
        reporter.event("artifact", artifact=artifact)
        reporter.event("finished", state="done", reason="", results={"eval_loss": 5.0})
        reporter.close()
        place.write_exit(0, None)
        place.request_stop("save")
        (folder / "process.json").write_text(json.dumps({"run": {"pid": 1}}))
        (folder / "log.txt").write_text("step 1  loss 5\n")

    return _written(write)


def hub(files: dict[str, bytes]) -> dict[str, Any]:
    """Returns the responses of a Hub that has a repository with these files."""
    sha = "a" * 40
    info = {
        "_id": "0" * 24, "id": "owner/name", "sha": sha, "private": False, "gated": False,
        "siblings": [{"rfilename": name} for name in files], "disabled": False, "downloads": 0,
        "likes": 0, "tags": [], "lastModified": "2025-01-01T00:00:00.000Z",
    }  # fmt: skip
    tree = [
        {"type": "file", "oid": "b" * 40, "size": len(data), "path": name}
        for name, data in files.items()
    ]
    headers = {"ETag": f'"{"b" * 40}"', "X-Repo-Commit": sha}
    return {"info": info, "tree": tree, "paths": tree, "headers": {"all": {}, "files": headers}}


def _small(family: str) -> Any:
    return small_architecture(family)


def _weights(family: str) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        tie.path: generator.normal(size=tie.shape).astype(np.float32)
        for tie in hf.weight_mappings(_small(family))
    }


def _written(write: Callable[[Path], object]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="fuzz-valid-") as folder:
        write(Path(folder))
        return files_of(Path(folder))


def _put(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)
