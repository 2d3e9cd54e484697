"""A stage that reports losses like a training. `STUDIO_STAGES=tests.core.sweeps.toy_training`."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

from core.config.base import StageConfig
from core.config.options import option
from core.errors import StudioError
from core.records.events import Reporter
from core.stages.registry import Stage, register
from core.workspace.kinds import ArtifactKind
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

_STEP_FILE = "step.txt"
_PATIENCE_SECONDS = 300.0


class ToyTrainingConfig(StageConfig):
    name: str = option("", "The curve's name.", identity=False)
    learning_rate: float = option(0.01, "The best is 0.01.", gt=0, le=10)
    optimizer: str = option("adamw", "Muon is better by 0.5.")
    layers: int | None = option(None, "Changes nothing.", ge=1, le=64)
    steps: int = option(4, "Validations.", ge=1, le=100)
    pause_seconds: float = option(0.0, "Duration of a step.", ge=0)
    fails_above: float = option(math.inf, "Learning rate above which it fails.")
    waits_for_pruner: bool = option(False, "Waits until the sweep has judged each validation.")
    dies_once_above: float = option(math.inf, "Learning rate above which it is killed once.")

    model_config = {**StageConfig.model_config, "allow_inf_nan": True}


def loss_at(config: ToyTrainingConfig, step: int) -> float:
    """Returns the validation loss, a function of the settings alone."""
    bonus = 0.5 if config.optimizer == "muon" else 0.0
    return 2.0 + abs(math.log10(config.learning_rate) + 2) - bonus + 1 / step


def run(config: ToyTrainingConfig, workspace: Workspace, reporter: Reporter) -> Artifact:
    """Reports a loss per step, and goes on after the last one when it is resumed."""
    folder = reporter.folder or workspace.cache
    if config.learning_rate > config.fails_above:
        raise StudioError("The toy fails", expected=f"at most {config.fails_above}")
    for step in range(_steps_done(folder) + 1, config.steps + 1):
        time.sleep(config.pause_seconds)
        reporter.metrics(step, {"loss": 9.0, "eval_loss": loss_at(config, step)})
        (folder / _STEP_FILE).write_text(str(step))
        reporter.progress(step, config.steps, "steps")
        _die_once(config, folder)
        reporter.raise_if_stopped()
        if config.waits_for_pruner:
            _wait_until_judged(step, folder, workspace, reporter)
    with workspace.new_artifact("curve", config.name, exact=True) as draft:
        draft.counts = {"eval_loss": loss_at(config, config.steps), "steps": config.steps}
    assert draft.artifact is not None
    return draft.artifact


def _steps_done(folder: Path) -> int:
    path = folder / _STEP_FILE
    return int(path.read_text()) if path.exists() else 0


def _wait_until_judged(step: int, folder: Path, workspace: Workspace, reporter: Reporter) -> None:
    """Waits for the judgement, and for the stop that follows from a bad one."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        reporter.raise_if_stopped()
        for path in workspace.sweeps.glob("*/trials/*.json"):
            trial = json.loads(path.read_text("utf-8"))
            is_judged = trial["run"] == folder.name and trial["judged"] >= step
            if is_judged and not trial["is_worse"]:
                return
        time.sleep(0.05)


def _die_once(config: ToyTrainingConfig, folder: Path) -> None:
    marker = folder / "died"
    if config.learning_rate > config.dies_once_above and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


register(
    Stage(
        name="toy_training",
        title="Toy training",
        help="Report losses without training.",
        config=ToyTrainingConfig,
        function="tests.core.sweeps.toy_training:run",
        api="tests.core.sweeps.toy_training:run",
        artifact=ArtifactKind("curve", "Curve"),
        is_resumable=True,
    )
)
