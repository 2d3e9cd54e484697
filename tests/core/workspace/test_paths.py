"""File names from untrusted sources, and the paths they may become."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from core.errors import RunError, ShardError, StudioError
from core.records.events import Reporter
from core.records.folder import RunFolder
from core.storage.files import fetch_shards
from core.workspace.manifests import (
    Manifest,
    damaged_files,
    manifest_text,
    parse_manifest,
    read_manifest,
)
from core.workspace.names import UnsafePathError, flaw_of_name, flaw_of_names, path_inside
from core.workspace.workspace import Workspace

SHA = "0" * 64
BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/../x",
    "a/./x",
    "a//x",
    "/etc/passwd",
    "a/",
    "a\\b",
    "..\\x",
    "a\0b",
    "a\nb",
    "a\x1bb",
    "a\u2028b",
    "a\udc80b",
    ".git/config",
    "a/.hidden",
    "~root/x",
    "x" * 256,
    "/".join("x" * 50 for _ in range(30)),
    "/".join("x" * 40),
    7,
    None,
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
def test_unsafe_name_does_not_become_a_path(tmp_path: Path, name: object) -> None:
    with pytest.raises(UnsafePathError, match="not accepted"):
        path_inside(tmp_path, name, "The manifest")


@pytest.mark.parametrize("name", ["a", "train/dataset-0-1.tfrecord", "x y/é.json", "a..b", "a:b"])
def test_ordinary_name_becomes_a_path_below_the_folder(tmp_path: Path, name: str) -> None:
    assert path_inside(tmp_path, name, "The manifest") == tmp_path / name


def test_link_out_of_the_folder_is_refused_and_one_within_is_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "out").symlink_to(elsewhere)
    (folder / "inner").mkdir()
    (folder / "in").symlink_to("inner")
    with pytest.raises(UnsafePathError, match="outside"):
        path_inside(folder, "out/x", "The manifest")
    assert path_inside(folder, "in/x", "The manifest") == folder / "in/x"
    assert path_inside(folder, "out/x", "The manifest", roots=[elsewhere]) == folder / "out/x"


@pytest.mark.parametrize(
    "names", [["a", "A"], ["a", "a/b"], ["\u00e9", "e\u0301"], ["a/b", "A/B"], ["x", "X/y"]]
)
def test_names_that_collide_on_some_file_systems_are_refused(names: list[str]) -> None:
    assert all(not flaw_of_name(name) for name in names)
    assert flaw_of_names(names)


def _text(**changes: object) -> bytes:
    values = {
        "kind": "shards",
        "name": "x",
        "fingerprint": "0123456789abcdef",
        "files": {"train/dataset-0-1.tfrecord": {"bytes": 1, "sha256": SHA}},
    }
    return json.dumps({**values, **changes}).encode()


def _file(**changes: object) -> dict[str, object]:
    return {"files": {"a": {"bytes": 1, "sha256": SHA, **changes}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "0/../../../../x"},
        {"fingerprint": "0123456789ABCDEF"},
        {"fingerprint": "0123456789abcdef\n"},
        {"fingerprint": 7},
        {"name": "../x"},
        {"name": "a\0b"},
        {"kind": "../x"},
        {"run": "../../x"},
        {"run": ".hidden"},
        {"location": "a\nb"},
        {"created": -1},
        {"inputs": {"tokenizer": 7}},
        {"counts": []},
        {"files": []},
        {"files": {"../x": {"bytes": 1, "sha256": SHA}}},
        {"files": {"x/manifest.json": {"bytes": 1, "sha256": SHA}}},
        {"files": {"a": {"bytes": 1, "sha256": SHA}, "A": {"bytes": 1, "sha256": SHA}}},
        {"files": {str(n): {"bytes": 1 << 49, "sha256": SHA} for n in range(5)}},
        _file(bytes=-1),
        _file(bytes=1.5),
        _file(bytes="1"),
        _file(bytes=True),
        _file(bytes=1 << 60),
        _file(sha256="x"),
        _file(sha256=None),
        {"files": {"a": 7}},
        {"files": {"a": {}}},
    ],
    ids=lambda changes: ascii(changes)[:40],
)
def test_manifest_that_violates_the_schema_is_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    assert parse_manifest(_text()).fingerprint == "0123456789abcdef"
    with pytest.raises(ValueError, match=r"."):
        parse_manifest(_text(**changes))
    (tmp_path / "manifest.json").write_bytes(_text(**changes))
    with pytest.raises(StudioError, match="can't be read"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{}", b"\xff", b"", b"1" * 5000])
def test_invalid_manifest_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(StudioError, match="can't be read"):
        read_manifest(tmp_path)


def test_pipe_in_place_of_a_manifest_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(StudioError, match="can't be read"):
        read_manifest(tmp_path)


def test_manifest_round_trips() -> None:
    files = {"train/dataset-0-1.tfrecord": {"bytes": 1, "sha256": SHA}}
    made = Manifest("shards", "a b", "0" * 16, counts={"loss": float("inf")}, files=files, run="r")
    assert parse_manifest(manifest_text(made).encode()) == made


@pytest.mark.parametrize(
    "fingerprint", ["0/../../../../../escaped", "/../../../../escaped", "0" * 15, ""]
)
def test_fetched_shards_write_nothing_outside_the_cache(tmp_path: Path, fingerprint: str) -> None:
    """Attack: the fingerprint of a manifest used to be part of the copy's path."""
    content = b"import this"
    name = "sitecustomize.py"
    files = {name: {"bytes": len(content), "sha256": _sha256(content)}}
    address = f"memory://attack/{abs(hash(fingerprint))}"
    store = MemoryFileSystem()
    store.pipe_file(f"{address}/{name}", content)
    store.pipe_file(
        f"{address}/manifest.json",
        manifest_text(Manifest("shards", "x", fingerprint, files=files)).encode(),
    )
    with pytest.raises(ShardError, match="can't be used"):
        fetch_shards(address, Workspace(tmp_path / "a" / "b" / "workspace"), Reporter())
    assert not list(tmp_path.rglob(name))


def test_link_in_the_cache_does_not_lead_a_download_out(tmp_path: Path) -> None:
    content, name = b"text", "train/dataset-0-1.tfrecord"
    made = Manifest(
        "shards",
        "x",
        "0" * 16,
        files={name: {"bytes": len(content), "sha256": _sha256(content)}},
    )
    store = MemoryFileSystem()
    store.pipe_file(f"memory://linked/{name}", content)
    store.pipe_file("memory://linked/manifest.json", manifest_text(made).encode())
    workspace = Workspace(tmp_path / "workspace")
    copy, elsewhere = workspace.cache / "shards" / f"x-{'0' * 16}", tmp_path / "elsewhere"
    copy.mkdir(parents=True)
    elsewhere.mkdir()
    (copy / "train").symlink_to(elsewhere)
    with pytest.raises(UnsafePathError, match="outside"):
        fetch_shards("memory://linked", workspace, Reporter())
    assert not list(elsewhere.iterdir())


def test_file_larger_than_its_manifest_says_is_refused(tmp_path: Path) -> None:
    name = "train/dataset-0-1.tfrecord"
    made = Manifest("shards", "x", "1" * 16, files={name: {"bytes": 10, "sha256": SHA}})
    store = MemoryFileSystem()
    store.pipe_file(f"memory://large/{name}", b"x" * (20 << 20))
    store.pipe_file("memory://large/manifest.json", manifest_text(made).encode())
    with pytest.raises(ShardError, match="larger than expected"):
        fetch_shards("memory://large", Workspace(tmp_path), Reporter())
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def test_download_larger_than_the_free_disk_space_does_not_start(tmp_path: Path) -> None:
    made = Manifest("shards", "x", "2" * 16, files={"train/a": {"bytes": 1 << 49, "sha256": SHA}})
    MemoryFileSystem().pipe_file("memory://huge/manifest.json", manifest_text(made).encode())
    with pytest.raises(ShardError, match="too little disk space"):
        fetch_shards("memory://huge", Workspace(tmp_path), Reporter())


def test_damage_check_reads_no_file_outside_the_folder(tmp_path: Path) -> None:
    made = Manifest("shards", "x", "", files={"../secret": {"bytes": 1, "sha256": SHA}})
    with pytest.raises(UnsafePathError, match="not accepted"):
        damaged_files(tmp_path, made)


@pytest.mark.parametrize("run_id", ["../../x", "", ".", "a/b", "a\0", ".x", "x" * 300])
def test_unsafe_run_id_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(RunError, match="run id is not valid"):
        RunFolder.of(Workspace(tmp_path), run_id)


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
