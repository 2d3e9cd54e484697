"""Models that a form can name: those of the workspace, and checkpoints of its runs."""

from __future__ import annotations

from pathlib import Path

from core.artifacts.checkpoint import CHECKPOINTS_FOLDER
from core.artifacts.finding import find_model, must_be_fetched
from core.artifacts.locating import find_run_checkpoint, list_run_checkpoints
from core.errors import ConfigError
from core.finetuning.names import is_of_finetuning
from core.records.folder import RunFolder
from core.workspace.workspace import Workspace
from ui.forms import ConfigT, Form

_MOST_RUNS = 20


class SubjectForm(Form[ConfigT]):
    """A form whose model may also be a checkpoint of a run."""

    def _names(self, kind: str) -> list[str]:
        if kind != "model":
            return super()._names(kind)
        return [*_pretrained(self._workspace), *list_checkpoints(self._workspace)]


def list_checkpoints(workspace: Workspace) -> list[str]:
    """Returns references to the checkpoints of runs, those that saved last first."""
    folders = [path for path in workspace.runs.glob(f"*/{CHECKPOINTS_FOLDER}") if path.is_dir()]
    folders.sort(key=lambda path: -path.stat().st_mtime)
    runs = [RunFolder(path.parent) for path in folders[:_MOST_RUNS]]
    return [reference for run in runs if run.is_there() for reference in list_run_checkpoints(run)]


def find_subject(reference: str, workspace: Workspace) -> Path | None:
    """Returns a model's folder; None if it must be fetched first.

    Raises:
        ConfigError, CheckpointError: There is no such model.
    """
    if not reference:
        raise ConfigError(
            "No model is chosen",
            expected="a model, a checkpoint of a run, or a Hub id",
            fix="choose one, or train one first",
            field="model",
        )
    if must_be_fetched(reference, workspace):
        return None
    checkpoint = find_run_checkpoint(reference, workspace)
    return checkpoint.folder if checkpoint else find_model(reference, workspace)


def _pretrained(workspace: Workspace) -> list[str]:
    models = workspace.list("model")
    return [model.name for model in models if not is_of_finetuning(model.manifest)]
