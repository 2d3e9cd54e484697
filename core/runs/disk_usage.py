"""Measures disk usage and deletes artifacts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import field_extra, split_references
from core.errors import RunError, StudioError
from core.records.folder import RunFolder
from core.stages.registry import STAGES
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace.atomic import remove_folder
from core.workspace.kinds import artifact_kinds
from core.workspace.manifests import Artifact, fingerprint_of_files
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

_RESUMABLE_STATES = ("stopped", "failed", "lost")
_MOST_RUNS = 100_000


@dataclass(frozen=True)
class ArtifactUsage:
    """An artifact's disk usage and relations."""

    artifact: Artifact
    bytes: int
    made_from: list[Artifact]
    turned_into: list[Artifact]
    needed_by: list[RunRow]


@dataclass(frozen=True)
class DiskUsage:
    """Disk usage by part; hard links count once."""

    parts: dict[str, int]
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


def disk_usage_bytes(folder: Path) -> int:
    """Returns disk usage in bytes; hard links count once."""
    return _unseen_bytes(folder, set())


def measure_disk_usage(workspace: Workspace) -> DiskUsage:
    seen: set[tuple[int, int]] = set()
    parts = {kind: _unseen_bytes(workspace.folder(kind), seen) for kind in artifact_kinds()}
    parts["runs"] = _unseen_bytes(workspace.runs, seen)
    parts["other"] = _unseen_bytes(workspace.root, seen)
    place = next(path for path in (workspace.root, *workspace.root.parents) if path.exists())
    return DiskUsage(parts, shutil.disk_usage(place).free)


def list_artifact_usage(workspace: Workspace, store: Store) -> list[ArtifactUsage]:
    """Lists artifacts with disk usage, newest first."""
    artifacts = [artifact for kind in artifact_kinds() for artifact in workspace.list(kind)]
    claims = _claims(workspace, store)
    return [
        ArtifactUsage(
            artifact,
            disk_usage_bytes(artifact.path),
            made_from=[other for other in artifacts if _is_made_from(artifact, other)],
            turned_into=[other for other in artifacts if _is_made_from(other, artifact)],
            needed_by=[claim.row for claim in claims if claim.names(artifact)],
        )
        for artifact in sorted(artifacts, key=lambda artifact: -artifact.manifest.created)
    ]


def runs_that_need(workspace: Workspace, store: Store, artifact: Artifact) -> list[RunRow]:
    """Returns active, queued and resumable runs that need an artifact."""
    return [claim.row for claim in _claims(workspace, store) if claim.names(artifact)]


def delete_artifact(workspace: Workspace, store: Store, artifact: Artifact) -> None:
    """Deletes an artifact; raises RunError if needed."""
    needed_by = runs_that_need(workspace, store, artifact)
    if needed_by:
        raise RunError(
            f"The {artifact.kind} {artifact.name} can't be deleted",
            expected="no run that needs it",
            received="needed by " + ", ".join(f"{row.id} ({row.state})" for row in needed_by[:5]),
            fix="wait for these runs or delete them first",
        )
    remove_folder(artifact.path)
    store.remove_artifact(str(artifact.path))


def _unseen_bytes(folder: Path, seen: set[tuple[int, int]]) -> int:
    """Sums files not in `seen`; some may be deleted meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
    return total


def _is_made_from(made: Artifact, source: Artifact) -> bool:
    wanted = made.manifest.inputs.get(source.kind)
    return bool(wanted) and wanted in (source.fingerprint, _weights_fingerprint(source))


def _weights_fingerprint(artifact: Artifact) -> str:
    """Returns what an evaluation records of a model, as `fingerprint_of_weights`."""
    files = artifact.manifest.files
    weights = {name: files[name] for name in files if name.endswith(".safetensors")}
    return fingerprint_of_files(weights) if weights else ""


@dataclass(frozen=True)
class _Claim:
    """A run yet to open its artifacts."""

    row: RunRow
    named: dict[str, set[str | Path]]

    def names(self, artifact: Artifact) -> bool:
        return not self.named[artifact.kind].isdisjoint((artifact.name, artifact.path.resolve()))


def _claims(workspace: Workspace, store: Store) -> list[_Claim]:
    states = ("queued", *ACTIVE_STATES, *_RESUMABLE_STATES)
    return [
        _Claim(row, {kind: _named(workspace, row, kind) for kind in artifact_kinds()})
        for row in store.list_runs(states=states, limit=_MOST_RUNS)
        if not row.has_ended or _can_resume(workspace, row)
    ]


def _named(workspace: Workspace, row: RunRow, kind: str) -> set[str | Path]:
    values = list(_configs_within(row.config))
    names = _values_of(_naming_fields("artifact", kind), values)
    lists = _values_of(_naming_fields("artifacts", kind), values)
    paths = [name for name in names if os.sep in name and "://" not in name]
    references: set[str | Path] = {
        *names,
        *(name for reference_list in lists for name in split_references(reference_list)),
    }
    # Without a record, the run can't find it either.
    with suppress(StudioError):
        start = RunFolder.of(workspace, row.id).read_record().cwd if paths else ""
        references |= {Path(start, expand_path(path)).resolve() for path in paths}
    return references


def _configs_within(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a config, its nested configs and those in lists."""
    yield config
    for value in config.values():
        for nested_config in value if isinstance(value, list | tuple) else [value]:
            if isinstance(nested_config, dict):
                yield from _configs_within(nested_config)


def _values_of(fields: set[str], configs: list[dict[str, Any]]) -> list[str]:
    return [str(value) for config in configs for field in fields if (value := config.get(field))]


def _naming_fields(naming: str, kind: str) -> set[str]:
    models: tuple[type[StageConfig], ...] = (
        CorpusConfig,
        *(stage.config for stage in STAGES.values()),
    )
    return {
        name
        for model in models
        for name, field in model.model_fields.items()
        if field_extra(field)[naming] == kind
    }


def _can_resume(workspace: Workspace, row: RunRow) -> bool:
    checkpoints = RunFolder.of(workspace, row.id).path / "checkpoints"
    return row.saves and any(checkpoints.glob("step-*"))
