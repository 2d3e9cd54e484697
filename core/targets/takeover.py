"""Goes on here with a run whose machine is gone or has stopped, from its mirror."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import RunError
from core.runs.folder import RunFolder, RunRecord
from core.stages.registry import parse_stage_config
from core.targets.blobs import place_inputs
from core.targets.follower import Follower
from core.targets.mirror import RunMirror, exit_name, run_address
from core.targets.received import check_references, parse_received
from core.targets.schema import Input, RunSpec
from core.training.checkpoint import CHECKPOINTS_FOLDER
from core.workspace import MANIFEST_FILE, Workspace, read_manifest


def take_over(workspace: Workspace, address: str, changes: dict[str, Any]) -> RunRecord:
    """Fetches a run's inputs, events and newest checkpoint, and returns its record for here.

    Args:
        address: `ROOT/runs/ID`.
        changes: Fields of the config that differ from now on.

    Raises:
        MirrorError: The run is missing, damaged, lacks its inputs, or asks for files of this
            machine.
        RunError: An incarnation still goes on.
    """
    mirror = RunMirror.open(address)
    spec = mirror.read_spec()
    received = parse_received(spec)
    _check_ended(mirror)
    placed = _place(mirror, spec, workspace)
    values = {**received.model_dump(mode="json"), **placed, "mirror": mirror.store.address}
    config = parse_stage_config(spec.stage, {**values, **changes})
    check_references(config, placed, spec, workspace)
    record = RunRecord(spec.id, spec.stage, config.model_dump(mode="json"), created=spec.created)
    folder = RunFolder.of(workspace, spec.id)
    if not _was_executed_here(folder):
        followed = run_address(mirror.store.address, spec.id)
        folder.write_record(replace(record, follows=followed))
        Follower(folder, workspace).copy_events()
    mirror.fetch_newest_checkpoint(mirror.look(), folder.path / CHECKPOINTS_FOLDER)
    mirror.clear_stop()
    folder.write_record(record)
    return record


def _check_ended(mirror: RunMirror) -> None:
    """Refuses to compete with a process that goes on; one that died can't tell so."""
    listing = mirror.look()
    if not listing.newest or listing.version(exit_name(listing.newest)):
        return
    if mirror.is_alive(listing.newest):
        raise RunError(
            f"The run {mirror.run_id} still goes on",
            expected="a run that has ended, or whose machine is gone",
            received=f"incarnation {listing.newest}, which gives signs of life",
            fix="stop it first: runs follow ADDRESS, then runs stop RUN",
        )


def _was_executed_here(folder: RunFolder) -> bool:
    """Returns whether a run's events are its own, and not copied, perhaps only partly."""
    record = folder.read_record() if folder.is_there() else None
    return record is not None and not record.follows and not record.config.get("target")


def _place(mirror: RunMirror, spec: RunSpec, workspace: Workspace) -> dict[str, Any]:
    """Fetches the inputs that the workspace lacks; returns the fields that name all of them."""
    known = [one for one in spec.inputs if _has(workspace, one)]
    others = [one for one in spec.inputs if one not in known]
    placed = place_inputs(mirror.store, others, workspace, workspace.cache / "blobs")
    own = {one.field: one.name for one in known if one.field != "mixture"}
    return {**placed, **own}


def _has(workspace: Workspace, one: Input) -> bool:
    """Returns whether the workspace has the same artifact already; refuses another one."""
    folder = workspace.folder(one.kind) / one.name if one.kind else Path()
    if not one.kind or not folder.exists():
        return False
    hashes = {name: entry["sha256"] for name, entry in read_manifest(folder).files.items()}
    files = [file for file in one.files if file.name != MANIFEST_FILE]
    if files and all(hashes.get(file.name) == file.sha256 for file in files):
        return True
    raise RunError(
        f"This workspace has other {one.kind} of the name {one.name}",
        expected=f"the {one.kind} that the run was started with, or none of this name",
        received=str(folder),
        fix="use another workspace: --workspace FOLDER",
    )
