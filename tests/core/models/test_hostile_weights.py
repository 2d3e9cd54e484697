"""Malicious weight files: each ends in a CheckpointError, quickly.

Files that may take much memory or never end are opened in a process with limited memory and time.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core.errors import CheckpointError
from core.models import hf
from core.models.weights import Weights
from tests.core.models.families import small_architecture
from tests.core.models.test_interop import (
    flax_tree,
    make,
    pack,
    tensorflow_bert,
    write_in_two,
    write_tensorflow,
)

ROOT = Path(__file__).parent.parent.parent.parent
MOST_BYTES = 3 << 30
SECRET = "a line of another file, long enough to be the values of a weight " * 64
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 438012727\n"
)
OPEN = """
import sys
from core.errors import StudioError
from core.models import hf
for folder in sys.argv[1:]:
    try:
        hf.read_weights(folder)
    except StudioError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("read")
"""


def open_guarded(*folders: Path) -> list[str]:
    """The result of reading each folder's weights, within 3 GB and 30 s."""

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    done = subprocess.run(
        [sys.executable, "-c", OPEN, *map(str, folders)],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, preexec_fn=limit_memory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A BERT with an HDF5 weight file as TensorFlow wrote it."""
    _, tensors = make(tmp_path, "bert")
    write_tensorflow(tmp_path, tensorflow_bert(tensors))
    return tmp_path


def text_of(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def replace_dataset(folder: Path, change: Callable[[h5py.Group, str, Any], None]) -> str:
    """Replaces the embedding matrix with another HDF5 object, and returns its name."""
    with h5py.File(folder / "tf_model.h5", "a") as file:
        group = file["main"]
        name = next(one for one in map(text_of, group.attrs["weight_names"]) if "word_emb" in one)
        shape = group[name].shape
        del group[name]
        parent = group[name.rsplit("/", 1)[0]]
        change(parent, name.rsplit("/", 1)[1], shape)
        return name


def external_storage(group: h5py.Group, name: str, shape: Any) -> None:
    size = 4 * int(np.prod(shape))
    secret = Path(group.file.filename).with_name("secret")
    secret.write_text((SECRET * 8)[:size])
    group.create_dataset(name, shape, "f4", external=[(str(secret), 0, size)])


def external_link(group: h5py.Group, name: str, shape: Any) -> None:
    other = Path(group.file.filename).with_name("other.h5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(shape, "f4")
    group[name] = h5py.ExternalLink(str(other), "/secret")


def soft_link(group: h5py.Group, name: str, shape: Any) -> None:
    group.file["elsewhere"] = np.ones(shape, "f4")
    group[name] = h5py.SoftLink("/elsewhere")


def soft_link_loop(group: h5py.Group, name: str, shape: Any) -> None:
    group[name] = h5py.SoftLink(f"{group.name}/{name}")


def hard_link_loop(group: h5py.Group, name: str, shape: Any) -> None:
    group[name] = group


def virtual_dataset(group: h5py.Group, name: str, shape: Any) -> None:
    other = Path(group.file.filename).with_name("other.h5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(shape, "f4")
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource(str(other), "secret", shape)
    group.create_virtual_dataset(name, layout)


def references(group: h5py.Group, name: str, shape: Any) -> None:
    group.create_dataset(name, shape, h5py.ref_dtype)


def texts(group: h5py.Group, name: str, shape: Any) -> None:
    group.create_dataset(name, shape, h5py.string_dtype())


def unknown_filter(group: h5py.Group, name: str, shape: Any) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(tuple(shape))
    settings.set_filter(31_999, h5py.h5z.FLAG_OPTIONAL, ())
    space, kind = h5py.h5s.create_simple(tuple(shape)), h5py.h5t.IEEE_F32LE
    h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=settings)


def huge_chunks(group: h5py.Group, name: str, shape: Any) -> None:
    group.create_dataset(
        name, shape, "f4", chunks=(1 << 14, 1 << 15), maxshape=(None, None), compression="gzip"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (external_storage, "stored in another file"),
        (external_link, "an external link"),
        (soft_link, "a soft link"),
        (soft_link_loop, "a soft link"),
        (hard_link_loop, "a group, not a dataset"),
        (virtual_dataset, "a virtual dataset"),
        (references, "not numbers"),
        (texts, "not numbers"),
        (unknown_filter, "unknown filters"),
        (huge_chunks, "but chunks of"),
    ],
)
def test_hdf5_with_more_than_plain_arrays_is_refused(bert: Path, change: Any, said: str) -> None:
    replace_dataset(bert, change)
    with pytest.raises(CheckpointError, match="can't be read") as caught:
        hf.read_weights(bert)
    assert said in caught.value.received
    assert "secret" not in "".join(map(str, caught.value.args)) or change is external_storage


def test_hdf5_reader_process_opens_no_other_file_and_has_no_secrets(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for a reader of foreign files")
    with Weights(bert):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        if not children.exists():
            pytest.skip("needs Linux's /proc")
        readers = [
            pid for pid in children.read_text().split()
            if b"hdf5_reader.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        (reader,) = readers
        assert b"AWS_SECRET" not in Path(f"/proc/{reader}/environ").read_bytes()
        limits = Path(f"/proc/{reader}/limits").read_text()
        line = next(one for one in limits.splitlines() if one.startswith("Max open files"))
        assert line.split()[3:5] == ["0", "0"]
    assert not Path(f"/proc/{reader}").exists()


def write_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_small_hdf5_file_that_declares_gigabytes_allocates_no_memory(bert: Path) -> None:
    """The config declares the same size: 48,000 tokens with hidden size 65,536, 12 GB."""
    rows, width = 48_000, 1 << 16
    _, tensors = make(bert, "bert")
    shapes = {}
    small = small_architecture("bert")
    sizes = {small.vocab_size: rows, small.hidden_size: width}
    for name, value in tensorflow_bert(tensors).items():
        shapes[name] = tuple(sizes.get(size, size) for size in value.shape)
    with h5py.File(bert / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = ["main"]
        group = file.create_group("main")
        group.attrs["weight_names"] = [name.encode() for name in shapes]
        for name, shape in shapes.items():
            group.create_dataset(name, shape, "f4")  # HDF5 allocates no space for unwritten data.
    write_config(bert, vocab_size=rows, hidden_size=width)
    assert (bert / "tf_model.h5").stat().st_size < 1 << 17
    (said,) = open_guarded(bert)
    assert said.startswith("CheckpointError") and "more data than their files contain" in said


def test_highly_compressed_zeros_are_refused(bert: Path) -> None:
    """A few kilobytes expand to 8 MB of position embeddings, as the config declares."""
    shape = (1 << 16, small_architecture("bert").hidden_size)
    with h5py.File(bert / "tf_model.h5", "a") as file:
        group = file["main"]
        names = map(text_of, group.attrs["weight_names"])
        name = next(one for one in names if "position_emb" in one)
        del group[name]
        group.create_dataset(name, data=np.zeros(shape, "f4"), compression="gzip")
    write_config(bert, max_position_embeddings=shape[0])
    with pytest.raises(CheckpointError, match="more data than their files contain"):
        hf.read_weights(bert)


def test_unresolvable_hdf5_names_are_refused(bert: Path) -> None:
    for name in ("./main", "nowhere", "a" * 2000):
        with h5py.File(bert / "tf_model.h5", "a") as file:
            file.attrs["layer_names"] = [name.encode()]
        with pytest.raises(CheckpointError, match="can't be read"):
            hf.read_weights(bert)


def test_hdf5_attribute_of_another_type_is_refused(bert: Path) -> None:
    for value in (np.zeros((2, 2), "i8"), b"", h5py.Empty("f4")):
        with h5py.File(bert / "tf_model.h5", "a") as file:
            file.attrs["layer_names"] = value
        with pytest.raises(CheckpointError):
            hf.read_weights(bert)


@pytest.mark.parametrize("seed", range(4))
def test_corrupted_hdf5_is_read_or_refused_with_an_error(bert: Path, seed: int) -> None:
    path, generator = bert / "tf_model.h5", np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for place in generator.integers(0, min(len(data), 30_000), 40):
        data[place] = generator.integers(0, 256)
    path.write_bytes(data)
    try:
        hf.read_weights(bert)
    except CheckpointError as error:
        assert error.received and error.fix


def msgpack_of(head: bytes, repeated: bytes, times: int) -> bytes:
    return head + repeated * times


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xdf\xff\xff\xff\xff", "can't be read"),
        (b"\xdd\xff\xff\xff\xff", "can't be read"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "can't be read"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "can't be read"),
        (b"\x81\xa1a" * 100_000 + b"\x80", "can't be read"),
        (b"\x81\xa1a" * 500 + b"\x80", "nested levels"),
        (b"\x82\xa1a\x01\xa1a\x02", "a name occurs twice"),
        (b"\x81\xa1a\xdc\xff\xff" + b"\x80" * 65535, "can't be read"),
        (b"\x81\x93\x01\x02\x03\x01", "can't be read"),
        (b"\x80\x80", "can't be read"),
        (pack({"a": {"kernel": np.zeros((2, 3), "f4")}}).replace(b"\x92\x02\x03", b"\x92\xff\x03"),
         "invalid shape"),
        (pack({"a": {"kernel": np.zeros((2, 3), "f4")}}).replace(b"float32", b"object_"),
         "unsupported dtype"),
        (pack({"a": {"kernel": np.zeros((2, 3), "f4")}}).replace(b"\x92\x02\x03", b"\x92\x7f\x7f"),
         "6 values for an array"),
    ],
)  # fmt: skip
def test_invalid_msgpack_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    make(tmp_path, "bert")
    (tmp_path / "flax_model.msgpack").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"flax_model\.msgpack") as caught:
        hf.read_weights(tmp_path)
    assert said in str(caught.value)


def test_chunked_msgpack_array_of_another_size_is_refused(tmp_path: Path) -> None:
    _, tensors = make(tmp_path, "bert")
    tree = flax_tree(tensors)
    chunks = {"0": np.zeros(4, "f4")}
    tree["bert"]["embeddings"]["word_embeddings"]["embedding"] = {
        "__msgpack_chunked_array__": True, "shape": {"0": 60000, "1": 60000}, "chunks": chunks,
    }  # fmt: skip
    (tmp_path / "flax_model.msgpack").write_bytes(pack(tree))
    with pytest.raises(CheckpointError, match="4 values for an array"):
        hf.read_weights(tmp_path)


def put(folder: Path, kind: str) -> None:
    """Puts a named pipe, folder, device or broken link in place of the weights."""
    path = folder / "model.safetensors"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(folder / "gone")


def test_paths_that_are_not_regular_files_are_refused_at_once(tmp_path: Path) -> None:
    kinds = ("a named pipe", "a folder", "a device", "No such file")
    names = ("model.safetensors", "tf_model.h5", "flax_model.msgpack", "config.json")
    pairs = [(kind, name) for kind in kinds for name in names]
    cases = {tmp_path / str(number): pair for number, pair in enumerate(pairs)}
    for folder, (kind, name) in cases.items():
        folder.mkdir()
        make(folder, "bert")
        (folder / name).unlink(missing_ok=True)
        put(folder, kind)
        (folder / "model.safetensors").rename(folder / name)
    answers = open_guarded(*cases)
    for (kind, name), said in zip(cases.values(), answers, strict=True):
        assert said.startswith("CheckpointError") and kind in said and name in said


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "tf_model.h5", "flax_model.msgpack", "config.json",
     "model-00001-of-00002.safetensors"],
)  # fmt: skip
def test_git_lfs_pointer_is_reported_as_one(tmp_path: Path, name: str) -> None:
    make(tmp_path, "bert")
    (tmp_path / name).write_bytes(LFS_POINTER)
    if "-of-" in name:
        (tmp_path / hf.INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="Git LFS pointer") as caught:
        hf.read_weights(tmp_path)
    assert "git lfs pull" in caught.value.fix and name in caught.value.problem
    if name != "config.json":
        with pytest.raises(CheckpointError, match="Git LFS pointer"):
            hf.check_weight_files(tmp_path)


def test_git_lfs_pointer_in_place_of_a_tokenizer_is_reported_as_one(tmp_path: Path) -> None:
    from core.errors import TokenizerError
    from core.tokenizer.loading import load

    (tmp_path / "tokenizer.json").write_bytes(LFS_POINTER)
    with pytest.raises(TokenizerError, match="git lfs pull"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", ".", "", "a\0b", "a\nb", 3, None, ["a"]]
)
@pytest.mark.parametrize("index", [hf.INDEX_FILE, "tf_model.h5.index.json"])
def test_index_may_only_name_files_in_its_own_folder(tmp_path: Path, index: str, name: Any) -> None:
    make(tmp_path, "bert")
    (tmp_path / index).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="lists a file outside its own folder"):
        hf.read_weights(tmp_path)


def safetensors_of(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_invalid_safetensors_are_refused(tmp_path: Path) -> None:
    def tensor(shape: int, *offsets: int) -> bytes:
        found = {"a": {"dtype": "F32", "shape": [shape], "data_offsets": offsets}}
        return safetensors_of(found, b"0000")

    contents = [
        struct.pack("<Q", (1 << 64) - 1) + b"{}",
        safetensors_of(b"[" * 100_000),
        tensor(1 << 62, 0, 4),
        tensor(-1, 0, 4),
        tensor(1, 4, 0),
        zlib.compress(b"{}" * 1000),
    ]
    folders = [tmp_path / str(number) for number in range(len(contents))]
    for folder, content in zip(folders, contents, strict=True):
        folder.mkdir()
        make(folder, "bert")
        (folder / "model.safetensors").write_bytes(content)
    for said in open_guarded(*folders):
        assert said.startswith("CheckpointError") and "model.safetensors" in said


def test_bfloat16_is_read_in_a_process_without_a_backend(tmp_path: Path) -> None:
    """Backends register bfloat16 with NumPy, so only a process without one shows a failure."""
    _, tensors = make(tmp_path, "bert")
    converted = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    save_file(converted, tmp_path / "model.safetensors")
    assert open_guarded(tmp_path) == ["read"]


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "uint16"])
def test_unsupported_dtype_is_reported_by_tensor_name(tmp_path: Path, dtype: str) -> None:
    _, tensors = make(tmp_path, "bert")
    name = "bert.embeddings.word_embeddings.weight"
    save_file({**tensors, name: tensors[name].astype(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has an unsupported dtype") as caught:
        hf.read_weights(tmp_path)
    assert name in caught.value.problem and "float32" in caught.value.expected


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.module.", "model.", "a.b."],
)
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "t5", "bart", "modernbert"])
def test_prefixes_of_wrapped_modules_are_ignored(tmp_path: Path, family: str, prefix: str) -> None:
    weights, tensors = make(tmp_path, family)
    renamed = {prefix + name: value for name, value in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    found = hf.read_weights(tmp_path)
    assert all(np.array_equal(found[path], value) for path, value in weights.items())


def test_submodule_compiled_by_itself_is_loaded(tmp_path: Path) -> None:
    weights, tensors = make(tmp_path, "bert")
    renamed = {name.replace("encoder.", "encoder._orig_mod."): one for name, one in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    found = hf.read_weights(tmp_path)
    assert all(np.array_equal(found[path], value) for path, value in weights.items())


def test_tensor_with_and_without_a_prefix_is_ambiguous(tmp_path: Path) -> None:
    _, tensors = make(tmp_path, "bert")
    name = "bert.embeddings.word_embeddings.weight"
    save_file({**tensors, f"module.{name}": tensors[name] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="twice") as caught:
        hf.read_weights(tmp_path)
    assert f"module.{name}" in caught.value.received


def test_all_tensors_are_checked_before_any_is_read(tmp_path: Path) -> None:
    """Only the header of the second of two files is damaged."""
    _, tensors = make(tmp_path, "bert")
    items = list(tensors.items())
    write_in_two(
        tmp_path, "model.safetensors", [dict(items[:5]), dict(items[5:])],
        lambda path, part: save_file(part, path),
    )  # fmt: skip
    hf.read_weights(tmp_path)
    second = tmp_path / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="model-00002"):
        hf.read_weights(tmp_path)


def test_missing_tensor_is_reported_by_name(tmp_path: Path) -> None:
    _, tensors = make(tmp_path, "bert")
    save_file(tensors, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    missing = sorted(found)[3]
    save_file({k: v for k, v in found.items() if k != missing}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        hf.read_weights(tmp_path)
    assert missing in caught.value.problem
