"""Finds the evaluations of a model in a workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.config.evaluate import EvaluateConfig, options_read
from core.errors import StudioError
from core.models.weights import find_weight_files
from core.records.folder import RunFolder
from core.workspace.manifests import Manifest, fingerprint_of_files, hash_file
from core.workspace.workspace import Workspace


def fingerprint_of_weights(folder: Path) -> str:
    """Returns 16 hex digits of a model's weights, equal for a checkpoint and its export."""
    paths, _ = find_weight_files(folder)
    return fingerprint_of_files({path.name: {"sha256": hash_file(path)} for path in paths})


def find_evaluations(folder: Path, workspace: Workspace) -> list[Manifest]:
    """Returns a model's newest evaluation for each data set and choice of options."""
    newest: dict[tuple[Any, ...], Manifest] = {}
    evaluations = workspace.list("evaluation")
    fingerprint = fingerprint_of_weights(folder) if evaluations else ""
    for evaluation in evaluations:
        manifest = evaluation.manifest
        if manifest.inputs.get("model") == fingerprint:
            newest.setdefault(_measured(manifest, workspace), manifest)
    return list(newest.values())


def read_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stored settings that have an effect on the figures; later ones by default."""
    names = options_read(str(config.get("task")), has_path=bool(config.get("path")))
    defaults = {name: EvaluateConfig.model_fields[name].default for name in names}
    return {name: config.get(name, default) for name, default in defaults.items()}


def _measured(manifest: Manifest, workspace: Workspace) -> tuple[Any, ...]:
    settings = read_settings(manifest.config)
    if path := settings.get("path"):
        settings["path"] = _absolute(str(path), manifest.run, workspace)
    return tuple(settings.items())


def _absolute(path: str, run: str, workspace: Workspace) -> str:
    """Returns a path in the run's working folder, or the same if that is unknown."""
    with suppress(StudioError):
        folder = RunFolder.of(workspace, run).read_record().cwd
        return os.path.normpath(Path(folder, os.path.expanduser(path))) if folder else path
    return path
