"""Workspaces: an artifact appears complete or not at all."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.errors import ConfigError, StudioError
from core.workspace.atomic import remove_folder, write_atomically
from core.workspace.locks import single_instance
from core.workspace.manifests import (
    Artifact,
    Manifest,
    damaged_files,
    manifest_text,
    read_manifest,
    write_manifest,
)
from core.workspace.names import check_name
from core.workspace.workspace import Workspace


def make_artifact(workspace: Workspace, name: str = "one", text: str = "content") -> Artifact:
    with workspace.new_artifact("tokenizer", name) as draft:
        (draft.folder / "part").mkdir()
        (draft.folder / "part" / "file.txt").write_text(text)
    assert draft.artifact
    return draft.artifact


def test_artifact_is_found_by_name_and_by_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    by_name = workspace.find("tokenizer", "one")
    assert workspace.find("tokenizer", str(by_name.path)) == by_name
    assert by_name.manifest.files["part/file.txt"]["bytes"] == len("content")


def test_renamed_or_copied_artifact_has_the_name_of_its_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    shelf = workspace.folder("tokenizer")
    shutil.copytree(shelf / "one", shelf / "backup")
    (shelf / "one").rename(shelf / "kept")
    listed = workspace.list("tokenizer")
    assert sorted(one.name for one in listed) == ["backup", "kept"]
    assert all(workspace.find("tokenizer", one.name) == one for one in listed)
    assert listed[0].fingerprint == listed[1].fingerprint
    assert '"name": "one"' in (shelf / "kept" / "manifest.json").read_text()


def test_failed_draft_leaves_nothing_behind(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(ValueError), workspace.new_artifact("tokenizer", "one") as draft:
        (draft.folder / "half").write_text("x")
        raise ValueError
    assert list(workspace.folder("tokenizer").iterdir()) == []


def test_taken_name_is_refused_and_the_existing_artifact_stays(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace, text="first")
    with pytest.raises(ConfigError, match="taken") as caught:
        make_artifact(workspace, text="second")
    assert caught.value.field == "name"
    assert (workspace.find("tokenizer", "one").path / "part/file.txt").read_text() == "first"


def test_draft_of_a_killed_process_is_removed_and_a_locked_draft_is_not(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys; from core.workspace import Workspace\n"
        "with Workspace(sys.argv[1]).new_artifact('shards', 'big') as draft:\n"
        "    (draft.folder / 'train').write_text('x')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    workspace = Workspace(tmp_path)
    (left,) = workspace.folder("shards").glob(".*")

    def begin() -> list[Path]:
        with workspace.new_artifact("shards", "other"):
            found = list(workspace.folder("shards").glob(".big.*"))
        shutil.rmtree(workspace.folder("shards") / "other")
        return found

    assert begin() == [left]  # It may be new and not locked yet.
    long_ago = time.time() - 3600
    os.utime(left, (long_ago, long_ago))
    with workspace.new_artifact("shards", "big") as draft:
        assert not left.exists()
        os.utime(draft.folder, (long_ago, long_ago))
        assert begin() == [draft.folder]
    assert [path.name for path in workspace.folder("shards").iterdir()] == ["big"]


def test_two_drafts_of_the_same_name_get_different_names(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "one", exact=False) as first:
        (first.folder / "file").write_text("first")
        with workspace.new_artifact("tokenizer", "one", exact=False) as second:
            (second.folder / "file").write_text("second")
    assert (tmp_path / "tokenizers" / "one" / "file").read_text() == "second"
    assert (tmp_path / "tokenizers" / "one-2" / "file").read_text() == "first"
    assert workspace.find("tokenizer", "one-2").name == "one-2"


def test_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from core.workspace import single_instance\n"
        "with single_instance(Path(sys.argv[1]), 'app'): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "app.lock")]
    with single_instance(tmp_path / "app.lock", "app"):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Another app is using this workspace" in second.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_free_names_are_numbered(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.free_name("tokenizer", "one") == "one"
    make_artifact(workspace)
    assert workspace.free_name("tokenizer", "one") == "one-2"


def test_equal_content_has_equal_fingerprints(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace, "one")
    make_artifact(workspace, "two")
    make_artifact(workspace, "three", text="other")
    prints = [workspace.find("tokenizer", name).fingerprint for name in ("one", "two", "three")]
    assert prints[0] == prints[1] != prints[2]


def test_missing_artifact_error_lists_the_existing_ones(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    with pytest.raises(ConfigError, match=r"tokenizer 'two' was not found.*one"):
        workspace.find("tokenizer", "two")


def test_long_list_of_artifacts_is_marked_as_cut(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for number in range(11):
        make_artifact(workspace, f"words{number}")
    with pytest.raises(ConfigError, match=r"one of (words\d+, ){9}words\d+ and 1 more, or"):
        workspace.find("tokenizer", "two")


def test_missing_artifact_error_tells_what_to_do(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(ConfigError, match="existing name, or make one first"):
        workspace.find("corpus", "web")
    with pytest.raises(ConfigError, match="No shards were named") as caught:
        workspace.find("shards", "")
    assert (caught.value.field, caught.value.received) == ("shards", "nothing")


def test_artifact_of_another_kind_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    with pytest.raises(ConfigError, match="kind"):
        workspace.find("shards", str(workspace.find("tokenizer", "one").path))


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 97, "ä"])
def test_invalid_folder_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)


def test_damaged_file_is_named(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    artifact = workspace.find("tokenizer", "one")
    assert damaged_files(artifact.path, artifact.manifest) == []
    (artifact.path / "part/file.txt").write_text("c0ntent")
    assert damaged_files(artifact.path, artifact.manifest) == ["file.txt has a wrong checksum"]


def test_damaged_manifest_is_named(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_artifact(workspace)
    (workspace.folder("tokenizer") / "one" / "manifest.json").write_text("{")
    with pytest.raises(StudioError, match=r"manifest\.json"):
        workspace.find("tokenizer", "one")


@pytest.mark.parametrize(
    "value",
    ['"\\ud800"', '{"\\uDFFF": 1}', "[" * 300 + "]" * 300, "9" * 20, "1" * 400, "1" * 5000],
)
def test_manifest_with_values_that_nothing_holds_is_refused(tmp_path: Path, value: str) -> None:
    fields = '"kind": "tokenizer", "name": "one", "fingerprint": "0", "files": {}, "counts": {}'
    (tmp_path / "manifest.json").write_text(f'{{{fields}, "config": {{"a": {value}}}}}')
    with pytest.raises(StudioError, match=r"manifest\.json can't be read") as caught:
        manifest_text(read_manifest(tmp_path))
    said = str(caught.value)
    assert "surrogates" in said or "nested" in said or "too large" in said or "4300" in said


def test_paths_outside_the_workspace_are_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    workspace.confine(str(workspace.root / "uploads" / "a.txt"), field="path")
    for outside in ("/etc/passwd", str(workspace.root / ".." / "secret"), "~/.ssh/id_rsa"):
        with pytest.raises(ConfigError) as caught:
            workspace.confine(outside, field="path")
        assert caught.value.field == "path"
    monkeypatch.setenv("STUDIO_ALLOWED_PATHS", str(tmp_path / "data"))
    workspace.confine(str(tmp_path / "data" / "a.txt"), field="path")


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "local:///etc/passwd",
        "simplecache::file:///etc/passwd",
        "zip://x::/etc/secrets.zip",
        "gs://bucket/x::file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "FILE:///etc/passwd",
    ],
)
def test_url_that_leads_to_the_local_machine_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="has no access to"):
        Workspace(tmp_path).confine(address, field="path")


def test_object_store_urls_are_allowed(tmp_path: Path) -> None:
    for address in ("gs://bucket/rows", "s3://bucket/rows", "hf://datasets/user/rows"):
        Workspace(tmp_path).confine(address, field="path")


def test_link_out_of_the_workspace_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    workspace.root.mkdir()
    (workspace.root / "link").symlink_to("/etc")
    with pytest.raises(ConfigError):
        workspace.confine(str(workspace.root / "link" / "passwd"), field="path")


def test_remains_of_a_killed_delete_are_removed_and_do_not_stop_the_next_delete(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    artifact = make_artifact(workspace)
    left = artifact.path.with_name(".one.0123.deleted")
    shutil.copytree(artifact.path, left)
    remove_folder(artifact.path)
    assert not list(workspace.folder("tokenizer").iterdir())
    shutil.copytree(make_artifact(workspace).path, left)
    with workspace.new_artifact("tokenizer", "two"):
        assert not left.exists()


def test_error_of_an_atomic_write_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomically(tmp_path / "missing" / "a.csv", "text")
    assert error.value.filename == str(tmp_path / "missing" / "a.csv")


def test_atomic_write_follows_links_and_writes_to_pipes(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "file.json")
    for text in ("one", "two"):
        write_atomically(tmp_path / "link.json", text)
        assert (tmp_path / "real" / "file.json").read_text() == text
    assert (tmp_path / "link.json").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        write_atomically(tmp_path / "pipe", "through")
        assert read.result() == "through"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("path", ["x" * 256, "a/" + "é" * 200, "a/" * 3000, "a\0b"])
def test_impossible_path_is_refused(tmp_path: Path, path: str) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(ConfigError, match="path is not valid") as caught:
        workspace.find("model", path)
    assert caught.value.field == "model"
    with pytest.raises(ConfigError, match="path is not valid"):
        workspace.confine(path, field="path")


def test_home_of_an_unknown_user_is_read_as_a_folder_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The model .* was not found"):
        Workspace(tmp_path).find("model", "~nobody-is-called-so/model")


@pytest.mark.parametrize("pattern", ["l*k/../secret.txt", "l?nk/../*.txt", "**/../secret.txt"])
def test_pattern_cannot_leave_the_workspace_through_a_link(tmp_path: Path, pattern: str) -> None:
    workspace = Workspace(tmp_path / "workspace")
    workspace.root.mkdir()
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (tmp_path / "elsewhere" / "secret.txt").write_text("secret")
    (workspace.root / "link").symlink_to(tmp_path / "elsewhere" / "folder")
    with pytest.raises(ConfigError, match="has no access to"):
        workspace.confine(str(workspace.root / pattern), field="path")


def test_pattern_within_the_workspace_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one")
    Workspace(tmp_path).confine(str(tmp_path / "*" / "../texts/*.txt"), field="path")


@pytest.mark.parametrize(
    "location", ["/etc", "file:///etc", "../../etc", "https://127.0.0.1/x", "memory://x"]
)
def test_manifest_cannot_lead_the_web_app_to_other_locations(tmp_path: Path, location: str) -> None:
    workspace = Workspace(tmp_path / "workspace")
    for folder in (workspace.folder("shards") / "far", workspace.uploads / "far"):
        folder.mkdir(parents=True)
        write_manifest(folder, Manifest("shards", "far", "0" * 16, location=location))
    for reference in ("far", str(workspace.uploads / "far")):
        with pytest.raises(ConfigError, match=r"has no access to|invalid location"):
            workspace.confine_artifact("shards", reference, field="shards")


def test_manifest_may_name_an_allowed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_ALLOWED_PATHS", str(tmp_path / "data"))
    workspace = Workspace(tmp_path / "workspace")
    folder = workspace.folder("shards") / "far"
    folder.mkdir(parents=True)
    write_manifest(
        folder, Manifest("shards", "far", "0" * 16, location=str(tmp_path / "data" / "x"))
    )
    workspace.confine_artifact("shards", "far", field="shards")
