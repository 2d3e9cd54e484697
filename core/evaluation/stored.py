"""Finds the evaluations of a model in a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.models.weights import find_weight_files
from core.workspace import Manifest, Workspace, fingerprint_of_files, hash_file


def fingerprint_of_weights(folder: Path) -> str:
    """Returns 16 hex digits of a model's weights, equal for a checkpoint and its export."""
    paths, _ = find_weight_files(folder)
    return fingerprint_of_files({path.name: {"sha256": hash_file(path)} for path in paths})


def find_evaluations(folder: Path, workspace: Workspace) -> list[Manifest]:
    """Returns a model's newest evaluation on each data set."""
    newest: dict[tuple[Any, ...], Manifest] = {}
    evaluations = workspace.list("evaluation")
    fingerprint = fingerprint_of_weights(folder) if evaluations else ""
    for one in evaluations:
        manifest = one.manifest
        if manifest.inputs.get("model") == fingerprint:
            newest.setdefault(_data_of(manifest), manifest)
    return list(newest.values())


def _data_of(manifest: Manifest) -> tuple[Any, ...]:
    of_dataset = ("dataset_name", "dataset_config", "split")
    names = ("path",) if manifest.config.get("path") else of_dataset
    return tuple(manifest.config.get(name) for name in ("task", *names, "limit"))
