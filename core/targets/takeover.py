"""Goes on here with a run whose machine is gone or has stopped, from its mirror.

A mirror that this workspace has signed is trusted like the workspace itself. From any other one, a
run can only be copied: `take_over_as_stranger` gives it an id, a folder and a workspace of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts.checkpoint import CHECKPOINTS_FOLDER
from core.config.base import StageConfig
from core.config.options import split_references
from core.errors import RunError
from core.records.folder import RunFolder, RunRecord, new_run_id
from core.stages.registry import parse_stage_config
from core.targets.blobs import place_inputs
from core.targets.errors import ForeignMirrorError, UnsignedMirrorError
from core.targets.follower import Follower
from core.targets.launcher import RemoteState
from core.targets.mirror import RunMirror, exit_name, run_address
from core.targets.publisher import write_signed_from
from core.targets.received import check_brought, check_references, parse_received
from core.targets.schema import DATA_FIELDS, Input, RunSpec
from core.targets.signing import description_keys, run_keys
from core.workspace.manifests import MANIFEST_FILE, read_manifest
from core.workspace.workspace import Workspace

# The kinds of artifacts that a field of the config can name; "" for other files and folders.
_KINDS = {
    "shards": ("shards", ""),
    "mixture": ("shards",),
    "tokenizer": ("tokenizer", ""),
    "checkpoint": ("model", ""),
    "model": ("model", ""),
    **dict.fromkeys(("model_config_path", *DATA_FIELDS), ("",)),
}


def take_over(
    workspace: Workspace, address: str, changes: dict[str, Any], *, adopt: bool = False
) -> RunRecord:
    """Fetches a run's inputs, events and newest checkpoint, and returns its record for here.

    Args:
        address: `ROOT/runs/ID`.
        changes: Fields of the config that differ from now on.
        adopt: Whether the user says that a mirror of an earlier version, which signed nothing, is
            their own.

    Raises:
        UnsignedMirrorError: An earlier version, or somebody else, has made the mirror.
        ForeignMirrorError: Another workspace has made the mirror.
        MirrorError: The run is missing, damaged, lacks its inputs, or asks for files of this
            machine.
        RunError: An incarnation still goes on, or another run here has the same id.
    """
    mirror = RunMirror.open(address)
    spec, origin = mirror.read_signed_spec(description_keys(workspace.root))
    folder = RunFolder.of(workspace, spec.id)
    if origin == "foreign":
        raise _foreign(address)
    if origin == "unsigned":
        if not adopt:
            raise _unsigned(address)
        _check_same_mirror(folder, mirror)
    signed_from = spec.signed_from or mirror.look().newest + 1
    keys = run_keys(workspace.root, spec.id)
    mirror = RunMirror(mirror.store, spec.id, keys, signed_from=signed_from)
    received = parse_received(spec)
    _check_ended(mirror)
    placed = _place(mirror, _used_inputs(spec, received), workspace)
    values = {**received.model_dump(mode="json"), **placed, "mirror": mirror.store.address}
    config = parse_stage_config(spec.stage, {**values, **changes})
    check_references(config, placed, spec, workspace)
    record = RunRecord(spec.id, spec.stage, config.model_dump(mode="json"), created=spec.created)
    if not _was_executed_here(folder):
        followed = run_address(mirror.store.address, spec.id)
        folder.write_record(replace(record, follows=followed))
        Follower(folder, workspace, mirror).copy_events()
    mirror.fetch_newest_checkpoint(mirror.look(), folder.path / CHECKPOINTS_FOLDER)
    mirror.clear_stop()
    write_signed_from(folder, signed_from)
    folder.write_record(record)
    return record


def take_over_as_stranger(workspace: Workspace, address: str, changes: dict[str, Any]) -> RunRecord:
    """Copies a run of anybody's mirror, to be executed with nothing but what the mirror brought.

    The copy has an id of its own and a workspace in its folder, gets no credentials, and writes
    nothing into the mirror.

    Raises:
        MirrorError: The run is missing or damaged, or needs more than the mirror brought.
    """
    mirror = RunMirror.open(address)
    spec = mirror.read_spec()
    received = parse_received(spec)
    inputs = _used_inputs(spec, received)
    check_brought(received, inputs)
    folder = RunFolder.of(workspace, new_run_id(spec.stage))
    try:
        return _copy(mirror, spec, received, inputs, changes, folder, workspace)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _copy(
    mirror: RunMirror,
    spec: RunSpec,
    received: StageConfig,
    inputs: Sequence[Input],
    changes: dict[str, Any],
    folder: RunFolder,
    workspace: Workspace,
) -> RunRecord:
    place = folder.isolated_workspace()
    placed = place_inputs(mirror.store, inputs, place, place.cache / "blobs")
    values = {**received.model_dump(mode="json"), **placed, **changes}
    record = RunRecord(
        folder.path.name,
        spec.stage,
        parse_stage_config(spec.stage, values).model_dump(mode="json"),
        created=spec.created,
        is_isolated=True,
    )
    folder.write_record(replace(record, follows=mirror.address))
    Follower(folder, workspace, mirror).copy_events()
    mirror.fetch_newest_checkpoint(mirror.look(), folder.path / CHECKPOINTS_FOLDER)
    folder.write_record(record)
    return record


def _used_inputs(spec: RunSpec, config: StageConfig) -> list[Input]:
    """Returns the inputs that the run reads here: others are not placed."""
    mixture = split_references(str(getattr(config, "mixture", "")))
    used = []
    for run_input in spec.inputs:
        is_known = run_input.kind in _KINDS.get(run_input.field, ())
        if run_input.field == "mixture":
            is_used = run_input.name in mixture
        elif run_input.field == "shards":
            is_used = not mixture
        else:
            is_used = bool(getattr(config, run_input.field, ""))
        if is_known and is_used:
            used.append(run_input)
    return used


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


def _check_same_mirror(folder: RunFolder, mirror: RunMirror) -> None:
    """Raises RunError if a run here has the id of an unsigned one in another mirror."""
    if not folder.is_there():
        return
    record = folder.read_record()
    roots = (str(record.config.get("mirror") or ""), RemoteState.read(folder).here)
    known = [record.follows, *(run_address(root, mirror.run_id) for root in roots if root)]
    if mirror.address not in known:
        raise RunError(
            f"This workspace has another run {mirror.run_id}",
            expected="a run that isn't known here, or one of the same mirror",
            received=f"a run of {next(filter(None, known), 'this computer')}",
            fix="use another workspace: --workspace FOLDER",
        )


def _was_executed_here(folder: RunFolder) -> bool:
    """Returns whether a run's events are its own, and not copied, perhaps only partly."""
    record = folder.read_record() if folder.is_there() else None
    return record is not None and not record.follows and not record.config.get("target")


def _place(mirror: RunMirror, inputs: Sequence[Input], workspace: Workspace) -> dict[str, Any]:
    """Fetches the inputs that the workspace lacks; returns the fields that name all of them."""
    known = [run_input for run_input in inputs if _has(workspace, run_input)]
    others = [run_input for run_input in inputs if run_input not in known]
    placed = place_inputs(mirror.store, others, workspace, workspace.cache / "blobs")
    own = {run_input.field: run_input.name for run_input in known if run_input.field != "mixture"}
    return {**placed, **own}


def _has(workspace: Workspace, run_input: Input) -> bool:
    """Returns whether the workspace has the same artifact already; refuses another one."""
    folder = workspace.folder(run_input.kind) / run_input.name if run_input.kind else Path()
    if not run_input.kind or not folder.exists():
        return False
    hashes = {name: entry["sha256"] for name, entry in read_manifest(folder).files.items()}
    files = [file for file in run_input.files if file.name != MANIFEST_FILE]
    if files and all(hashes.get(file.name) == file.sha256 for file in files):
        return True
    raise RunError(
        f"This workspace has other {run_input.kind} of the name {run_input.name}",
        expected=f"the {run_input.kind} that the run was started with, or none of this name",
        received=str(folder),
        fix="use another workspace: --workspace FOLDER",
    )


_AS_STRANGER = "runs resume ADDRESS --as-stranger executes a copy with only what the mirror brought"


def _foreign(address: str) -> ForeignMirrorError:
    return ForeignMirrorError(
        f"Another workspace has made the run at {address}",
        expected="a run that this workspace's key has signed",
        fix="if that workspace is yours, print its key there with `studio mirror key`, and import "
        f"it here with `studio mirror key --import`; otherwise {_AS_STRANGER}",
    )


def _unsigned(address: str) -> UnsignedMirrorError:
    return UnsignedMirrorError(
        f"Nobody has signed the run at {address}",
        expected="a run that this workspace's key has signed",
        received="no signature, as in a mirror of an earlier version or of somebody else",
        fix=f"add --adopt if you have started this run yourself; otherwise {_AS_STRANGER}",
    )
