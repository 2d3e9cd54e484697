"""Reads the weights in an HDF5 file, as a process of its own.

HDF5 crashes on some malformed files, and a file may refer to others: the process gets no
environment, limited memory and time, and can open nothing else.

    python hdf5_reader.py DESCRIPTOR MEMORY_BYTES CPU_SECONDS

It prints `{"tensors": [[name, shape, dtype], ...]}`, `{"refused": text}` or `{"damaged": text}`.
For each tensor number on stdin it prints a line with the size in bytes, then the values,
little-endian.
"""

from __future__ import annotations

import encodings.ascii
import encodings.utf_8  # noqa: F401 -- HDF5's two character sets
import json
import resource
import sys
from contextlib import suppress
from itertools import count
from typing import Any

import h5py
import numpy as np

_MOST_TENSORS = 100_000
_LONGEST_NAME = 1024
_MOST_ATTRIBUTE_BYTES = 16 << 20
_KNOWN_FILTERS = {
    h5py.h5z.FILTER_DEFLATE,
    h5py.h5z.FILTER_SHUFFLE,
    h5py.h5z.FILTER_FLETCHER32,
    h5py.h5z.FILTER_LZF,
}
_ROOM_FOR_A_CHUNK = 1 << 20


class RefusedError(Exception):
    """The file holds something that no weights file needs."""


def main() -> None:
    descriptor, memory, seconds = map(int, sys.argv[1:])
    warm_up()
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_CPU, seconds)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    try:
        file = h5py.File(f"/dev/fd/{descriptor}", "r")
        # Nothing else can be opened now.
        limit(resource.RLIMIT_NOFILE, 0)
        datasets = dict(find_datasets(file))
        say({"tensors": [[name, *described(dataset)] for name, dataset in datasets.items()]})
    except Exception as error:  # noqa: BLE001 -- malformed files raise anything
        say(explained(error))
        return
    in_order = list(datasets.values())
    for line in sys.stdin.buffer:
        try:
            values = np.empty(in_order[int(line)].shape, described(in_order[int(line)])[1])
            in_order[int(line)].read_direct(values)
        except Exception as error:  # noqa: BLE001 -- as above
            say(explained(error))
            return
        say({"bytes": values.nbytes})
        sys.stdout.buffer.write(values.reshape(-1).view(np.uint8).data)
        sys.stdout.buffer.flush()


def warm_up() -> None:
    """Makes all lazy imports happen now."""
    with h5py.File("warm-up", "w", driver="core", backing_store=False) as file:
        file.attrs["fixed"] = [b"a"]
        file.attrs["variable"] = ["ä"]
        file.create_dataset(
            "group/packed", data=np.zeros(8, "f4"), compression="gzip", shuffle=True
        )
        for key in file.attrs:
            read_attribute(file, key)
        values = follow(file, "group/packed")
        check_dataset("packed", values)
        values.read_direct(np.empty(8, "f4"))


def limit(kind: int, most: int) -> None:
    """Lowers a resource limit for good."""
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(OSError, ValueError):  # macOS does not limit memory.
        resource.setrlimit(kind, (most, most))


def say(values: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(values).encode() + b"\n")
    sys.stdout.buffer.flush()


def explained(error: Exception) -> dict[str, Any]:
    if isinstance(error, RefusedError):
        return {"refused": str(error)[:500]}
    return {"damaged": (str(error) or type(error).__name__)[:500]}


def find_datasets(file: h5py.File) -> Any:
    """Yields the weights by name, as Keras 2 saved them."""
    listed = 0
    for layer in read_names(file, "layer_names"):
        place = follow(file, layer)
        if isinstance(place, h5py.Dataset):
            # Most of these names lack their root.
            named_datasets = [(layer if "model." in layer else f"/{layer}", place)]
        else:
            names = read_names(place, "weight_names")
            named_datasets = [(name, follow(place, name)) for name in names]
        for name, dataset in named_datasets:
            listed += 1
            if listed > _MOST_TENSORS:
                raise RefusedError(f"it lists more than {_MOST_TENSORS} weights")
            check_dataset(name, dataset)
            yield name, dataset


def read_names(place: Any, key: str) -> list[str]:
    """Reads names, which Keras may split into `key0`, `key1`, ..."""
    if h5py.h5a.exists(place.id, key.encode()):
        return read_attribute(place, key)
    names: list[str] = []
    for number in count():
        if not h5py.h5a.exists(place.id, f"{key}{number}".encode()):
            break
        names += read_attribute(place, f"{key}{number}")
    if not names:
        raise KeyError(f"the attribute {key} is missing")
    return names


def read_attribute(place: Any, key: str) -> list[str]:
    attribute = h5py.h5a.open(place.id, key.encode())
    if not isinstance(attribute.get_type(), h5py.h5t.TypeStringID):
        if attribute.get_space().get_simple_extent_npoints() == 0:
            return []  # Keras writes an empty list as numbers.
        raise RefusedError(f"the attribute {key} isn't text")
    if attribute.get_storage_size() > _MOST_ATTRIBUTE_BYTES:
        raise RefusedError(
            f"the attribute {key} has {attribute.get_storage_size()} bytes, which is too many"
        )
    if attribute.get_space().get_simple_extent_npoints() > _MOST_TENSORS:
        raise RefusedError(f"the attribute {key} lists more than {_MOST_TENSORS} names")
    names = np.atleast_1d(np.asarray(place.attrs[key], dtype=object)).ravel()
    texts = [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in names]
    if any(len(text) > _LONGEST_NAME for text in texts):
        raise RefusedError(
            f"a name in the attribute {key} is longer than {_LONGEST_NAME} characters"
        )
    return texts


def follow(place: Any, path: str) -> Any:
    """Opens a path through hard links alone."""
    here = place.id
    for part in filter(None, path.split("/")):
        if not isinstance(here, h5py.h5g.GroupID) or part == ".":
            raise RefusedError(f"{path} does not lead to a weight")
        kind = here.links.get_info(part.encode()).type
        if kind != h5py.h5l.TYPE_HARD:
            names = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
            raise RefusedError(f"{path} is {names.get(kind, 'a user-defined link')}")
        here = h5py.h5o.open(here, part.encode())
    if isinstance(here, h5py.h5d.DatasetID):
        return h5py.Dataset(here)
    if isinstance(here, h5py.h5g.GroupID):
        return h5py.Group(here)
    raise RefusedError(f"{path} is neither a group nor a dataset")


def check_dataset(name: str, dataset: Any) -> None:
    """Refuses anything but plain numbers in this file."""
    if not isinstance(dataset, h5py.Dataset):
        raise RefusedError(f"{name} is a group, not a dataset")
    if dataset.id.get_type().get_class() not in (h5py.h5t.FLOAT, h5py.h5t.INTEGER):
        raise RefusedError(f"{name} contains {dataset.dtype}, not numbers")
    if dataset.shape is None:
        raise RefusedError(f"{name} is empty")
    settings = dataset.id.get_create_plist()
    if settings.get_layout() == h5py.h5d.VIRTUAL:
        raise RefusedError(f"{name} is a virtual dataset, stored in other files")
    if settings.get_external_count():
        raise RefusedError(f"{name} is stored in another file: {settings.get_external(0)[0]!r}")
    filters = {settings.get_filter(number)[0] for number in range(settings.get_nfilters())}
    if unknown := filters - _KNOWN_FILTERS:
        raise RefusedError(f"{name} is compressed with unknown filters: {sorted(unknown)}")
    itemsize = dataset.dtype.itemsize
    declared = itemsize * int(np.prod(dataset.shape, dtype=object))
    if settings.get_layout() == h5py.h5d.CHUNKED:
        chunk = itemsize * int(np.prod(settings.get_chunk(), dtype=object))
        if chunk > 4 * declared + _ROOM_FOR_A_CHUNK:
            raise RefusedError(f"{name} has {declared} bytes but chunks of {chunk} bytes")


def described(dataset: Any) -> tuple[list[int], str]:
    return list(dataset.shape), dataset.dtype.name


if __name__ == "__main__":
    main()
