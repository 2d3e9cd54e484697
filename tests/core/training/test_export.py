"""The disk space a run requires, and the copy of its model."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.errors import ConfigError, RunError
from core.families.roberta import RobertaArchitecture
from core.models.registry import count_parameters
from core.training.export import (
    check_destination,
    check_room,
    checkpoint_disk_bytes,
    export_model,
)
from core.workspace.manifests import (
    Artifact,
    Manifest,
    damaged_files,
    describe_files,
    read_manifest,
    write_manifest,
)
from core.workspace.workspace import Workspace

_ARCHITECTURE = RobertaArchitecture(64, 16, 1, 2, 32, 18, 1)


def _export(workspace: Workspace, output: str, steps: int = 5) -> Artifact:
    """Exports a run's model after some steps."""
    checkpoint = workspace.runs / "mine" / "checkpoints" / f"step-{steps:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"w" * steps)
    files = describe_files(checkpoint)
    write_manifest(checkpoint, Manifest("checkpoint", checkpoint.name, "", files=files))
    inputs: Any = SimpleNamespace(fingerprints={"shards": "a", "tokenizer": "b"})
    config = TrainConfig(name="model", output=output)
    return export_model(
        config,
        workspace,
        inputs,
        checkpoint=checkpoint,
        counts={"num_train_steps": steps},
        run="mine",
    )


def _leave_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_resumed_run_may_use_the_space_of_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig()
    needed = checkpoint_disk_bytes(config, count_parameters(_ARCHITECTURE))
    _leave_free(monkeypatch, needed)
    check_room(config, _ARCHITECTURE, tmp_path)
    checkpoint = tmp_path / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"x" * 1000)
    _leave_free(monkeypatch, needed - 1000)
    check_room(config, _ARCHITECTURE, tmp_path)
    _leave_free(monkeypatch, needed - 1001)
    with pytest.raises(RunError, match=r"too little disk space.*already saved"):
        check_room(config, _ARCHITECTURE, tmp_path)


def test_existing_output_folder_is_kept_and_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be mounted there."""
    workspace, output = Workspace(tmp_path / "studio"), tmp_path / "out"
    output.mkdir()
    place = output.stat().st_ino
    monkeypatch.chdir(output)
    for steps in (5, 9):
        model = _export(workspace, ".", steps)
        assert output.stat().st_ino == place
        assert read_manifest(output) == model.manifest
        assert damaged_files(output, model.manifest) == []
        names = sorted(path.name for path in model.path.iterdir())
        assert sorted(path.name for path in output.iterdir()) == names


def test_target_folder_of_a_link_is_created(tmp_path: Path) -> None:
    link, output = tmp_path / "link", tmp_path / "disk" / "out"
    link.symlink_to(output)
    model = _export(Workspace(tmp_path / "studio"), str(link))
    assert damaged_files(output, model.manifest) == [] and link.is_symlink()
    assert not list(output.parent.glob(".*"))


def test_remains_of_an_interrupted_copy_are_replaced(tmp_path: Path) -> None:
    workspace, output = Workspace(tmp_path / "studio"), tmp_path / "out"
    (output / ".out.draft").mkdir(parents=True)
    (output / "lost+found").mkdir()  # A newly formatted disk has this folder.
    check_destination(TrainConfig(output=str(output)), workspace, "another")
    (output / "config.json").write_text("of a copy that was cut short")
    with pytest.raises(ConfigError, match="isn't empty"):
        check_destination(TrainConfig(output=str(output)), workspace, "another")
    model = _export(workspace, str(output))
    assert damaged_files(output, model.manifest) == []
    assert not (output / ".out.draft").exists()
