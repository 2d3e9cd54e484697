"""Trains a model, from open inputs to the export of the best checkpoint; resumes bit-exactly.

`loop.py` has the training loop.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.artifacts.checkpoint import CHECKPOINTS_FOLDER, Checkpoints, write_eval_results
from core.backends.base import BackendOptions
from core.backends.compilation import enable_compilation_cache
from core.backends.creation import create_backend
from core.backends.devices import Devices, is_multi_process, reporting_lost_processes
from core.backends.precision import choose_precision
from core.backends.processes import broadcast
from core.backends.selection import select_backend
from core.config.train import TrainConfig
from core.errors import StudioError
from core.models import hf
from core.models.building import create_model
from core.records.events import Reporter, RunStopped
from core.training import automatic, recipe
from core.training.cooccurrence import CooccurrenceCount
from core.training.evaluation import create_evaluation
from core.training.export import (
    check_destination,
    check_room,
    evaluated_artifact,
    export_model,
    wanted_name,
)
from core.training.inputs import (
    TrainingInputs,
    open_inputs,
    resolve_checkpoint,
    tolerate_damage,
)
from core.training.interim import InterimEvaluation
from core.training.interim_options import check_used
from core.training.loop import TrainingLoop
from core.training.run_setup import RunSetup
from core.training.sources import check_unchanged
from core.training.summary import remember_speed, summarize
from core.training.uploads import Uploads
from core.workspace.manifests import Artifact, Manifest
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace


def train(config: TrainConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Trains a model, or resumes the reporter's run, and exports its best checkpoint.

    Returns:
        The model; with `evaluate_only` the checkpoint, its results as counts.

    Raises:
        ConfigError, DeviceError, CheckpointError, RunError: The run can't start.
        LossNotFiniteError: Rollbacks did not help.
        RunStopped: The reporter requested it.
    """
    reporter = reporter or Reporter()
    resumed = _is_resumed(reporter)
    if not resumed:
        check_used(config)
    config = automatic.resolve(config, workspace, reporter)
    inputs = open_inputs(
        config, workspace, reporter, resumed=resumed, own=_own_checkpoint(config, reporter)
    )
    check_unchanged(inputs.sources, workspace)
    config = resolve_checkpoint(config, workspace)
    with _run_folder(workspace, reporter) as folder:
        if config.evaluate_only:
            return _evaluate_only(config, inputs, folder, reporter)
        check_destination(config, workspace, folder.name)
        check_room(config, inputs.architecture, folder)
        interim = _interim_evaluation(config, reporter)
        with _cooccurrence_count(config, inputs, ahead=not resumed) as cooccurrences:
            return _train(config, workspace, inputs, cooccurrences, interim, folder, reporter)


def _train(
    config: TrainConfig,
    workspace: Workspace,
    inputs: TrainingInputs,
    cooccurrences: CooccurrenceCount | None,
    interim: InterimEvaluation | None,
    folder: Path,
    reporter: Reporter,
) -> Artifact:
    devices = select_backend(config)
    if cooccurrences and not devices.is_first:
        cooccurrences.forget()  # Rank 0 broadcasts its own.
    enable_compilation_cache(devices, workspace.cache / "compiled")
    reporter.note(devices.describe())
    plan = recipe.plan(
        config,
        inputs.epoch_length,
        inputs.shards.row_length,
        replicas=devices.count,
        validation_rows=len(inputs.validation_rows),
    )
    with (
        reporting_lost_processes(devices),
        _uploads(config, workspace, inputs, folder, devices, reporter) as uploads,
    ):
        setup = RunSetup(
            config, inputs, plan, devices, folder, reporter, uploads, cooccurrences, interim
        )
        loop = TrainingLoop(setup)
        best = loop.run()
        model = None
        if devices.is_first:
            remember_speed(loop.session, workspace)
            model = export_model(
                loop.session.config,
                workspace,
                inputs,
                checkpoint=best,
                counts=summarize(loop.session),
                run=folder.name,
            )
            if uploads:
                uploads.finish(model)
        return _artifact_of_all(model, devices)


def _evaluate_only(
    config: TrainConfig, inputs: TrainingInputs, folder: Path, reporter: Reporter
) -> Artifact:
    assert inputs.checkpoint is not None
    devices = select_backend(config)
    reporter.note(devices.describe())
    weights = hf.read_weights(inputs.checkpoint, inputs.architecture)

    def build() -> Any:
        policy = config.dtype_policy
        if policy == "auto":
            policy = broadcast(choose_precision(devices)[0], devices)
        model = create_model(inputs.architecture, seed=0, dtype_policy=policy)
        hf.assign_weights(model, weights)
        return model, None

    backend = create_backend(devices, build, BackendOptions.of(config))
    with reporting_lost_processes(devices):
        results = create_evaluation(config, inputs, backend, devices, reporter).run(
            0, lambda done, of: reporter.progress(done, of, "batches", "validating")
        )
    if results is None:
        raise RunStopped(reporter.stop_requested() or "abort")
    reporter.metrics(0, results.figures)
    write_eval_results(folder, results)
    return evaluated_artifact(inputs.checkpoint, results.figures)


def _interim_evaluation(config: TrainConfig, reporter: Reporter) -> InterimEvaluation | None:
    """Reads the data before a backend is imported; rank 0 alone has the results."""
    if not config.evaluate_every:
        return None
    # Several processes could not all stop at the same sentence.
    return InterimEvaluation(config, Reporter() if is_multi_process(config) else reporter)


@contextmanager
def _cooccurrence_count(
    config: TrainConfig, inputs: TrainingInputs, *, ahead: bool
) -> Iterator[CooccurrenceCount | None]:
    if config.word_embeddings != "cooccurrence" or inputs.checkpoint:
        yield None
        return
    architecture = inputs.architecture
    cooccurrences = CooccurrenceCount(
        tolerate_damage(inputs.sources.epoch_rows, config, inputs, Reporter()),
        (architecture.vocab_size, architecture.hidden_size),
        inputs.tokenizer.special_ids,
    )
    if ahead and not config.process_id:
        cooccurrences.begin()  # Importing the backend takes longer.
    try:
        yield cooccurrences
    finally:
        cooccurrences.forget()


def _artifact_of_all(model: Artifact | None, devices: Devices) -> Artifact:
    values = [str(model.path), asdict(model.manifest)] if model else None
    path, manifest = broadcast(values, devices)
    return model or Artifact(Path(path), Manifest(**manifest))


@contextmanager
def _uploads(
    config: TrainConfig,
    workspace: Workspace,
    inputs: TrainingInputs,
    folder: Path,
    devices: Devices,
    reporter: Reporter,
) -> Iterator[Uploads | None]:
    if not config.push_to_hub or not devices.is_first:
        yield None
        return
    uploads = Uploads(config, workspace, folder, wanted_name(config, inputs), reporter)
    try:
        yield uploads
    finally:
        uploads.close()


def _is_resumed(reporter: Reporter) -> bool:
    return reporter.folder is not None and (reporter.folder / CHECKPOINTS_FOLDER).is_dir()


def _own_checkpoint(config: TrainConfig, reporter: Reporter) -> Path | None:
    """Rank 0 alone has checkpoints: with several processes, all must resume or none."""
    if is_multi_process(config) or not _is_resumed(reporter):
        return None
    assert reporter.folder is not None
    checkpoints = Checkpoints(reporter.folder / CHECKPOINTS_FOLDER)
    for step in checkpoints.steps():
        with suppress(StudioError):
            hf.read_architecture(checkpoints.path(step))
            return checkpoints.path(step)
    return None


@contextmanager
def _run_folder(workspace: Workspace, reporter: Reporter) -> Iterator[Path]:
    if reporter.folder is not None:
        yield reporter.folder
        return
    make_folder(workspace.cache)
    folder = Path(tempfile.mkdtemp(prefix="train-", dir=workspace.cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
