"""Opens a checkpoint folder's weights and checks them before reading any."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.weight_mapping import WeightMapping
from core.errors import CheckpointError
from core.families import list_families, weight_mappings
from core.foreign_files import check_regular
from core.models.configs import class_name
from core.models.interop import find_foreign, indexed_files, open_foreign, read_index
from core.models.tensors import FLOAT_BYTES, Tensor, open_safetensors

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
# HDF5 can declare arrays without storing them; weights hardly compress.
_MOST_BYTES_PER_FILE_BYTE = 16
_ROOM_FOR_SMALL_FILES = 1 << 20


class Weights:
    """The tensors of a checkpoint folder by name, without wrapper modules' prefixes.

    Entering raises CheckpointError for missing, damaged, pickled and git-LFS files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._tensors: dict[str, Tensor] = {}
        self._ambiguous: dict[str, str] = {}
        self._file_bytes = 0

    def __enter__(self) -> Weights:
        try:
            for tensor in self._open():
                self._add(tensor)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def check(
        self, architecture: Architecture, mappings: Sequence[WeightMapping] | None = None
    ) -> None:
        """Checks names, shapes, dtypes and declared sizes, without reading values."""
        mappings = list(mappings or weight_mappings(architecture))
        self._unwrap(mappings[0])
        needed = [self._find(name, tie, architecture) for tie in mappings for name in tie.names]
        declared = sum(tensor.nbytes for tensor in needed)
        most = _MOST_BYTES_PER_FILE_BYTE * self._file_bytes + _ROOM_FOR_SMALL_FILES
        if declared > most:
            raise CheckpointError(
                f"The weights in {self._folder} declare more data than their files contain",
                expected=f"at most {most:,} bytes of values for {self._file_bytes:,} bytes of "
                "files",
                received=f"{declared:,} bytes",
                fix="copy or download the files again, from a source that you trust",
            )

    def read(
        self,
        architecture: Architecture,
        dtype: Any = np.float32,
        mappings: Sequence[WeightMapping] | None = None,
    ) -> Iterator[tuple[WeightMapping, list[NDArray[Any]]]]:
        """Checks all tensors, then yields each mapping and its tensors as stored.

        `mappings` are those of a model without the language-model head.
        """
        all_mappings = list(mappings or weight_mappings(architecture))
        self.check(architecture, all_mappings)
        if mappings is None:
            self._check_zeros(architecture)
        has_own_head = any(tie.path.endswith("/lm_head/table") for tie in all_mappings)
        if mappings is None and not has_own_head:
            self._check_heads(architecture)
        for tie in all_mappings:
            parts = (self._find(name, tie, architecture) for name in tie.names)
            yield tie, [part.read(dtype).reshape(tie.hf_shape) for part in parts]

    def _open(self) -> Iterator[Tensor]:
        files, is_foreign = find_weight_files(self._folder)
        self._file_bytes = sum(map(check_regular, files))
        is_indexed = not is_foreign and files[0].name != WEIGHTS_FILE
        places = read_index(self._folder / INDEX_FILE) if is_indexed else {}
        for path in files:
            opener = open_foreign if is_foreign else open_safetensors
            for tensor in opener(path, self._stack):
                # A file may hold an old copy of a tensor that the index finds in another one.
                if places.get(tensor.name, path.name) == path.name:
                    yield tensor

    def _add(self, tensor: Tensor) -> None:
        parts = tensor.name.split(".")
        name = ".".join(part for part in parts if part not in _WRAPPERS)
        if name in self._tensors:
            self._ambiguous[name] = f"{self._tensors[name].name} and {tensor.name}"
        self._tensors[name] = tensor

    def has(self, mappings: Sequence[WeightMapping], first: WeightMapping) -> bool:
        """Returns whether there is any tensor of some mappings; `first` as for `_unwrap`."""
        self._unwrap(first)
        names = [
            spelling for tie in mappings for name in tie.names for spelling in _spellings(name, "")
        ]
        return any(name in self._tensors for name in names)

    def _unwrap(self, first: WeightMapping) -> None:
        """Removes the prefix of a model that is a part of another module, such as `model.`.

        Args:
            first: Mapping of the token embeddings.
        """
        anchors = [spelling for name in first.names for spelling in _spellings(name, first.alias)]
        if any(name in self._tensors for name in anchors):
            return
        prefixes = {
            name.removesuffix(anchor)
            for name in self._tensors
            for anchor in anchors
            if name.endswith(f".{anchor}")
        }
        prefix = min(prefixes, key=len, default="")
        if prefix and all(longer.startswith(prefix) for longer in prefixes):
            # Several models in one file stay unknown.
            self._tensors = {
                name.removeprefix(prefix): tensor for name, tensor in self._tensors.items()
            }

    def _find(self, name: str, tie: WeightMapping, architecture: Architecture) -> Tensor:
        spellings = _spellings(name, tie.alias)
        spelling = next((candidate for candidate in spellings if candidate in self._tensors), None)
        if spelling is None:
            raise CheckpointError(
                f"The checkpoint {self._folder} has no tensor {name}",
                expected=f"{name} of shape {tie.hf_shape}",
                received=f"{len(self._tensors)} tensors, such as "
                + ", ".join(sorted(self._tensors)[:3])[:300],
                fix=f"use a checkpoint of a {class_name(architecture)}",
            )
        if spelling in self._ambiguous:
            raise CheckpointError(
                f"The checkpoint {self._folder} contains {spelling} twice",
                expected="each tensor once",
                received=self._ambiguous[spelling][:300],
                fix="save only one of the two models",
            )
        tensor = self._tensors[spelling]
        # TensorFlow's GPT-2 has biases of shape (1, H).
        if tensor.shape not in (tie.hf_shape, (1, *tie.hf_shape)):
            raise CheckpointError(
                f"The shape of the tensor {spelling} in {self._folder} contradicts config.json",
                expected=f"shape {tie.hf_shape}",
                received=f"shape {tensor.shape}",
                fix="use the config.json that was saved with these weights",
            )
        if tensor.dtype not in FLOAT_BYTES:
            raise CheckpointError(
                f"The tensor {spelling} in {self._folder} has an unsupported dtype",
                expected=" or ".join(FLOAT_BYTES),
                received=tensor.dtype,
                fix="save the model unquantised in one of the expected dtypes",
            )
        return tensor

    def _check_zeros(self, architecture: Architecture) -> None:
        names = dict.fromkeys(name for family in list_families() for name in family.zero_tensors)
        for name in names:
            tensor = self._tensors.get(name)
            if tensor is None:
                continue
            if math.prod(tensor.shape) != architecture.vocab_size or np.any(tensor.read()):
                raise CheckpointError(
                    f"The tensor {name} in {self._folder} isn't zero, and the model has no such "
                    "weight",
                    expected="zeros, as in every published BART",
                    received=f"other values, or a shape other than (1, {architecture.vocab_size})",
                    fix="use a checkpoint without this tensor",
                )

    def _check_heads(self, architecture: Architecture) -> None:
        words = next(weight_mappings(architecture))
        heads = dict.fromkeys(head for family in list_families() for head in family.tied_heads)
        for head in heads:
            if head not in self._tensors:
                continue
            table = self._find(words.names[0], words, architecture)
            own = self._tensors[head]
            if table is own:
                continue
            if table.shape != own.shape or not np.array_equal(table.read(), own.read()):
                raise CheckpointError(
                    f"The language-model head {head} in {self._folder} is not tied to the token "
                    "embeddings",
                    expected=f"the values of {words.names[0]}",
                    received="other values",
                    fix=f"use a checkpoint of a {class_name(architecture)} with a tied head",
                )


def find_weight_files(folder: Path) -> tuple[list[Path], bool]:
    """Finds the weights files, and whether Flax or TensorFlow wrote them."""
    if os.path.lexists(folder / WEIGHTS_FILE):
        return [folder / WEIGHTS_FILE], False
    if os.path.lexists(folder / INDEX_FILE):
        return indexed_files(folder / INDEX_FILE), False
    if foreign := find_foreign(folder):
        return (indexed_files(foreign) if foreign.suffix == ".json" else [foreign]), True
    if os.path.lexists(folder / PICKLE_FILE) or any(folder.glob("pytorch_model-*.bin")):
        raise CheckpointError(
            f"The weights in {folder} are a pickle file, and pickle files are never loaded",
            expected=WEIGHTS_FILE,
            received="pytorch_model.bin, which can run any code when it is loaded",
            fix="if you trust it, load it with transformers and call "
            "model.save_pretrained(folder, safe_serialization=True), which writes safetensors",
        )
    raise no_checkpoint(folder)


def check_weight_files(folder: Path) -> None:
    """Raises CheckpointError if weights are missing or unsupported."""
    for path in find_weight_files(folder)[0]:
        check_regular(path)


def no_checkpoint(folder: Path) -> CheckpointError:
    """Makes the error for a missing model."""
    return CheckpointError(
        f"There is no checkpoint in {folder}",
        expected=f"{CONFIG_FILE} and {WEIGHTS_FILE}",
        received=_listing(folder),
        fix="choose a model in the workspace, or a folder with a saved model",
    )


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) if names else "an empty folder"


def _spellings(name: str, alias: str) -> Iterator[str]:
    bodies = dict.fromkeys(family.body_prefix for family in list_families() if family.body_prefix)
    for known_name in (name, alias) if alias else (name,):
        yield known_name
        for body in bodies:
            if known_name.startswith(body):
                yield known_name.removeprefix(body)
    for norm in ("LayerNorm.", "layer_norm."):  # TensorFlow's first BERTs.
        if norm in name:
            yield name.replace(f"{norm}weight", f"{norm}gamma").replace(
                f"{norm}bias", f"{norm}beta"
            )
