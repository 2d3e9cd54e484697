"""Weights as TensorFlow's and Flax's classes of transformers 4 saved them, by PyTorch's names.

`tf_model.h5` is HDF5, `flax_model.msgpack` is MessagePack, each in one file or in several with an
index; neither framework is needed, and nothing
in a file is ever run.

Source: transformers 4.57, modeling_tf_pytorch_utils.py (convert_tf_weight_name_to_pt_weight_name)
    and modeling_flax_pytorch_utils.py (load_flax_weights_in_pytorch_model); flax, serialization.py;
    https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError

TENSORFLOW_FILE = "tf_model.h5"
FLAX_FILE = "flax_model.msgpack"
# What names the files of a large checkpoint, such as tf_model-00001-of-00003.h5.
_INDEX = ".index.json"

Tensors = dict[str, NDArray]

# What the last part of a name becomes: of kernels, tables and norms.
_WEIGHTS = ("kernel", "embeddings", "embedding", "gamma", "scale")


def find_foreign(folder: Path) -> Path | None:
    """Returns the file of a folder that Flax or TensorFlow wrote, or its index, or None."""
    names = [name + end for name in (FLAX_FILE, TENSORFLOW_FILE) for end in ("", _INDEX)]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_foreign(path: Path) -> Tensors:
    """Reads a `tf_model.h5` or a `flax_model.msgpack`, or all files of such an index.

    Returns:
        Arrays by PyTorch's names, turned as PyTorch has them.

    Raises:
        CheckpointError: A file is missing, damaged or something else.
    """
    if path.name.endswith(_INDEX):
        return {
            name: value
            for part in indexed_files(path)
            for name, value in read_foreign(part).items()
        }
    try:
        if path.suffix == Path(TENSORFLOW_FILE).suffix:
            return dict(_read_tensorflow(path))
        return dict(_read_flax(path))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        struct.error,
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"The weights {path} can't be read",
            expected="a whole file as transformers 4 wrote it",
            received=str(error) or type(error).__name__,
            fix="copy or download the file again",
        ) from error


def indexed_files(index: Path) -> list[Path]:
    """Returns the files of a checkpoint that is in several, as its index names them.

    Raises:
        CheckpointError: The index is damaged, or a file isn't beside it.
    """
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        paths = [Path(name) for name in names]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"The index {index} can't be read",
            expected='{"weight_map": {tensor: file, ...}}',
            received=str(error),
            fix="copy or download the file again",
        ) from error
    outside = [str(path) for path in paths if path.name != str(path)]
    missing = [str(path) for path in paths if not (index.parent / path).is_file()]
    if outside or missing:
        raise CheckpointError(
            f"The checkpoint {index.parent} isn't whole",
            expected="the files that its index names, beside it",
            received="no " + ", ".join(outside or missing),
            fix="copy or download the missing files",
        )
    return [index.parent / path for path in paths]


def _read_tensorflow(path: Path) -> Iterator[tuple[str, NDArray]]:
    import h5py

    with h5py.File(path, "r") as file:
        for layer in _names(file.attrs, "layer_names"):
            group = file[layer]
            if isinstance(group, h5py.Dataset):
                # One of several files: weights lie in it by themselves, most without their root.
                name = layer if "model." in layer else f"/{layer}"
                yield _to_pytorch(_tensorflow_parts(name), np.asarray(group))
                continue
            for name in _names(group.attrs, "weight_names"):
                yield _to_pytorch(_tensorflow_parts(name), np.asarray(group[name]))


def _names(attributes: Any, key: str) -> list[str]:
    """Returns a list of names, which HDF5 holds in pieces where it is long: `key0`, `key1` ..."""
    if key in attributes:
        return [_text(name) for name in attributes[key]]
    pieces = takewhile(attributes.__contains__, (f"{key}{number}" for number in count()))
    found = [_text(name) for piece in pieces for name in attributes[piece]]
    if not found:
        raise KeyError(key)
    return found


def _tensorflow_parts(name: str) -> list[str]:
    """Returns the parts of a name such as `tf_bert/bert/layer_._0/mlm___cls/query/kernel:0`."""
    name = re.sub(r"/[^/]*___([^/]*)/", r"/\1/", name.split(":")[0])
    root, *parts = name.replace("_._", "/").split("/")
    return [part for part in parts if part] or [root]


def _read_flax(path: Path) -> Iterator[tuple[str, NDArray]]:
    tree, end = _unpack(memoryview(path.read_bytes()), 0)
    if end != path.stat().st_size or not isinstance(tree, dict):
        raise ValueError("it isn't one tree of arrays")
    for parts, value in _leaves(tree, []):
        yield _to_pytorch(parts, value)


def _leaves(tree: dict[str, Any], parents: list[str]) -> Iterator[tuple[list[str], NDArray]]:
    for name, value in tree.items():
        if isinstance(value, dict) and "__msgpack_chunked_array__" in value:
            yield [*parents, name], _join_chunks(value)
        elif isinstance(value, dict):
            yield from _leaves(value, [*parents, name])
        else:
            yield [*parents, name], np.asarray(value)


def _join_chunks(value: dict[str, Any]) -> NDArray:
    """Puts an array together that was too large for one piece."""
    pieces = [value["chunks"][str(index)] for index in range(len(value["chunks"]))]
    shape = [value["shape"][str(index)] for index in range(len(value["shape"]))]
    return np.concatenate(pieces).reshape(shape)


def _to_pytorch(parts: list[str], value: NDArray) -> tuple[str, NDArray]:
    last = parts[-1]
    name = ".".join([*parts[:-1], _last_name(last)])
    return name, value.T if last == "kernel" and value.ndim == 2 else value


def _last_name(last: str) -> str:
    if last in _WEIGHTS:
        return "weight"
    return "bias" if last == "beta" else last


def _text(name: str | bytes) -> str:
    return name.decode("utf-8") if isinstance(name, bytes) else name


# By first byte: whether it is a map, an array, text or bytes, and how its length is written.
_COUNTED = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"),
    0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
    0xC7: ("extension", ">B"), 0xC8: ("extension", ">H"), 0xC9: ("extension", ">I"),
}  # fmt: skip
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_FLAX_ARRAY, _FLAX_SCALAR = 1, 3


def _unpack(data: memoryview, place: int) -> tuple[Any, int]:
    """Returns the value at a place, and where it ends."""
    first = data[place]
    place += 1
    if first <= 0x7F or first >= 0xE0:
        return first - 256 if first >= 0xE0 else first, place
    if first in _CONSTANTS:
        return _CONSTANTS[first], place
    if first in _NUMBERS:
        size = struct.calcsize(_NUMBERS[first])
        return struct.unpack_from(_NUMBERS[first], data, place)[0], place + size
    kind, length, place = _head(first, data, place)
    if kind == "map":
        return _unpack_map(data, place, length)
    if kind == "array":
        return _unpack_array(data, place, length)
    if kind == "extension":
        end = place + 1 + length
        return _unpack_extension(data[place], _cut(data, place + 1, end)), end
    content = _cut(data, place, place + length)
    value = str(content, "utf-8") if kind == "text" else content
    return value, place + length


def _head(first: int, data: memoryview, place: int) -> tuple[str, int, int]:
    """Returns what a value with a length is, its length, and where its content begins."""
    for kind, base, mask in (("map", 0x80, 0x0F), ("array", 0x90, 0x0F), ("text", 0xA0, 0x1F)):
        if first & ~mask == base:
            return kind, first & mask, place
    if 0xD4 <= first <= 0xD8:
        return "extension", 1 << (first - 0xD4), place
    kind, form = _COUNTED[first]
    return kind, struct.unpack_from(form, data, place)[0], place + struct.calcsize(form)


def _unpack_map(data: memoryview, place: int, length: int) -> tuple[dict[str, Any], int]:
    found = {}
    for _ in range(length):
        key, place = _unpack(data, place)
        found[key], place = _unpack(data, place)
    return found, place


def _unpack_array(data: memoryview, place: int, length: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(length):
        value, place = _unpack(data, place)
        found.append(value)
    return found, place


def _unpack_extension(kind: int, content: memoryview) -> Any:
    """Returns an array, which Flax packs as its shape, dtype and bytes."""
    if kind not in (_FLAX_ARRAY, _FLAX_SCALAR):
        raise ValueError(f"it holds a value of the unknown kind {kind}")
    (shape, dtype, values), _ = _unpack(content, 0)
    return np.frombuffer(values, _dtype(_text(dtype))).reshape(shape)


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)


def _cut(data: memoryview, start: int, end: int) -> memoryview:
    if end > len(data):
        raise ValueError("it ends too early")
    return data[start:end]
