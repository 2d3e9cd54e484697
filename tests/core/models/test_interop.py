"""Files in TensorFlow's and Flax's formats; `test_transformers4.py` has those of transformers 4."""

from __future__ import annotations

import json
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from core.errors import CheckpointError
from core.models import hf
from core.models.interop import open_foreign
from tests.core.models.families import small_architecture

Tree = dict[str, Any]


def make(folder: Path, family: str) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Writes a config, and returns random weights by our paths and by PyTorch's names."""
    architecture, generator = small_architecture(family), np.random.default_rng(0)
    weights = {
        tie.path: generator.normal(size=tie.shape).astype(np.float32)
        for tie in hf.weight_mappings(architecture)
    }
    hf.write_weights(folder, weights, architecture)
    tensors = load_file(folder / hf.WEIGHTS_FILE)
    (folder / hf.WEIGHTS_FILE).unlink()
    return weights, tensors


def read_foreign(path: Path) -> dict[str, NDArray]:
    """Reads a file, or an index's files, whole."""
    with ExitStack() as stack:
        return {tensor.name: tensor.read() for tensor in open_foreign(path, stack)}


def write_tensorflow(folder: Path, names: dict[str, NDArray]) -> None:
    with h5py.File(folder / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = ["main"]
        group = file.create_group("main")
        group.attrs["weight_names"] = [name.encode() for name in names]
        for name, value in names.items():
            group[name] = value


def tensorflow_bert(tensors: dict[str, NDArray]) -> dict[str, NDArray]:
    found = {}
    for name, value in tensors.items():
        *scopes, last = name.split(".")
        norm = "LayerNorm" in name
        if last == "weight":
            last = "gamma" if norm else "embeddings" if "embeddings" in name else "kernel"
        elif norm:
            last = "beta"
        path = "/".join(scopes).replace("layer/", "layer_._").replace("cls/", "mlm___cls/")
        found[f"tf_bert/{path}/{last}:0"] = value.T if last == "kernel" else value
    return found


def tensorflow_gpt2(tensors: dict[str, NDArray]) -> dict[str, NDArray]:
    found = {}
    for name, value in tensors.items():
        *scopes, last = name.split(".")
        conv = scopes[-1].startswith("c_")
        if not conv:
            table = scopes[-1] in ("wte", "wpe")
            last = {"weight": "embeddings" if table else "gamma", "bias": "beta"}[last]
        path = "/".join(scopes).replace("h/", "h_._")
        found[f"tfgpt2/{path}/{last}:0"] = value[None] if conv and last == "bias" else value
    return found


def flax_tree(tensors: dict[str, NDArray]) -> Tree:
    tree: Tree = {}
    for name, value in tensors.items():
        *scopes, last = name.split(".")
        place = tree
        for scope in scopes:
            place = place.setdefault(scope, {})
        table = scopes[-1].endswith("embeddings") or scopes[-1] in ("wte", "wpe")
        if last == "weight" and value.ndim == 1:
            last = "scale"
        elif last == "weight":
            last, value = ("embedding", value) if table else ("kernel", value.T)
        place[last] = value
    return tree


def pack(value: Any) -> bytes:
    """Writes MessagePack as Flax does."""
    if isinstance(value, dict):
        head = (
            bytes([0x80 | len(value)]) if len(value) < 16 else struct.pack(">BH", 0xDE, len(value))
        )
        return head + b"".join(pack(key) + pack(item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else struct.pack(">BH", 0xCD, value)
    if isinstance(value, str):
        text = value.encode()
        return (bytes([0xA0 | len(text)]) if len(text) < 32 else bytes([0xD9, len(text)])) + text
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    array = np.ascontiguousarray(value)
    content = pack((array.shape, array.dtype.name, array.tobytes()))
    return struct.pack(">BIB", 0xC9, len(content), 1) + content


def check(folder: Path, weights: dict[str, NDArray]) -> None:
    found = hf.read_weights(folder)
    assert found.keys() == weights.keys()
    for path, value in weights.items():
        assert np.array_equal(found[path], value), path


@pytest.mark.parametrize(
    ("family", "name_all"), [("bert", tensorflow_bert), ("gpt2", tensorflow_gpt2)]
)
def test_weights_saved_by_tensorflow_are_read(tmp_path: Path, family: str, name_all: Any) -> None:
    weights, tensors = make(tmp_path, family)
    write_tensorflow(tmp_path, name_all(tensors))
    check(tmp_path, weights)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_weights_saved_by_flax_are_read(tmp_path: Path, family: str) -> None:
    weights, tensors = make(tmp_path, family)
    (tmp_path / "flax_model.msgpack").write_bytes(pack(flax_tree(tensors)))
    check(tmp_path, weights)


def write_in_two(folder: Path, name: str, parts: list[dict[str, NDArray]], write: Any) -> None:
    """Writes two files and their index, as transformers 4 does for large models."""
    stem, suffix = name.split(".")
    files = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    for file, part in zip(files, parts, strict=True):
        write(folder / file, part)
    places = {key: file for file, part in zip(files, parts, strict=True) for key in part}
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": places}))


def write_datasets(path: Path, part: dict[str, NDArray]) -> None:
    """Writes one of several files: weights without their root, and their names in two
    attributes.
    """
    names = [name.split("/", 1)[1] for name in part]
    with h5py.File(path, "w") as file:
        for name, value in zip(names, part.values(), strict=True):
            file[name] = value
        file.attrs["layer_names0"] = [name.encode() for name in names[:3]]
        file.attrs["layer_names1"] = [name.encode() for name in names[3:]]


@pytest.mark.parametrize("engine", ["tensorflow", "flax"])
def test_weights_saved_in_several_files_are_read(tmp_path: Path, engine: str) -> None:
    weights, tensors = make(tmp_path, "bert")
    cut = len(tensors) // 2
    if engine == "tensorflow":
        items = list(tensorflow_bert(tensors).items())
        parts = [dict(items[:cut]), dict(items[cut:])]
        write_in_two(tmp_path, "tf_model.h5", parts, write_datasets)
    else:
        items = list(tensors.items())
        parts = [dict(items[:cut]), dict(items[cut:])]
        write_in_two(
            tmp_path, "flax_model.msgpack", parts,
            lambda path, part: path.write_bytes(pack(flax_tree(part))),
        )  # fmt: skip
    check(tmp_path, weights)
    next(tmp_path.glob("*-00002-of-00002.*")).unlink()
    with pytest.raises(CheckpointError, match="is incomplete"):
        hf.read_weights(tmp_path)


def test_chunked_array_is_assembled(tmp_path: Path) -> None:
    value = np.arange(300, dtype=np.float32)
    pieces = {"0": value[:200], "1": value[200:]}
    chunks = {"__msgpack_chunked_array__": True, "shape": {"0": 30, "1": 10}, "chunks": pieces}
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(pack({"wide": {"embedding": chunks}}))
    assert np.array_equal(read_foreign(path)["wide.weight"], value.reshape(30, 10))


@pytest.mark.parametrize(
    "changed",
    [
        {"chunks": np.arange(3)},
        {"chunks": {"0": 1, "1": 2}},
        {"chunks": {"0": {"1": np.arange(3)}}},
        {"chunks": {"1": np.arange(3)}},
        {"chunks": [np.arange(3)]},
        {"shape": np.arange(3)},
        {"shape": None},
        {"shape": {"0": np.arange(3)}},
        {"shape": {"0": "3"}},
    ],
)
def test_invalid_chunked_array_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    whole = {"shape": {"0": 3}, "chunks": {"0": np.arange(3)}}
    chunks = {"__msgpack_chunked_array__": True, **whole, **changed}
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(pack({"wide": {"embedding": chunks}}))
    with pytest.raises(CheckpointError, match="can't be read"):
        read_foreign(path)


def test_safetensors_take_precedence(tmp_path: Path) -> None:
    weights, _ = make(tmp_path, "bert")
    (tmp_path / "flax_model.msgpack").write_bytes(b"")
    hf.write_weights(tmp_path, weights, small_architecture("bert"))
    check(tmp_path, weights)


@pytest.mark.parametrize("kept", [0, 1, 40, 5000, -1])
@pytest.mark.parametrize("name", ["flax_model.msgpack", "tf_model.h5"])
def test_truncated_file_is_named(tmp_path: Path, name: str, kept: int) -> None:
    _, tensors = make(tmp_path, "bert")
    (tmp_path / "flax_model.msgpack").write_bytes(pack(flax_tree(tensors)))
    write_tensorflow(tmp_path, tensorflow_bert(tensors))
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=name):
        read_foreign(file)


@pytest.mark.parametrize(
    "content", [b"\xc1", b"\x93\x01\x02\x03", b"\xd4\x05\x00", b"\x81\x01", b"\x91" * 5000]
)
def test_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "flax_model.msgpack"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="can't be read"):
        read_foreign(file)
