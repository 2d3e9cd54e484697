"""Weights in every format and dtype give every caller the same results.

The results are compared with those of a float32 checkpoint of the same rounded numbers, so they are
equal; another test checks that the rounded numbers are close to the original ones. HDF5 as
TensorFlow writes it has no bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from core.architecture.architecture import Architecture
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.families import find_family
from core.models import hf
from core.records.events import Reporter
from core.shards.build import build
from core.tokenizer.loading import load
from core.tokenizer.training import train as train_tokenizer
from tests.checkpoints import write_model_of
from tests.core.models.callers import CALLERS, SHARDS
from tests.core.models.families import FAMILIES, small_architecture
from tests.core.models.test_interop import pack, write_in_two
from tests.core.training.test_trainer import make_inputs
from tests.engines import run_on

Arrays = dict[str, NDArray[Any]]

DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float64": np.float64,
}
_EPSILONS = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "float64": 0.0}
_FILLS = ("bert", "roberta", "modernbert", "bart")
_WRITES = ("gpt2", "t5", "bart")
_FAMILIES_OF = {
    "fill-mask": _FILLS,
    "compiled fill-mask": _FILLS,
    "perplexity": ("bert", "roberta", "modernbert", "gpt2"),
    "generate": _WRITES,
}
CODE = "from tests.core.models.callers import main; main()"


def write_safetensors(folder: Path, tensors: Arrays) -> None:
    save_file(tensors, folder / "model.safetensors")


def write_sharded_safetensors(folder: Path, tensors: Arrays) -> None:
    items = list(tensors.items())
    parts = [dict(items[::2]), dict(items[1::2])]
    write_in_two(folder, "model.safetensors", parts, lambda path, part: save_file(part, path))


def write_hdf5(folder: Path, tensors: Arrays) -> None:
    names = {f"tf/{name.replace('.', '/')}:0": value for name, value in tensors.items()}
    with h5py.File(folder / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = ["main"]
        group = file.create_group("main")
        group.attrs["weight_names"] = [name.encode() for name in names]
        for name, value in names.items():
            group[name] = value


def write_msgpack(folder: Path, tensors: Arrays) -> None:
    tree: dict[str, Any] = {}
    for name, value in tensors.items():
        *scopes, last = name.split(".")
        place = tree
        for scope in scopes:
            place = place.setdefault(scope, {})
        place[last] = value
    (folder / "flax_model.msgpack").write_bytes(pack(tree))


FORMATS: dict[str, Callable[[Path, Arrays], None]] = {
    "safetensors": write_safetensors,
    "sharded": write_sharded_safetensors,
    "h5": write_hdf5,
    "msgpack": write_msgpack,
}
COMBINATIONS = [
    (form, dtype)
    for form in FORMATS
    for dtype in DTYPES
    if (form, dtype) != ("h5", "bfloat16")
]  # fmt: skip
ALL = [
    (caller, family, form, dtype)
    for family in FAMILIES
    for form, dtype in COMBINATIONS
    if dtype != "float64"
    for caller in CALLERS
    if family in _FAMILIES_OF.get(caller, FAMILIES)
    # Slow callers run once for each family, format and dtype.
    if caller in _FAMILIES_OF
    or family == "roberta"
    or (form, dtype) in (("safetensors", "bfloat16"), ("msgpack", "float16"))
]
FEW = [
    ("fill-mask", "bert", "safetensors", "bfloat16"),
    ("fill-mask", "modernbert", "sharded", "float16"),
    ("fill-mask", "roberta", "msgpack", "float32"),
    ("compiled fill-mask", "roberta", "h5", "float16"),
    ("perplexity", "bert", "sharded", "bfloat16"),
    ("generate", "gpt2", "safetensors", "bfloat16"),
    ("generate", "t5", "msgpack", "bfloat16"),
    ("demo", "bert", "safetensors", "bfloat16"),
    ("train", "bert", "sharded", "bfloat16"),
    ("evaluate-only", "gpt2", "msgpack", "bfloat16"),
]


class Models:
    """Checkpoints of all families, formats and dtypes, created on demand in the workspace
    `root`.
    """

    def __init__(self, root: Path) -> None:
        self.workspace = make_inputs(root)
        self.folder = cache(self._folder)
        self._shards = cache(self._build_shards)
        self._tensors = cache(self._make_tensors)

    def _folder(self, family: str, form: str, dtype: str, rounded_to: str = "") -> Path:
        """A checkpoint whose numbers are rounded to one dtype and stored in another."""
        tokenizer = self._shards(family)
        folder = self.workspace.root / "made" / f"{family}-{form}-{dtype}-{rounded_to}"
        write_model_of(folder, load(tokenizer, self.workspace), self._architecture(family))
        (folder / "model.safetensors").unlink()
        tensors = {
            name: value.astype(DTYPES[rounded_to or dtype]).astype(DTYPES[dtype])
            for name, value in self._tensors(family).items()
        }
        FORMATS[form](folder, tensors)
        return folder

    def _make_tensors(self, family: str) -> Arrays:
        folder = self.workspace.root / "made" / family
        tokenizer = load(self._shards(family), self.workspace)
        write_model_of(folder, tokenizer, self._architecture(family))
        return load_file(folder / "model.safetensors")

    def _architecture(self, family: str) -> Architecture:
        tokenizer = load(self._shards(family), self.workspace)
        pad = tokenizer.pad_id or 0
        halves = {"num_decoder_layers": 1, "decoder_start_token_id": tokenizer.cls_id}
        more = {"t5": {**halves, "d_kv": 8, "decoder_start_token_id": pad}, "bart": halves}
        return find_family(family).architecture(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=40 + pad + 1,
            pad_token_id=pad,
            bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
            **more.get(family, {}),
        )

    def _build_shards(self, family: str) -> str:
        """Makes a family's tokenizer and shards, and returns the tokenizer's name."""
        if family not in SHARDS:
            return "words"
        corpus = CorpusConfig(source="files", path=str(self.workspace.root / "text.txt"))
        tokenizer, values = "words", {"objective": "denoising", "max_seq_length": 32}
        if family == "t5":
            tokenizer, values = "spans", {"objective": "span_corruption", "max_seq_length": 24}
            spans = TokenizerConfig(
                name="spans", preset="custom", algorithm="sentencepiece_unigram", corpus=corpus,
                vocab_size=80, sentinels=8,
            )  # fmt: skip
            train_tokenizer(spans, self.workspace, Reporter())
        config = ShardConfig(
            name=SHARDS[family], preset="custom", corpus=corpus, tokenizer=tokenizer, **values
        )
        build(config, self.workspace, Reporter())
        return tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("callers"))


def compare(models: Models, cases: list[tuple[str, str, str, str]]) -> None:
    """Compares each caller's result with its result for the same numbers in float32."""
    tasks: list[tuple[str, str]] = []
    for caller, family, form, dtype in cases:
        plain = models.folder(family, "safetensors", "float32", dtype)
        tasks += [(caller, str(models.folder(family, form, dtype))), (caller, str(plain))]
    unique = list(dict.fromkeys(tasks))
    path = models.workspace.root / "tasks.json"
    path.write_text(json.dumps(unique))
    answers = dict(zip(unique, run_on("jax", CODE, models.workspace.root, path), strict=True))
    for case, (caller, folder), wanted in zip(cases, tasks[::2], tasks[1::2], strict=True):
        found = answers[caller, folder]
        assert found, case
        if isinstance(found, float):
            assert found == pytest.approx(answers[wanted], abs=1e-5), case
        else:
            assert found == answers[wanted], case


@pytest.mark.slow(12)
def test_selected_callers_give_equal_results_for_every_format_and_dtype(models: Models) -> None:
    compare(models, FEW)


@pytest.mark.thorough
@pytest.mark.slow(20)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_callers_give_equal_results_for_every_format_and_dtype(
    models: Models, family: str, form: str
) -> None:
    compare(models, [case for case in ALL if case[1:3] == (family, form)])


@pytest.mark.parametrize(("form", "dtype"), COMBINATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_format_and_dtype_is_read(tmp_path: Path, family: str, form: str, dtype: str) -> None:
    architecture, generator = small_architecture(family), np.random.default_rng(0)
    weights = {
        tie.path: generator.normal(size=tie.shape).astype(np.float32)
        for tie in hf.weight_mappings(architecture)
    }
    hf.write_weights(tmp_path, weights, architecture)
    path = tmp_path / "model.safetensors"
    tensors = {name: one.astype(DTYPES[dtype]) for name, one in load_file(path).items()}
    path.unlink()
    FORMATS[form](tmp_path, tensors)
    found = hf.read_weights(tmp_path)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name].dtype == np.float32
        assert found[name].flags.writeable and found[name].flags.c_contiguous
        assert np.allclose(found[name], value, rtol=_EPSILONS[dtype], atol=1e-7), name
