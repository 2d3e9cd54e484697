"""Reads weights that transformers 4 saved from TensorFlow and Flax; no code in a file runs.

Source: transformers 4.57, modeling_tf_pytorch_utils.py, modeling_flax_pytorch_utils.py; flax,
    serialization.py
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError
from core.foreign_files import is_plain_name, open_regular, read_json
from core.messages.values import shown
from core.models.tensors import Tensor, unreadable
from core.processes.children import script_command

TENSORFLOW_FILE = "tf_model.h5"
FLAX_FILE = "flax_model.msgpack"
_INDEX = ".index.json"
_MOST_INDEX_BYTES = 64 << 20
_WHOLE_FILE = "a complete file written by transformers 4"

# "weight" in PyTorch.
_WEIGHTS = ("kernel", "embeddings", "embedding", "gamma", "scale")

_READER = Path(__file__).with_name("hdf5_reader.py")
_READER_BYTES = 1 << 30
_READER_SECONDS = 60
_SLOWEST_BYTES_PER_SECOND = 10 << 20
_LONGEST_LISTING_BYTES = 64 << 20

_FLAX_ARRAY, _FLAX_SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_WIDEST_MAP = 10_000
_MOST_ENTRIES = 1_000_000
_DEEPEST_TREE = 64
_MOST_DIMENSIONS = 32
_LONGEST_TEXT = 4096


def find_foreign(folder: Path) -> Path | None:
    """Finds a folder's Flax or TensorFlow file, or its index."""
    names = [name + end for name in (FLAX_FILE, TENSORFLOW_FILE) for end in ("", _INDEX)]
    return next((folder / name for name in names if os.path.lexists(folder / name)), None)


def open_foreign(path: Path, stack: ExitStack) -> list[Tensor]:
    """Lists tensors in PyTorch's layout, readable until `stack` is closed."""
    is_index = path.name.endswith(_INDEX)
    open_one = open_flax if FLAX_FILE.split(".")[1] in path.name else open_tensorflow
    files = indexed_files(path) if is_index else [path]
    return [tensor for file in files for tensor in open_one(file, stack)]


def indexed_files(index: Path) -> list[Path]:
    """Returns the files that an index lists; all must be beside it."""
    return [index.parent / name for name in sorted(set(read_index(index).values()))]


def read_index(index: Path) -> dict[str, str]:
    """Returns the file of each tensor; all must be beside the index."""
    values = read_json(index, _MOST_INDEX_BYTES)
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f"The index {index} can't be read",
            expected='{"weight_map": {tensor: file, ...}}',
            received=shown(values),
            fix="copy or download the file again",
        )
    if outside := [name for name in places.values() if not is_plain_name(name)]:
        raise CheckpointError(
            f"The index {index} lists a file outside its own folder",
            expected="file names without folders",
            received=shown(outside[0]),
            fix="get the model from a source that you trust",
        )
    names = sorted(set(places.values()))
    if missing := [name for name in names if not os.path.lexists(index.parent / name)]:
        raise CheckpointError(
            f"The checkpoint {index.parent} is incomplete",
            expected="all files that its index lists",
            received="no " + ", ".join(missing[:8]),
            fix="copy or download the missing files",
        )
    return places


def open_tensorflow(path: Path, stack: ExitStack) -> list[Tensor]:
    """Lists the tensors of an HDF5 file."""
    reader = stack.enter_context(_Hdf5Reader(path))
    return [
        _in_pytorch(
            path, _tensorflow_parts(name), shape, dtype, reader.loader(number, shape, dtype)
        )
        for number, (name, shape, dtype) in enumerate(reader.tensors)
    ]


class _Hdf5Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor, size = open_regular(path)
        seconds = _READER_SECONDS + size // _SLOWEST_BYTES_PER_SECOND
        limits = [str(_READER_BYTES + 4 * size), str(seconds)]
        try:
            self._process = subprocess.Popen(
                script_command(_READER, str(descriptor), *limits, isolated=False),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                cwd="/",
                env=_reader_environment(),
            )
        finally:
            os.close(descriptor)

    def __enter__(self) -> _Hdf5Reader:
        try:
            self.tensors = self._list()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def loader(self, number: int, shape: tuple[int, ...], dtype: str) -> Callable[[], NDArray[Any]]:
        return lambda: self._read(number, shape, dtype)

    def _list(self) -> list[tuple[str, tuple[int, ...], str]]:
        answer = self._answer()
        return [(name, tuple(shape), dtype) for name, shape, dtype in answer["tensors"]]

    def _read(self, number: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(b"%d\n" % number)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._crashed() from None
        values = np.empty(shape, np.dtype(dtype).newbyteorder("<"))
        if self._answer()["bytes"] != values.nbytes:
            raise unreadable(self._path, "a tensor of the wrong size", _WHOLE_FILE)
        remaining = memoryview(values.reshape(-1).view(np.uint8).data)
        while len(remaining):
            count = self._process.stdout.readinto(remaining)  # type: ignore[attr-defined]
            if not count:
                raise self._crashed()
            remaining = remaining[count:]
        return values

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline(_LONGEST_LISTING_BYTES)
        if not line.endswith(b"\n"):
            raise self._crashed()
        answer: dict[str, Any] = json.loads(line)
        if "damaged" in answer:
            raise unreadable(self._path, answer["damaged"], _WHOLE_FILE)
        if "refused" in answer:
            raise CheckpointError(
                f"The weights {self._path} can't be read",
                expected="plain numeric arrays stored in this file",
                received=answer["refused"],
                fix="ask the author of the file for safetensors; no other file was read",
            )
        return answer

    def _crashed(self) -> CheckpointError:
        self._process.kill()
        code = self._process.wait()
        return unreadable(
            self._path,
            f"content that ended the reading process (exit code {code}): it needs too much memory "
            "or time, or crashes the HDF5 library",
            _WHOLE_FILE,
        )


def _reader_environment() -> dict[str, str]:
    paths = [path for path in sys.path if path and os.path.isdir(path)]
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        # Filter plugins are code: load none.
        "HDF5_PLUGIN_PRELOAD": "::",
        "HDF5_USE_FILE_LOCKING": "BEST_EFFORT",
    }
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] = libraries
    return environment


def _tensorflow_parts(name: str) -> list[str]:
    name = re.sub(r"/[^/]*___([^/]*)/", r"/\1/", name.split(":")[0])
    root, *parts = name.replace("_._", "/").split("/")
    return [part for part in parts if part] or [root]


def open_flax(path: Path, stack: ExitStack) -> list[Tensor]:
    """Lists the tensors of a MessagePack file, kept in memory."""
    import msgpack

    descriptor, size = open_regular(path)
    try:
        if not size:
            raise ValueError("it is empty")
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as data:
            tree = _unpack_tree(data, size)
        return list(_flax_tensors(path, tree))
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        received = str(error) or type(error).__name__
        raise unreadable(path, received, _WHOLE_FILE) from error
    finally:
        os.close(descriptor)


def _unpack_tree(data: Any, size: int) -> dict[str, Any]:
    import msgpack

    entries = 0

    def checked(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        nonlocal entries
        entries += len(pairs) + 1
        mapping = dict(pairs)
        if entries > _MOST_ENTRIES:
            raise ValueError(f"it has more than {_MOST_ENTRIES} entries")
        if len(mapping) < len(pairs):
            raise ValueError("a name occurs twice")
        return mapping

    tree = msgpack.unpackb(
        data,
        object_pairs_hook=checked,
        ext_hook=_unpack_extension,
        strict_map_key=True,
        max_str_len=_LONGEST_TEXT,
        max_bin_len=_LONGEST_TEXT,
        max_array_len=0,  # Flax writes lists as maps.
        max_map_len=_WIDEST_MAP,
        max_ext_len=size,
    )
    if not isinstance(tree, dict):
        raise ValueError("it isn't a tree of arrays")
    return tree


def _unpack_extension(kind: int, content: bytes) -> NDArray[Any]:
    import msgpack

    if kind not in (_FLAX_ARRAY, _FLAX_SCALAR):
        raise ValueError(f"it contains a value of the unknown type {kind}")
    contents = msgpack.unpackb(
        content,
        max_str_len=_LONGEST_TEXT,
        max_bin_len=len(content),
        max_array_len=_MOST_DIMENSIONS,
        max_map_len=0,
        max_ext_len=0,
    )
    shape, dtype, values = contents
    array = np.frombuffer(values, _dtype(dtype))
    return array.reshape(_checked_shape(shape, array.size))


def _checked_shape(shape: Any, size: int) -> tuple[int, ...]:
    if not all(isinstance(length, int) and 0 <= length < 1 << 48 for length in shape):
        raise ValueError(f"it contains an array with the invalid shape {shown(shape)}")
    if math.prod(shape) != size:
        raise ValueError(f"it contains {size} values for an array of shape {shown(shape)}")
    return tuple(shape)


def _flax_tensors(path: Path, tree: dict[str, Any]) -> Iterator[Tensor]:
    for parts, value in _leaves(tree, []):
        yield _in_pytorch(path, parts, value.shape, value.dtype.name, partial(np.asarray, value))


def _leaves(tree: dict[str, Any], parents: list[str]) -> Iterator[tuple[list[str], NDArray[Any]]]:
    if len(parents) > _DEEPEST_TREE:
        raise ValueError(f"it has more than {_DEEPEST_TREE} nested levels")
    for name, value in tree.items():
        parts = [*parents, str(name)]
        if isinstance(value, dict) and _CHUNKED in value:
            yield parts, _join_chunks(value)
        elif isinstance(value, dict):
            yield from _leaves(value, parts)
        elif isinstance(value, np.ndarray):
            yield parts, value
        elif isinstance(value, (int, float)):
            yield parts, np.asarray(value)


def _join_chunks(value: dict[str, Any]) -> NDArray[Any]:
    pieces = _in_order(value, "chunks")
    if not all(isinstance(piece, np.ndarray) for piece in pieces):
        raise ValueError("it contains a chunked array with invalid chunks")
    shape = _in_order(value, "shape")
    joined = np.concatenate(pieces)
    return joined.reshape(_checked_shape(shape, joined.size))


def _in_order(value: dict[str, Any], name: str) -> list[Any]:
    numbered = value.get(name)
    if not isinstance(numbered, dict) or set(numbered) != set(map(str, range(len(numbered)))):
        raise ValueError(f"it contains a chunked array without {name}")
    return [numbered[str(index)] for index in range(len(numbered))]


def _in_pytorch(
    path: Path,
    parts: list[str],
    shape: tuple[int, ...],
    dtype: str,
    load: Callable[[], NDArray[Any]],
) -> Tensor:
    last = parts[-1]
    name = ".".join([*parts[:-1], _last_name(last)])
    if last == "kernel" and len(shape) == 2:
        return Tensor(name, shape[::-1], dtype, path, lambda: load().T)
    return Tensor(name, shape, dtype, path, load)


def _last_name(last: str) -> str:
    if last in _WEIGHTS:
        return "weight"
    return "bias" if last == "beta" else last


def _dtype(name: Any) -> Any:
    text = name.decode("utf-8") if isinstance(name, bytes) else name
    if text == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    if text not in _FLAX_DTYPES:
        raise ValueError(f"it contains an array with the unsupported dtype {shown(name)}")
    return np.dtype(text)


_FLAX_DTYPES = {
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
