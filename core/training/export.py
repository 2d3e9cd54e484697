"""Exports a run's best checkpoint as a model artifact, and to `output`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core.architecture.architecture import Architecture
from core.artifacts.checkpoint import (
    ARRAYS_FILE,
    CHECKPOINTS_FOLDER,
    STATE_FILE,
    TRAINING_CONFIG_FILE,
    saved_bytes,
    verify,
)
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError, StudioError
from core.foreign_files import check_inside
from core.messages.values import byte_count
from core.models.registry import count_parameters, size_of
from core.training.inputs import TrainingInputs
from core.workspace.atomic import commit_folder, sync
from core.workspace.manifests import (
    MANIFEST_FILE,
    Artifact,
    Manifest,
    describe_files,
    fingerprint_of_files,
    read_manifest,
)
from core.workspace.names import expand_path
from core.workspace.places import apply_umask_below
from core.workspace.workspace import Workspace

_NOT_EXPORTED = (STATE_FILE, ARRAYS_FILE, MANIFEST_FILE)
_LONGEST_NAME = 80
_SLOTS = 2


def check_destination(config: TrainConfig, workspace: Workspace, run: str) -> None:
    """Checks that `name` and `output` are free, or this run's."""
    if _own_models(workspace, run):
        return
    if config.name:
        workspace.check_new_name("model", config.name)
    check_output(config)


def check_output(config: TrainConfig) -> None:
    """Raises ConfigError unless `output` is unset, empty or missing."""
    if config.output:
        _check_output(_output_of(config))


def export_model(
    config: TrainConfig,
    workspace: Workspace,
    inputs: TrainingInputs,
    *,
    checkpoint: Path,
    counts: Mapping[str, float],
    run: str,
) -> Artifact:
    """Exports a checkpoint without optimizer state, unless already exported.

    Raises:
        CheckpointError: The checkpoint is damaged.
        OSError: The disk is full.
    """
    artifact = _find_own(workspace, run, counts)
    if artifact is None:
        verify(checkpoint)
        with workspace.new_artifact("model", wanted_name(config, inputs), exact=False) as draft:
            _copy_files(checkpoint, draft.folder)
            values = config.model_dump(mode="json")
            text = json.dumps(values, indent=2, ensure_ascii=False)
            (draft.folder / TRAINING_CONFIG_FILE).write_text(text + "\n", "utf-8")
            draft.config = values
            draft.inputs = inputs.fingerprints
            draft.counts = dict(counts)
            draft.run = run
        artifact = draft.artifact
    assert artifact is not None
    copy_to_output(config, artifact)
    return artifact


def copy_to_output(config: TrainConfig, artifact: Artifact) -> None:
    """Copies a model to `output`, if that is set; raises ConfigError if the folder isn't empty."""
    if config.output:
        _copy_to(artifact, _output_of(config))


def check_room(config: TrainConfig, architecture: Architecture, folder: Path) -> None:
    """Raises RunError if the disk is too small."""
    parameters = count_parameters(architecture)
    checkpoint = _checkpoint_bytes(parameters)
    saved = saved_bytes(folder / CHECKPOINTS_FOLDER)
    needed = checkpoint_disk_bytes(config, parameters) - saved
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise RunError(
            "There is too little disk space for this run's checkpoints",
            expected=f"{byte_count(needed)} free, for the {config.save_total_limit} newest "
            f"checkpoints, the best one and one being written, {byte_count(checkpoint)} each"
            + (f", minus {byte_count(saved)} already saved" if saved else ""),
            received=f"{byte_count(free)} free at {existing}",
            fix="delete runs or artifacts, lower ⟬save_total_limit⟭, or use a workspace on another "
            "disk",
        )


def checkpoint_disk_bytes(config: TrainConfig, parameters: int) -> int:
    """Estimates checkpoints' and model's peak disk usage."""
    return _checkpoint_bytes(parameters) * (config.save_total_limit + 2) + parameters * 4


def _checkpoint_bytes(parameters: int) -> int:
    return parameters * 4 * (1 + _SLOTS)


def evaluated_artifact(checkpoint: Path, figures: Mapping[str, float]) -> Artifact:
    """Wraps a checkpoint as an artifact with validation metrics."""
    if (checkpoint / MANIFEST_FILE).is_file():
        manifest = replace(read_manifest(checkpoint), kind="model")
    else:
        files = describe_files(checkpoint)
        fingerprint = fingerprint_of_files(files)
        manifest = Manifest(
            kind="model", name=checkpoint.name, fingerprint=fingerprint, files=files
        )
    return Artifact(checkpoint, replace(manifest, counts=dict(figures)))


def wanted_name(config: TrainConfig, inputs: TrainingInputs) -> str:
    return config.name or _derived_name(inputs)


def _derived_name(inputs: TrainingInputs) -> str:
    layers, width = inputs.architecture.num_hidden_layers, inputs.architecture.hidden_size
    size = size_of(inputs.architecture) or f"{layers}x{width}"
    name = f"{inputs.architecture.model_type}-{size}-{inputs.shards.path.name}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST_NAME]


def _own_models(workspace: Workspace, run: str) -> list[Artifact]:
    return [model for model in workspace.list("model") if model.manifest.run == run]


def _find_own(workspace: Workspace, run: str, counts: Mapping[str, float]) -> Artifact | None:
    for model in _own_models(workspace, run):
        if model.manifest.counts.get("num_train_steps") == counts["num_train_steps"]:
            return model
    return None


def _output_of(config: TrainConfig) -> Path:
    return expand_path(config.output).resolve()


def _check_output(output: Path) -> None:
    inside = output.iterdir() if output.is_dir() else iter(())
    # A freshly formatted disk has lost+found.
    ignored = (_draft_for(output), output / "lost+found")
    held = [path for path in inside if path not in ignored]
    if held or output.is_file():
        raise ConfigError(
            f"The output folder {output} isn't empty",
            expected="an empty folder, or one that doesn't exist yet",
            received=f"{len(held)} files" if held else "a file",
            fix="set ⟬output⟭ to another folder",
            field="output",
        )
    parent = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(
            f"The output folder {output} can't be created",
            expected="a writable parent folder",
            received=f"{parent}, which " + ("isn't writable" if parent.is_dir() else "is a file"),
            fix="set ⟬output⟭ to another folder",
            field="output",
        )


def _copy_files(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.name not in _NOT_EXPORTED:
            shutil.copyfile(check_inside(path, source), target / path.name)


def _copy_to(artifact: Artifact, output: Path) -> None:
    if (output / MANIFEST_FILE).is_file() and _same(artifact, output):
        return
    draft = _draft_for(output)
    if not draft.exists() and not _is_of_same_run(artifact, output):
        _check_output(output)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shutil.copytree(artifact.path, draft)
        _commit_copy(draft, output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _draft_for(output: Path) -> Path:
    return (output if output.is_dir() else output.parent) / f".{output.name}.draft"


def _commit_copy(draft: Path, output: Path) -> None:
    """Keeps an existing folder, which may be a mount point; moves the manifest last."""
    if not output.is_dir():
        commit_folder(draft, output)
        return
    (output / MANIFEST_FILE).unlink(missing_ok=True)
    for path in draft.iterdir():
        apply_umask_below(path)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        sync(path)
        path.replace(output / path.name)
    sync(output)


def _is_of_same_run(artifact: Artifact, output: Path) -> bool:
    try:
        return bool(artifact.manifest.run) and read_manifest(output).run == artifact.manifest.run
    except StudioError:
        return False


def _same(artifact: Artifact, output: Path) -> bool:
    try:
        return read_manifest(output).fingerprint == artifact.fingerprint
    except StudioError:
        return False
