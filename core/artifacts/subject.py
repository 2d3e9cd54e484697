"""Finds the model to evaluate: by name, folder, Hub id, or as a checkpoint of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.artifacts.checkpoint import (
    verify,
)
from core.artifacts.evaluations import fingerprint_of_weights
from core.artifacts.finding import find_model
from core.artifacts.locating import find_run, find_run_checkpoint
from core.backends.devices import find_hardware
from core.config.evaluate import EvaluateConfig
from core.config.finetune import FinetuneConfig
from core.records.events import Reporter
from core.records.folder import RunFolder
from core.tokenizer.roles import FILES as TOKENIZER_FILES
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_MODEL_FILES = (".safetensors", ".json")


@dataclass(frozen=True)
class Subject:
    """A model to evaluate.

    Attributes:
        name: Its name in reports.
        fingerprint: Its weights' fingerprint.
        run, step: The checkpoint's run and step, if it is one.
    """

    folder: Path
    name: str
    fingerprint: str
    run: str = ""
    step: int | None = None


@contextmanager
def open_subject(
    reference: str, workspace: Workspace, reporter: Reporter | None = None
) -> Iterator[Subject]:
    """Finds a model, and keeps a run from deleting it meanwhile.

    Args:
        reference: A name, a folder, a Hub id, `RUN`, `RUN@STEP`, `RUN@newest`, `RUN@best` or
            `RUN@words-NUMBER`.

    Raises:
        ConfigError, HubError: There is no such model.
        CheckpointError: The run has no such checkpoint.
    """
    checkpoint = find_run_checkpoint(reference, workspace)
    if checkpoint is None:
        folder = find_model(reference, workspace, reporter=reporter)
        yield Subject(folder, Path(reference).name, fingerprint_of_weights(folder))
        return
    if RunFolder.of(workspace, checkpoint.run).is_running():
        # JAX would reserve most of the memory of the GPU that the run uses.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with _kept(checkpoint.folder, workspace) as folder:
        name = f"{checkpoint.run}@{checkpoint.label}"
        yield Subject(folder, name, fingerprint_of_weights(folder), checkpoint.run, checkpoint.step)


def is_of_running_run(config: EvaluateConfig | FinetuneConfig, workspace: Workspace) -> bool:
    """Checks for a checkpoint of a run whose end a queued evaluation would await.

    A TPU serves one process: there, the evaluation has to wait.
    """
    run = find_run(config.model, workspace)
    return run is not None and run.is_running() and not find_hardware().tpus


@contextmanager
def _kept(folder: Path, workspace: Workspace) -> Iterator[Path]:
    """Links a checkpoint's files: a run deletes old checkpoints."""
    make_folder(workspace.cache)
    copy = Path(tempfile.mkdtemp(prefix="evaluated-", dir=workspace.cache))
    try:
        verify(folder)
        for path in folder.iterdir():
            if is_of_model(path.name):
                _link(path, copy / path.name)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def is_of_model(name: str) -> bool:
    """Returns whether a checkpoint's file is of its model or tokenizer."""
    is_weights = name.endswith(_MODEL_FILES) and not name.startswith("training_state")
    return is_weights or name in TOKENIZER_FILES


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:
        shutil.copyfile(path, link)
