"""Saves a run's state, finds it again, and keeps its models at numbers of words seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    Checkpoints,
    EvalResults,
    TrainingState,
    read_state,
    write_eval_results,
)
from core.backends.processes import broadcast
from core.models import hf
from core.training.monitor import not_finite
from core.training.resume import check_nothing_is_lost

if TYPE_CHECKING:
    from core.training.run_setup import RunSetup


class Persistence:
    """The checkpoints of a run; rank 0 alone has files."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._checkpoints = Checkpoints(setup.folder / CHECKPOINTS_FOLDER)

    def path(self, step: int) -> Path:
        """Returns the folder of a checkpoint."""
        return self._checkpoints.path(step)

    def find_state(self) -> tuple[Path | None, TrainingState]:
        """Returns the newest undamaged checkpoint and its state; None and the first state.

        Raises:
            CheckpointError: The run has saved checkpoints, and none is intact.
        """
        checkpoint, shared = None, None
        if self._setup.devices.is_first:
            checkpoint = self._checkpoints.newest_valid(self._setup.reporter)
            if checkpoint:
                state = replace(read_state(checkpoint), best=self._checkpoints.best())
            else:
                check_nothing_is_lost(self._setup.folder)
                state = self._setup.first_state
            shared = [bool(checkpoint), self._checkpoints.skip_again(state).to_json()]
        is_resumed, values = broadcast(shared, self._setup.devices)
        if is_resumed and checkpoint is None:
            checkpoint = self.path(values["step"])
        return checkpoint, TrainingState.from_json(values)

    def save(self, state: TrainingState, values: dict[str, NDArray]) -> None:
        """Writes a checkpoint, with the backend's values by path, and offers it for upload."""
        if not self._setup.devices.is_first:
            return
        weights = {tie.path for tie in hf.weight_mappings(self._setup.inputs.architecture)}
        rest = {path: array for path, array in values.items() if path not in weights}
        folder = self._checkpoints.write(state, rest, self.model_writer(values))
        self._setup.reporter.event("checkpoint", step=state.step, path=str(folder))
        if self._setup.uploads:
            self._setup.uploads.offer(folder)

    def prune(self, best: EvalResults | None) -> None:
        """Deletes checkpoints beyond the limit, but not the best."""
        if self._setup.devices.is_first:
            limit = self._setup.config.save_total_limit
            self._checkpoints.prune(limit, best.step if best else None)

    def keep_model(self, words: int, counts: dict[str, int], values: dict[str, NDArray]) -> None:
        """Keeps the model at a number of words seen, without optimizer state."""
        folder = self._checkpoints.write_words(
            words, counts, self._setup.inputs.fingerprints, self.model_writer(values)
        )
        self._setup.reporter.event("kept", path=str(folder), words=words, **counts)
        self._setup.reporter.note(
            f"Kept the model at {words:,} words seen: {folder.name}", step=counts["step"]
        )

    def write_results(self, results: EvalResults) -> None:
        if self._setup.devices.is_first:
            write_eval_results(self._checkpoints.folder, results)

    def remember_skipped(self, windows: Sequence[list[int]]) -> None:
        """Saves skipped windows of batches before the next checkpoint."""
        if self._setup.devices.is_first:
            self._checkpoints.remember_skipped(list(windows))

    def model_writer(self, values: dict[str, NDArray]) -> Callable[[Path], None]:
        """Returns a function that writes weights and tokenizer into a folder."""
        architecture = self._setup.inputs.architecture

        def write_model(folder: Path) -> None:
            hf.write_weights(folder, values, architecture)
            goes_on = architecture.kind == "decoder"
            longest = architecture.max_seq_length if architecture.limits_length else None
            self._setup.inputs.tokenizer.copy_to(folder, ends=not goes_on, longest=longest)

        return write_model


def check_finite(values: dict[str, NDArray], step: int) -> None:
    """Refuses non-finite weights: rolling back to them would not help."""
    for path, array in values.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise not_finite(f"The weight {path}", step, math.nan)
