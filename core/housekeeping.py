"""What artifacts take on the disk, what needs them, and how they are deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

from core.errors import RunError
from core.runs.folder import RunFolder
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace import Artifact, Workspace

# The config fields in which a run names artifacts, by the artifact's kind.
_NAMING_FIELDS = {"tokenizer": ("tokenizer",), "shards": ("shards",), "model": ("checkpoint",)}
_RESUMABLE_STATES = ("stopped", "failed", "lost")


def disk_use_bytes(folder: Path) -> int:
    """Returns the bytes that a folder's files take; a file linked twice counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            seen[(status.st_dev, status.st_ino)] = status.st_blocks * 512
    return sum(seen.values())


def runs_that_need(workspace: Workspace, store: Store, artifact: Artifact) -> list[RunRow]:
    """Returns the runs that an artifact's loss would break.

    These are the queued and the active ones that name it, and those training runs that have ended
    early and can be resumed. What has been made from it stands on its own: shards keep a copy of
    their tokenizer, and a model needs nothing.
    """
    rows = store.list_runs(states=("queued", *ACTIVE_STATES, *_RESUMABLE_STATES), limit=100_000)
    return [
        row
        for row in rows
        if _names(row, artifact) and (not row.ended_for_good or _can_resume(workspace, row))
    ]


def delete_artifact(workspace: Workspace, store: Store, artifact: Artifact) -> None:
    """Deletes an artifact's folder and its row.

    Raises:
        RunError: A run needs it.
    """
    needed_by = runs_that_need(workspace, store, artifact)
    if needed_by:
        raise RunError(
            f"The {artifact.kind} {artifact.name} can't be deleted",
            expected="that no run needs it",
            received="needed by " + ", ".join(f"{row.id} ({row.state})" for row in needed_by[:5]),
            fix="wait for these runs or delete them first",
        )
    # Out of sight in one step: whoever looks meanwhile sees all of it or nothing.
    doomed = artifact.path.with_name(f".{artifact.path.name}.deleted")
    artifact.path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    store.remove_artifact(str(artifact.path))


def _names(row: RunRow, artifact: Artifact) -> bool:
    named = [row.config.get(field) for field in _NAMING_FIELDS[artifact.kind]]
    return any(name in (artifact.name, str(artifact.path)) for name in named if name)


def _can_resume(workspace: Workspace, row: RunRow) -> bool:
    checkpoints = RunFolder.of(workspace, row.id).path / "checkpoints"
    return row.stage == "train" and any(checkpoints.glob("step-*"))
