"""Locates models, and checkpoints of runs, by what people call them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    checkpoint_name,
    checkpoint_steps,
    checkpoint_words,
    read_state,
    words_name,
)
from core.artifacts.finding import find_here, find_model
from core.errors import CheckpointError, ConfigError, RunError
from core.records.folder import RunFolder
from core.workspace.manifests import read_manifest
from core.workspace.workspace import Workspace

NEWEST, BEST = "newest", "best"
_SHOWN_STEPS = 10


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run.

    Attributes:
        label: The part of its name after the run and @.
    """

    folder: Path
    run: str
    step: int
    label: str


def find_run(reference: str, workspace: Workspace) -> RunFolder | None:
    """Finds the run of a reference; None if it names no run, or a model."""
    return None if find_here(reference, workspace) else _run_named(reference, workspace)


def find_run_checkpoint(reference: str, workspace: Workspace) -> RunCheckpoint | None:
    """Finds a run's checkpoint; None if the reference names no run, or a model.

    Raises:
        CheckpointError, ConfigError: The run has no such checkpoint.
    """
    run = find_run(reference, workspace)
    return _find_checkpoint(run, reference.partition("@")[2] or NEWEST) if run else None


def list_run_checkpoints(run: RunFolder, *, by_step: bool = False) -> list[str]:
    """Returns references to a run's checkpoints: best, newest, and those kept by words seen.

    Args:
        by_step: Whether to add those of single steps.
    """
    folder = run.path / CHECKPOINTS_FOLDER
    steps = checkpoint_steps(folder)
    named = [NEWEST] if steps else []
    named = [BEST, *named] if _has_best(folder, steps) else named
    names_by_words = [words_name(words) for words in reversed(checkpoint_words(folder))]
    return [
        f"{run.path.name}@{checkpoint}"
        for checkpoint in (*named, *(map(str, steps) if by_step else ()), *names_by_words)
    ]


def find_checkpoint(reference: str, workspace: Workspace) -> Path | None:
    """Returns the folder of a run's checkpoint; None if the reference names no run, or a model.

    `RUN@best` of a run that has not validated is its newest checkpoint.

    Raises:
        CheckpointError, ConfigError: The run has no such checkpoint.
    """
    return None if find_here(reference, workspace) else _checkpoint_of(reference, workspace)


def locate_model(reference: str | Path, workspace: Workspace | None = None) -> Path:
    """Returns the folder of a model to query; downloads a Hub model that isn't cached.

    Args:
        reference: A name, a folder, a run's checkpoint as in `find_checkpoint`, or a Hub id.

    Raises:
        ConfigError, HubError: There is no such model.
        CheckpointError: The run has no such checkpoint.
    """
    workspace = Workspace.of(workspace)
    if isinstance(reference, Path):
        return find_model(reference, workspace)
    if folder := find_here(reference, workspace):
        return folder.absolute()
    return _checkpoint_of(reference, workspace) or find_model(reference, workspace)


def has_checkpoint(run: str, workspace: Workspace) -> bool:
    """Returns whether a run has saved."""
    return bool(checkpoint_steps(RunFolder.of(workspace, run).path / CHECKPOINTS_FOLDER))


def _checkpoint_of(reference: str, workspace: Workspace) -> Path | None:
    run = _run_named(reference, workspace)
    if run is None:
        return None
    folder, wanted = run.path / CHECKPOINTS_FOLDER, reference.partition("@")[2]
    if wanted == BEST and not _has_best(folder, checkpoint_steps(folder)):
        wanted = NEWEST
    return _find_checkpoint(run, wanted or NEWEST).folder


def _run_named(reference: str, workspace: Workspace) -> RunFolder | None:
    try:
        run = RunFolder.of(workspace, reference.partition("@")[0])
    except RunError:
        return None
    return run if run.is_there() else None


def _find_checkpoint(run: RunFolder, wanted: str) -> RunCheckpoint:
    folder, name = run.path / CHECKPOINTS_FOLDER, run.path.name
    if wanted in map(words_name, checkpoint_words(folder)):
        checkpoint_folder = folder / wanted
        return RunCheckpoint(
            checkpoint_folder,
            name,
            int(read_manifest(checkpoint_folder).counts.get("step", 0)),
            wanted,
        )
    steps = checkpoint_steps(folder)
    if not steps:
        raise _no_checkpoint(run)
    step = _choose_step(folder, steps, wanted)
    if step is None:
        raise _no_such_step(run, folder, steps, wanted)
    return RunCheckpoint(folder / checkpoint_name(step), name, step, str(step))


def _no_checkpoint(run: RunFolder) -> CheckpointError:
    stage = run.read_record().stage
    if stage != "train":
        return CheckpointError(
            f"The run {run.path.name} is not a training run: it saves no checkpoints",
            expected="a model's name, or a training run",
            received=f"a run of the stage {stage}",
            fix="choose the model that it made by its name: python -m core runs show "
            f"{run.path.name}",
        )
    return CheckpointError(
        f"The run {run.path.name} has no checkpoint yet",
        expected="a training run that has saved",
        fix="wait until it saves, or choose the model that it made by its name",
    )


def _no_such_step(run: RunFolder, folder: Path, steps: list[int], wanted: str) -> ConfigError:
    missing = "with a validation loss" if wanted == BEST else repr(wanted)
    named = [NEWEST, BEST] if _has_best(folder, steps) else [NEWEST]
    listed = ", ".join(map(str, steps[:_SHOWN_STEPS]))
    names_by_words = [words_name(words) for words in checkpoint_words(folder)][-_SHOWN_STEPS:]
    return ConfigError(
        f"The run {run.path.name} has no checkpoint {missing}",
        expected=f"{', '.join([*named, *names_by_words])}, or one of the steps {listed}",
        received=wanted,
        fix="choose one of them; a run keeps only the newest and the best checkpoints, and those "
        "at numbers of words",
        field="model",
    )


def _choose_step(folder: Path, steps: list[int], wanted: str) -> int | None:
    if wanted == NEWEST:
        return steps[0]
    if wanted == BEST:
        return _best_step(folder, steps)
    return int(wanted) if wanted.isdecimal() and int(wanted) in steps else None


def _has_best(folder: Path, steps: list[int]) -> bool:
    try:
        return _best_step(folder, steps) is not None
    except CheckpointError:
        return False


def _best_step(folder: Path, steps: list[int]) -> int | None:
    results = [(read_state(folder / checkpoint_name(step)).evaluated, step) for step in steps]
    losses = [
        (evaluated.eval_loss, step)
        for evaluated, step in results
        if evaluated and evaluated.step == step
    ]
    return min(losses)[1] if losses else None
