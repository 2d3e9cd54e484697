"""Fuzzing of manifests and shards: each yields sequences or a StudioError, within its folder."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from core.shards.protobuf import serialize_example, serialize_feature
from core.shards.records import frame
from core.workspace.manifests import Manifest, manifest_text
from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import (
    any_bytes,
    changed_json_file,
    json_text,
    mutated,
    paths_of,
    quoted,
)
from tests.fuzz.sandbox import Entry, Fifo, Files, Folder, Link
from tests.fuzz.valid import Artifacts

_FORMATS = ("bytes", "int64")
_NAMES = ("seal", "name", "files", "location", "kind", "counts", "../x", "/etc/passwd")


@st.composite
def manifests(draw: DrawFn, valid: bytes, paths: tuple[str, ...]) -> bytes:
    """Draws a changed manifest, most with a new checksum, so that they are accepted."""
    form = draw(st.integers(0, 9))
    values = json.loads(valid)
    values.pop("seal")
    if form < 5:
        text = draw(json_text(values, quoted(paths), names=_NAMES))
        return _sealed(text)
    if form < 8:
        return _sealed(json.dumps(_renamed(draw, values, paths)).encode("utf-8", "surrogatepass"))
    return draw(changed_json_file(valid, quoted(paths), _NAMES))


def _renamed(draw: DrawFn, values: dict[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """Puts a path in place of a name, a file name or a location."""
    path = draw(st.sampled_from(paths))
    place = draw(st.sampled_from(("name", "fingerprint", "location", "files", "files", "inputs")))
    if place == "files":
        old = draw(st.sampled_from(sorted(values["files"])))
        prefix = draw(st.sampled_from(("", "", "train/", "tokenizer/", "validation/../")))
        files = {prefix + path if name == old else name: entry
                 for name, entry in values["files"].items()}  # fmt: skip
        return {**values, "files": files}
    if place == "inputs":
        return {**values, "inputs": {path: path, "tokenizer": path}}
    return {**values, place: path}


def _sealed(text: bytes) -> bytes:
    """Adds the checksum that `manifest_text` adds, if the text ends like a JSON object."""
    from hashlib import sha256

    body = text.strip()
    if not body.endswith(b"}"):
        return text
    body = body[:-1].rstrip()
    seal = sha256(body).hexdigest().encode()
    return body + b',\n  "seal": "' + seal + b'"\n}\n'


def _below(folder: str, files: Files) -> dict[str, Entry]:
    return {f"{folder}/{name}": entry for name, entry in files.items()}


def test_arbitrary_artifact_manifest_is_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    paths = paths_of(str(worker.sandbox.canary), worker.trap)
    kinds = {"tokenizer": artifacts.tokenizers["unigram"], "shards": artifacts.shards("bytes")}

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        kind = draw(st.sampled_from(sorted(kinds)))
        files = kinds[kind]
        manifest = draw(manifests(files["manifest.json"], paths))
        shelf = {"tokenizer": "tokenizers", "shards": "shards"}[kind]
        placed = _below(f"{shelf}/one", {**files, "manifest.json": manifest})
        placed |= _below("shards/one", placed if shelf != "shards" else {})
        placed[f"{shelf}/other/manifest.json"] = draw(
            st.sampled_from((*[b"", b"{}", files["manifest.json"]] * 8, Fifo(), Folder()))
        )
        return Input(placed, {"kind": kind})

    explore(worker, "artifact manifest", "artifacts", inputs(), share)


def test_arbitrary_remote_manifest_is_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    paths = paths_of(str(worker.sandbox.canary), worker.trap)

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files: dict[str, Entry] = {**artifacts.shards(draw(st.sampled_from(_FORMATS)))}
        valid = files["manifest.json"]
        assert isinstance(valid, bytes)
        files["manifest.json"] = draw(manifests(valid, paths))
        form = draw(st.integers(0, 5))
        if form == 0:
            del files[draw(st.sampled_from(sorted(files)))]
        known = json.loads(valid)["fingerprint"]
        fingerprint = draw(st.sampled_from(("", "", "", known, "0/../../x")))
        return Input(_below("remote", files), {"fingerprint": fingerprint})

    explore(worker, "remote manifest", "remote", inputs(), share)


def _example(draw: DrawFn) -> bytes:
    """Draws a correctly framed record with arbitrary content."""
    kinds = st.integers(0, 4)
    contents = st.one_of(st.binary(max_size=40), st.just(bytes(32)), st.just(b"\x01" * 16))
    names = st.sampled_from(("input_ids", "attention_mask", "", "other", "input_ids"))
    features = draw(st.dictionaries(names, st.tuples(kinds, contents), max_size=3))
    parts = {name: serialize_feature(max(1, kind), data) for name, (kind, data) in features.items()}
    example = serialize_example(parts)
    if draw(st.integers(0, 3)) == 0:
        example = draw(mutated(example, 2))
    return frame(example)


@st.composite
def record_files(draw: DrawFn, valid: bytes) -> bytes:
    """Draws the bytes of a TFRecord file."""
    form = draw(st.integers(0, 9))
    if form < 5:
        return draw(mutated(valid))
    if form < 8:
        records = draw(st.integers(1, 3))
        return b"".join(_example(draw) for _ in range(records))
    if form == 8:
        return valid + _example(draw)
    return draw(any_bytes())


def test_arbitrary_records_with_a_manifest_are_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files: dict[str, Entry] = {**artifacts.shards(draw(st.sampled_from(_FORMATS)))}
        records = sorted(name for name in files if name.endswith(".tfrecord"))
        name = draw(st.sampled_from(records))
        valid = files[name]
        assert isinstance(valid, bytes)
        data = draw(record_files(valid))
        # The size from the manifest, so that the file is read.
        same = data[: len(valid)].ljust(len(valid), b"\0")
        special = (Fifo(), Folder(), Link("/dev/zero"), Link("nowhere"))
        form = draw(st.integers(0, 19))
        files[name] = special[form] if form < len(special) else same if form < 15 else data
        return Input(_below("shards", files))

    explore(worker, "shards with manifest", "shards", inputs(), share)


def test_arbitrary_records_without_a_manifest_are_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    places = ("", "train/", "validation/", "tokenizer/", "train/train/")
    stems = ("dataset-0-3", "dataset-1-0", "dataset-0-999999999999", "x-007-2", "dataset-0-1")

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        valid = artifacts.shards(draw(st.sampled_from(_FORMATS)))
        records = {name: data for name, data in valid.items() if name.endswith(".tfrecord")}
        files: dict[str, Entry] = dict(records) if draw(st.booleans()) else {}
        for _ in range(draw(st.integers(1, 2))):
            old = draw(st.sampled_from(sorted(records)))
            data = draw(record_files(records[old]))
            new = f"{draw(st.sampled_from(places))}{draw(st.sampled_from(stems))}.tfrecord"
            files[draw(st.sampled_from((old, old, new)))] = data
        return Input(_below("shards", files))

    explore(worker, "shards without manifest", "shards", inputs(), share)


_COUNT_TYPES = ("<i8", "<i4", ">i8", "<u8", "<f8", "?", "S8", "U2", "<c16", "V4", "M8[s]", "i8,i4")


def _arrays(size: int) -> SearchStrategy[bytes]:
    def made(kind: str, shape: Any, order: str) -> bytes:
        content = io.BytesIO()
        np.save(content, np.zeros(shape, np.dtype(kind), order), allow_pickle=False)
        return content.getvalue()

    shapes = st.sampled_from((size, size, size - 1, 0, (), (size, 1), (1, size), (2, 2, 2)))
    return st.builds(made, st.sampled_from(_COUNT_TYPES), shapes, st.sampled_from(("C", "F")))


def _headers() -> SearchStrategy[bytes]:
    """Draws arrays with unusual or invalid headers."""
    texts = st.sampled_from((
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i8', 'fortran_order': 1, 'shape': 3}", "[" * 5000, "{" * 300,
        "__import__('os')",
        "{'descr': [('a', '<i8')] * 9, 'fortran_order': False, 'shape': ()}", "", "'" * 60_000,
    ))  # fmt: skip
    return texts.map(
        lambda text: (
            b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)
        )
    )


@pytest.mark.parametrize("record_format", _FORMATS[:1])
def test_arbitrary_token_counts_are_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float, record_format: str
) -> None:
    valid = artifacts.shards(record_format)
    counts = valid["token_counts.npy"]
    contents = st.one_of(
        mutated(counts), mutated(counts, 1), _arrays(len(np.load(io.BytesIO(counts)))), _headers(),
        any_bytes(),
    )  # fmt: skip

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        data = draw(contents)
        files: dict[str, Entry] = {**valid, "token_counts.npy": data}
        manifest = json.loads(valid["manifest.json"])
        # The manifest matches, so that the counts are read.
        manifest["files"]["token_counts.npy"] = _entry(data)
        files["manifest.json"] = manifest_text(
            Manifest(**{name: manifest[name] for name in manifest if name != "seal"})
        ).encode()
        return Input(_below("shards", files))

    explore(worker, "token counts", "shards", inputs(), share)


def _entry(data: bytes) -> dict[str, Any]:
    from hashlib import sha256

    return {"bytes": len(data), "sha256": sha256(data).hexdigest()}
