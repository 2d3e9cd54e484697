"""Fuzzing of model files: each yields a config and weights, or a StudioError."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.core.models.test_interop import pack
from tests.fuzz import valid
from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import (
    any_bytes,
    changed_json_file,
    json_text,
    mutated,
    paths_of,
    quoted,
)
from tests.fuzz.sandbox import Entry, Fifo, Folder, Link

_SPECIAL: tuple[Entry, ...] = (
    Fifo(), Folder(), Link("/dev/zero"), Link("nowhere"), b"", b"\0" * 100,
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
)  # fmt: skip
_KEYS = (
    "model_type", "rope_parameters", "rope_scaling", "layer_types", "d_model", "n_layer",
    "num_layers",
    "scale_decoder_outputs", "auto_map", "architectures", "quantization_config", "vocab_size",
)  # fmt: skip
_SIZES = quoted(()) + ("1000000", "2147483647", "65536", "1e4", "8", "64", '"64"', "3", "12.0")


def _or_special(draw: DrawFn, content: Any, of: int = 60) -> Entry:
    form = draw(st.integers(0, of))
    return _SPECIAL[form] if form < len(_SPECIAL) else draw(content)


def test_arbitrary_config_is_read_or_refused(worker: Worker, share: float) -> None:
    @st.composite
    def inputs(draw: DrawFn) -> Input:
        family = draw(st.sampled_from(valid.FAMILIES))
        config = valid.model(family)["config.json"]
        if draw(st.integers(0, 3)) == 0:
            values = json.loads(config)
            numbers = [name for name, one in values.items() if type(one) in (int, float)]
            for name in draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3)):
                values[name] = draw(st.sampled_from((1, 7, 10**6, 2**31, 2**63, 10**20, 0.5, -1)))
            return Input({"config.json": json.dumps(values).encode()})
        content = changed_json_file(config, _SIZES, _KEYS)
        return Input({"config.json": _or_special(draw, content)})

    explore(worker, "config.json", "config", inputs(), share)


_TYPES = ("F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X", "")


def _safetensors(draw: DrawFn, data: bytes) -> bytes:
    """Changes the header of a safetensors file, or the length in front of it."""
    (length,) = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    form = draw(st.integers(0, 5))
    name = draw(st.sampled_from(sorted(header)))
    if form == 0:
        text = draw(json_text(header, names=("__metadata__", name)))
    else:
        entry = header[name] if name != "__metadata__" else {}
        changes = st.fixed_dictionaries({}, optional={
            "dtype": st.sampled_from(_TYPES),
            "shape": st.sampled_from(([], [0], [1], [2**40], [2**32, 2**32], [-1], [1] * 70,
            "x", [1.5])),
            "data_offsets": st.sampled_from(([0, 0], [4, 0], [0, 2**60], [-8, 8], [0], [1, 5],
            None)),
        })  # fmt: skip
        header[name] = {**entry, **draw(changes)}
        text = json.dumps(header).encode()
    if form == 1:
        text = text.ljust(len(text) + draw(st.sampled_from((1, 7, 100_000))))
    size = len(text)
    if form == 2:
        size = draw(
            st.sampled_from((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1, 100_000_001))
        )
    return struct.pack("<Q", size) + text + rest


def _retyped(draw: DrawFn, data: bytes) -> bytes:
    """Writes the same tensors in another dtype or shape, or with other names."""
    import ml_dtypes
    from safetensors.numpy import load, save

    tensors = load(data)
    kinds: tuple[Any, ...] = (np.float16, np.float64, np.int8, np.uint64, bool, ml_dtypes.bfloat16,
                              ml_dtypes.float8_e4m3fn, np.complex64)  # fmt: skip
    chosen = st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3, unique=True)
    for name in draw(chosen):
        kind = kinds[draw(st.integers(0, 999)) % len(kinds)]
        value = tensors.pop(name)
        form = draw(st.integers(0, 5))
        new = (name, f"module.{name}", f"_orig_mod.{name}", name, "", name + "\0")[form]
        shape = draw(st.sampled_from(("same", "flat", "more", "turned", "empty")))
        changed = {
            "same": value, "flat": value.reshape(-1), "more": value[None], "turned": value.T,
            "empty": value[:0],
        }[shape]  # fmt: skip
        tensors[new] = np.ascontiguousarray(changed).astype(kind)
    return save(tensors)


def test_arbitrary_safetensors_file_is_read_or_refused(worker: Worker, share: float) -> None:
    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files: dict[str, Entry] = dict(valid.model(draw(st.sampled_from(("bert", "gpt2", "bart")))))
        data = files["model.safetensors"]
        assert isinstance(data, bytes)
        form = draw(st.integers(0, 9))
        if form < 4:
            files["model.safetensors"] = _safetensors(draw, data)
        elif form < 7:
            files["model.safetensors"] = _retyped(draw, data)
        else:
            files["model.safetensors"] = _or_special(
                draw, st.one_of(mutated(data), any_bytes()), 20
            )
        return Input(files)

    explore(worker, "safetensors", "weights", inputs(), share)


def test_arbitrary_weight_index_is_read_or_refused(worker: Worker, share: float) -> None:
    paths = paths_of(str(worker.sandbox.canary), worker.trap)

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files: dict[str, Entry] = dict(valid.split_model())
        index = files["model.safetensors.index.json"]
        assert isinstance(index, bytes)
        form = draw(st.integers(0, 3))
        if form == 0:
            values = json.loads(index)
            name = draw(st.sampled_from(sorted(values["weight_map"])))
            values["weight_map"][name] = draw(st.sampled_from(paths))
            files["model.safetensors.index.json"] = json.dumps(values).encode()
        else:
            changed = changed_json_file(index, quoted(paths), ("weight_map", "metadata"))
            files["model.safetensors.index.json"] = _or_special(draw, changed, 40)
        if draw(st.integers(0, 5)) == 0:
            part = draw(st.sampled_from(sorted(name for name in files if "-of-" in name)))
            files[part] = draw(st.sampled_from((*_SPECIAL, Link(f"../canary/{part}"))))
        stem = draw(st.sampled_from(("model.safetensors", "tf_model.h5", "flax_model.msgpack")))
        renamed = {name.replace("model.safetensors.index", f"{stem}.index"): one
                   for name, one in files.items()}  # fmt: skip
        return Input(renamed)

    explore(worker, "safetensors index", "weights", inputs(), share)


_BUILDERS = (
    "external link", "soft link", "loop", "hard loop", "virtual", "external storage", "huge",
    "huge chunked", "string", "vlen", "compound", "enum", "opaque", "reference", "attribute",
    "names", "object", "half", "chunked", "empty", "scalar", "bfloat", "many attributes",
    "committed",
)  # fmt: skip


def _hdf5(kind: str, canary: str, number: int) -> bytes:
    """Builds a `tf_model.h5` with another HDF5 object in place of a weight."""
    content = io.BytesIO()
    base = valid.tensorflow_model()["tf_model.h5"]
    content.write(base)
    with h5py.File(content, "r+") as file:
        group = file["main"]
        names = list(map(str, group.attrs["weight_names"]))
        name = names[number % len(names)]
        shape = group[name].shape
        inside = f"main/{name}"
        if kind not in ("attribute", "names", "many attributes"):
            del file[inside]
        _put(file, kind, inside, shape, canary)
    return content.getvalue()


def _put(file: Any, kind: str, place: str, shape: tuple[int, ...], canary: str) -> None:
    size = int(np.prod(shape)) * 4
    if kind == "external link":
        file[place] = h5py.ExternalLink(f"{canary}/secret.bin", "/x")
    elif kind == "soft link":
        file[place] = h5py.SoftLink("/main/nowhere")
    elif kind == "loop":
        file[place] = h5py.SoftLink(f"/{place}")
    elif kind == "hard loop":
        file[place] = file["/"]
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape, np.float32)
        layout[...] = h5py.VirtualSource(f"{canary}/secret.bin", "x", shape)
        file.create_virtual_dataset(place, layout)
    elif kind == "external storage":
        file.create_dataset(place, shape, np.float32, external=[(f"{canary}/secret.txt", 0, size)])
    elif kind == "huge":
        file.create_dataset(place, (3_000_000_000,), np.float32)
    elif kind == "huge chunked":
        file.create_dataset(place, (1 << 36,), np.float32, chunks=(1 << 20,), compression="gzip")
    elif kind == "string":
        file.create_dataset(place, data=np.full(shape, b"0.5"))
    elif kind == "vlen":
        data = file.create_dataset(place, (3,), h5py.vlen_dtype(np.float32))
        data[0] = [1.0]
    elif kind == "compound":
        file.create_dataset(place, shape, np.dtype([("a", "<f4"), ("b", "<i8", (3,))]))
    elif kind == "enum":
        file.create_dataset(place, shape, h5py.enum_dtype({"A": 1}, "i1"))
    elif kind == "opaque":
        file.create_dataset(place, data=np.zeros(shape, "V4"))
    elif kind == "reference":
        data = file.create_dataset(place, (1,), h5py.ref_dtype)
        data[0] = file.ref
    elif kind == "attribute":
        file["main"].attrs["weight_names"] = [b"../../x", b"/", b"", b"\xff", b"main", b"a" * 9000]
    elif kind == "names":
        file.attrs["layer_names"] = np.zeros((3, 3))
    elif kind == "many attributes":
        del file.attrs["layer_names"]
        for number in range(30):
            file.attrs[f"layer_names{number}"] = [b"main"]
    elif kind == "object":
        file.create_dataset(place, (2,), h5py.string_dtype())
    elif kind == "half":
        file.create_dataset(place, shape, np.float16)
    elif kind == "chunked":
        file.create_dataset(
            place, shape, np.float64, chunks=True, compression="lzf", fletcher32=True
        )
    elif kind == "empty":
        file.create_dataset(place, dtype=np.float32, data=h5py.Empty("f"))
    elif kind == "scalar":
        file.create_dataset(place, data=1.0)
    elif kind == "bfloat":
        import ml_dtypes

        file.create_dataset(place, data=np.zeros(shape, ml_dtypes.bfloat16).view("<u2"))
    else:
        file["kind"] = np.dtype("<f4")
        file.create_dataset(place, shape, file["kind"])


def test_arbitrary_h5_file_is_read_or_refused(worker: Worker, share: float) -> None:
    plain = valid.tensorflow_model()
    numbers = st.integers(0, 1000)
    made = st.builds(
        _hdf5, st.sampled_from(_BUILDERS), st.just(str(worker.sandbox.canary)), numbers
    )  # fmt: skip
    contents: SearchStrategy[bytes] = st.one_of(
        made, made.flatmap(lambda data: mutated(data, 2)), mutated(plain["tf_model.h5"]),
        mutated(plain["tf_model.h5"]), any_bytes(),
    )  # fmt: skip

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        return Input({**plain, "tf_model.h5": _or_special(draw, contents)})

    explore(worker, "h5", "weights", inputs(), share)


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 60_000), st.text(max_size=5), st.binary(max_size=20),
    st.sampled_from((np.zeros((2, 3), np.float32), np.zeros((), np.int64), np.ones(4, "<u2"))),
)  # fmt: skip
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
_DTYPES = (
    "float32",
    "bfloat16",
    "object",
    "O8",
    "V1",
    "S0",
    "M8",
    "float128",
    "x",
    "",
    "<U9",
    "i4,i4",
)


def _extension(draw: DrawFn) -> bytes:
    """Draws an array in Flax's msgpack format, with any shape, dtype and bytes."""
    shape = draw(st.sampled_from(([], [2], [-1], [2**40, 2**40], [0], ["x"], [1.0], 3, [2] * 40)))
    kind = draw(st.sampled_from(_DTYPES))
    data = draw(st.sampled_from((b"", bytes(8), bytes(7), "text", 1, [1])))
    number = draw(st.sampled_from((1, 2, 3, 5)))
    content = pack([_shape(shape), kind, data])
    return struct.pack(">BIB", 0xC9, len(content), number) + content


def _shape(shape: Any) -> Any:
    if not isinstance(shape, list):
        return shape
    # `pack` supports only numbers below 65,536.
    return [one if not isinstance(one, int) else one & 0xFFFF for one in shape]


_NESTED = (
    b"\x81\xa1a" * 5000 + b"\x01", b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\xa1a",
    b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01",
    b"\x81\xa1a\xdd\x00\x0f\xff\xff" + b"\xc0" * 0xFFFFF,
    b"\x81\x90\x01", b"\x81\x80\x01", b"\x81\xc4\x01a\x01", b"\x81\xcb" + bytes(8) + b"\x01",
    b"\x81\xa1a\x81\xbb__msgpack_chunked_array__\xc3",
)  # fmt: skip


def test_arbitrary_msgpack_file_is_read_or_refused(worker: Worker, share: float) -> None:
    plain = valid.flax_model()

    @st.composite
    def contents(draw: DrawFn) -> bytes:
        form = draw(st.integers(0, 9))
        if form < 4:
            return draw(mutated(plain["flax_model.msgpack"]))
        if form < 6:
            return pack({"a": {"kernel": 0}})[:-1] + _extension(draw)
        if form == 6:
            chunks = draw(
                st.dictionaries(st.sampled_from(("shape", "chunks", "x")), _TREES, max_size=3)
            )
            return pack({"a": {"__msgpack_chunked_array__": True, **chunks}})
        if form == 7:
            return draw(st.sampled_from(_NESTED))
        return draw(st.one_of(_TREES.map(pack), any_bytes()))

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        return Input({**plain, "flax_model.msgpack": _or_special(draw, contents())})

    explore(worker, "msgpack", "weights", inputs(), share)
