"""Tests that only what a workspace has signed is resumed, and what a stranger's mirror can do."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from core import TrainConfig, Workspace
from core.artifacts.checkpoint import checkpoint_name
from core.cli.main import main
from core.errors import ConfigError, StudioError
from core.processes.environment import for_isolated_runs, for_runs
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.runs import client
from core.targets.blobs import Inputs, upload_inputs
from core.targets.errors import ForeignMirrorError, MirrorError, UnsignedMirrorError
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.publisher import Publisher
from core.targets.schema import Exit, Input, RunSpec
from core.targets.signing import description_keys, run_keys
from core.targets.takeover import take_over, take_over_as_stranger
from core.workspace.confinement import check_readable
from core.workspace.keys import KEY_FILE, Keys, import_key, make_keys, read_keys
from core.workspace.manifests import MANIFEST_FILE, Manifest, describe_files, write_manifest
from tests.targets.test_mirror import RUN, lines, metrics


@pytest.fixture
def home(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "home")
    workspace.make_root()
    return workspace


def mirror_at(root: Path, workspace: Workspace | None = None) -> RunMirror:
    keys = run_keys(workspace.root, RUN) if workspace else None
    return RunMirror(open_store(f"file://{root}"), RUN, keys)


def add_checkpoint(mirror: RunMirror, folder: Path, step: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    files = describe_files(folder)
    counts = {"step": step}
    write_manifest(
        folder, Manifest("checkpoint", checkpoint_name(step), "", counts=counts, files=files)
    )
    mirror.upload_checkpoint(folder, 1, step)


def add_artifact(mirror: RunMirror, folder: Path, kind: str, field: str, **values: Any) -> Input:
    folder.mkdir(parents=True)
    (folder / "data.bin").write_bytes(b"data")
    files = {} if values else describe_files(folder)
    write_manifest(folder, Manifest(kind, folder.name, "0" * 16, files=files, **values))
    found = Inputs()
    found.add_folder(field, kind, folder)
    upload_inputs(mirror.store, found, None, lambda done, total: None)
    return found.inputs[0]


def describe(
    mirror: RunMirror, *inputs: Input, keys: Keys | None = None, signed_from: int = 1, **fields: Any
) -> None:
    config = {**TrainConfig(shards="rows").model_dump(mode="json"), **fields}
    signed = signed_from if keys else 0
    spec = RunSpec(
        id=RUN, stage="train", config=config, created=1.0, inputs=inputs, signed_from=signed
    )
    mirror.write_spec(spec, keys)


def write_run(mirror: RunMirror, tmp_path: Path, keys: Keys | None = None, **fields: Any) -> None:
    """Writes a run that has ended."""
    shards = add_artifact(mirror, tmp_path / "made/rows", "shards", "shards")
    describe(mirror, shards, keys=keys, **fields)
    mirror.claim(None)
    mirror.create_segment(1, 0, lines(metrics(5)))
    add_checkpoint(mirror, tmp_path / "checkpoint")
    mirror.write_exit(1, Exit(code=0, time=9.0, reason="saved"))


def test_key_is_private_made_once_and_taken_to_another_computer(
    home: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspaces = [str(home.root), str(tmp_path / "other")]
    printed = []
    for root in (*workspaces, *workspaces):
        assert main(["mirror", "key", "--workspace", root]) == 0
        printed.append(capsys.readouterr().out.strip())
    assert printed[:2] == printed[2:] and printed[0] != printed[1]
    assert stat.S_IMODE((home.root / KEY_FILE).stat().st_mode) == 0o600
    signature = make_keys(home.root).sign("name", b"data")
    assert main(["mirror", "key", "--import", printed[1], "--workspace", workspaces[0]]) == 0
    capsys.readouterr()
    main(["mirror", "key", "--workspace", workspaces[0]])
    assert capsys.readouterr().out.strip() == printed[1]
    assert read_keys(home.root).has_signed("name", b"data", signature)
    assert not read_keys(home.root).has_signed("other", b"data", signature)
    with pytest.raises(ConfigError, match="no key"):
        import_key(home.root, printed[1][:-1])
    with pytest.raises(ConfigError, match="no access"):
        check_readable(str(home.root / KEY_FILE), [home.root], field="path")


def test_run_is_resumed_only_with_the_key_that_signed_it(home: Workspace, tmp_path: Path) -> None:
    maker = Workspace(tmp_path / "maker")
    mirror = mirror_at(tmp_path / "mirror", maker)
    write_run(mirror, tmp_path, description_keys(maker.root, make=True))
    for adopt in (False, True):
        with pytest.raises(ForeignMirrorError, match="Another workspace"):
            client.resume_run(home, mirror.address, adopt=adopt)
    assert not list(home.runs.glob("*")) and not list(home.folder("shards").glob("*"))
    make_keys(home.root)
    import_key(home.root, make_keys(maker.root).format())
    record = take_over(home, mirror.address, {})
    folder = RunFolder.of(home, RUN)
    assert (record.id, record.is_isolated, record.config["shards"]) == (RUN, False, "rows")
    assert (folder.path / "checkpoints" / checkpoint_name(5)).is_dir()
    assert [one["step"] for one in read_events(folder.events)[0] if "step" in one] == [5]


def test_unsigned_mirror_is_adopted_once_by_the_user(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = mirror_at(tmp_path / "mirror")
    write_run(mirror, tmp_path)
    with pytest.raises(UnsignedMirrorError, match="--adopt"):
        client.resume_run(home, mirror.address)
    record = take_over(home, mirror.address, {}, adopt=True)
    folder = RunFolder.of(home, RUN)
    # The next process in this folder signs the description and all that it writes.
    Publisher(folder, record, mirror.store.address, lambda: None)._begin()
    assert mirror.read_signed_spec(description_keys(home.root))[1] == "own"
    own = RunMirror(mirror.store, RUN, run_keys(home.root, RUN), signed_from=2)
    assert own.read_claim(2).continues is not None
    with pytest.raises(MirrorError, match="isn't signed"):
        RunMirror(mirror.store, RUN, run_keys(tmp_path / "other", RUN), signed_from=2).read_claim(2)


@pytest.mark.parametrize("what", ["run.json", "claim", "segment", "checkpoint", "manifest", "exit"])
def test_forged_object_of_an_own_mirror_is_not_used(
    home: Workspace, tmp_path: Path, what: str
) -> None:
    mirror = mirror_at(tmp_path / "mirror", home)
    write_run(mirror, tmp_path, description_keys(home.root, make=True))
    root = tmp_path / "mirror/runs" / RUN
    forger = mirror_at(tmp_path / "mirror", Workspace(tmp_path / "forger"))
    if what == "run.json":
        values = json.loads((root / "run.json").read_text())
        values["config"]["checkpoint"] = "owner/private"
        (root / "run.json").write_text(json.dumps(values))
    elif what == "claim":
        forger.claim(None)
        forger.write_exit(2, Exit(code=0, time=9.0, reason="saved"))
    elif what == "segment":
        (root / "incarnations/000001/events/000000.jsonl").write_bytes(lines(metrics(7)))
    elif what == "checkpoint":
        add_checkpoint(forger, tmp_path / "forged", 9)
    elif what == "manifest":
        # Signed, but for another folder.
        folder = root / "incarnations/000001/checkpoints"
        shutil.copytree(folder / checkpoint_name(5), folder / checkpoint_name(7))
    else:
        (root / "incarnations/000001/exit.json").write_text('{"code": 0, "time": 1}')
    if what == "run.json":
        with pytest.raises(ForeignMirrorError):
            take_over(home, mirror.address, {})
        return
    if what == "exit":
        with pytest.raises(MirrorError, match="isn't signed"):
            RunMirror(mirror.store, RUN, run_keys(home.root, RUN)).read_exit(1)
        return
    if what in ("claim", "segment"):
        with pytest.raises(MirrorError, match="isn't signed"):
            take_over(home, mirror.address, {})
        return
    take_over(home, mirror.address, {})
    found = [path.name for path in (home.runs / RUN / "checkpoints").iterdir()]
    assert found == [checkpoint_name(5)]


def test_copy_of_a_strangers_run_has_its_own_id_folder_and_workspace(
    home: Workspace, tmp_path: Path
) -> None:
    mirror = mirror_at(tmp_path / "mirror")
    forged = add_artifact(mirror, tmp_path / "made/good", "evaluation", "tokenizer")
    named = add_artifact(mirror, tmp_path / "made/bert-base-uncased", "tokenizer", "tokenizer")
    shards = add_artifact(mirror, tmp_path / "made/rows", "shards", "shards")
    describe(mirror, forged, named, shards, output="/tmp/escaped", push_to_hub=True)
    mirror.claim(None)
    add_checkpoint(mirror, tmp_path / "checkpoint")
    before = sorted(path for path in (tmp_path / "mirror").rglob("*"))
    own = RunFolder.of(home, RUN)
    own.write_record(RunRecord(RUN, "train", {"shards": "mine"}, created=1.0))
    record = take_over_as_stranger(home, mirror.address, {})
    assert record.id != RUN and record.is_isolated
    assert own.read_record().config == {"shards": "mine"}
    folder = RunFolder.of(home, record.id)
    place = folder.isolated_workspace()
    assert [one.name for one in place.list("shards")] == ["rows"]
    kinds = ("shards", "tokenizer", "evaluation", "model")
    assert not [one for kind in kinds for one in home.list(kind)]
    assert not [one for kind in kinds[1:] for one in place.list(kind)]
    assert (folder.path / "checkpoints" / checkpoint_name(5)).is_dir()
    assert not record.config["mirror"] and not record.config["push_to_hub"]
    assert sorted(path for path in (tmp_path / "mirror").rglob("*")) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint": "owner/private"},
        {"tokenizer": "owner/private"},
        {"mixture": "rows=1,owner/private=1"},
        {"checkpoint": "gs://bucket/private"},
        {"tokenizer": "mine"},
        {"model_config_path": "/etc/passwd"},
        {"shards": "hf://datasets/owner/private", "brought": False},
        {"location": "/home/victim/rows"},
        {"location": "file:///home/victim/rows"},
        {"location": "gs://bucket/private"},
    ],
    ids=str,
)
def test_copy_that_needs_more_than_the_mirror_brought_is_refused(
    home: Workspace, tmp_path: Path, fields: dict[str, Any]
) -> None:
    mirror = mirror_at(tmp_path / "mirror")
    (home.folder("tokenizer") / "mine").mkdir(parents=True)
    is_brought = fields.pop("brought", True)
    location = {"location": fields.pop("location")} if "location" in fields else {}
    shards = add_artifact(mirror, tmp_path / "made/rows", "shards", "shards", **location)
    describe(mirror, *([shards] if is_brought else []), **fields)
    with pytest.raises(StudioError):
        take_over_as_stranger(home, mirror.address, {})
    assert not list(home.runs.glob("*"))
    if location:
        with pytest.raises(MirrorError, match="can't be used"):
            take_over(home, mirror.address, {}, adopt=True)


def test_strangers_run_gets_no_credentials(tmp_path: Path) -> None:
    secrets = {
        "HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "x", "SSH_AUTH_SOCK": "/run/agent",
        "GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "HF_HOME": "/home/me/hf",
        "HF_ENDPOINT": "http://there", "STUDIO_SSH_COMMAND": "x", "CLOUDSDK_CONFIG": "/gcloud",
        "STUDIO_PASS_ENVIRONMENT": "SSH_AUTH_SOCK", "STUDIO_RUN_KEY": "0" * 64,
    }  # fmt: skip
    given = {"HOME": "/home/me", "PATH": os.environ["PATH"], **secrets}
    found = for_isolated_runs(given, tmp_path)
    assert found["HOME"] == str(tmp_path) and found["HF_HUB_OFFLINE"] == "1"
    assert found["HF_HOME"].startswith(str(tmp_path))
    assert not (secrets.keys() - {"HF_HOME"}) & found.keys()
    assert "STUDIO_RUN_KEY" not in for_runs(given)


def test_links_of_a_shared_folder_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "one").write_text("private")
    store = open_store(f"file://{tmp_path}/mirror")
    store.write("a/one", b"shared")
    root = tmp_path / "mirror"
    (root / "linked").symlink_to(secret)
    (root / "a/two").symlink_to(secret / "one")
    os.mkfifo(root / "a/pipe")
    assert list(store.list_objects()) == ["a/one"] and not store.list_objects("linked")
    for name in ("linked/one", "a/two", "a/pipe"):
        assert store.read(name, 100) is None
        with pytest.raises(MirrorError, match="missing"):
            store.download(name, tmp_path / "copy", 100)
    for action in (store.write, store.create):
        with pytest.raises(StudioError, match="can't be read or written"):
            action("linked/new", b"x")
    store.write("a/two", b"replaced")
    store.remove(["linked/one"])
    assert [path.read_text() for path in secret.iterdir()] == ["private"]


def test_copied_folder_gives_its_run_no_variables(home: Workspace) -> None:
    variables = {"HF_ENDPOINT": "http://there", "JAX_PLATFORMS": "cpu"}
    folder = RunFolder.of(home, RUN)
    folder.write_record(RunRecord(RUN, "train", {}, created=1.0, environment=variables))
    assert folder.read_record().environment == variables
    other = Workspace(home.root.parent / "other")
    make_keys(other.root)
    shutil.copytree(folder.path, other.runs / RUN)
    assert RunFolder.of(other, RUN).read_record().environment == {"JAX_PLATFORMS": "cpu"}
    values = json.loads((folder.path / "run.json").read_text())
    values["environment"]["STUDIO_SSH_COMMAND"] = "touch /tmp/escaped"
    (folder.path / "run.json").write_text(json.dumps(values))
    assert folder.read_record().environment == {"JAX_PLATFORMS": "cpu"}


def test_manifest_of_another_kind_is_refused(home: Workspace, tmp_path: Path) -> None:
    mirror = mirror_at(tmp_path / "mirror")
    shards = add_artifact(mirror, tmp_path / "made/rows", "model", "shards")
    described = shards.model_copy(update={"kind": "shards"})
    describe(mirror, described)
    with pytest.raises(MirrorError, match="can't be used"):
        take_over_as_stranger(home, mirror.address, {})
    assert not list(home.root.rglob(MANIFEST_FILE))
