"""The training loop: steps, pauses between them, and rollbacks after a loss that is not finite."""

from __future__ import annotations

import gc
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from core.artifacts.checkpoint import TrainingState
from core.errors import LossNotFiniteError
from core.records.utilisation import UtilisationLog
from core.training.batches import BatchPrefetcher
from core.training.monitor import Monitor
from core.training.pauses import Pauses
from core.training.persistence import Persistence
from core.training.run_setup import RunSetup
from core.training.session import start_session
from core.training.tensorboard import FOLDER as TENSORBOARD_FOLDER

_BEFORE_THE_FIRST_STEP = -1
_MOST_ROLLBACKS = 3


class TrainingLoop:
    """Trains from step 0 or the newest checkpoint."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._persistence = Persistence(setup)
        checkpoint, state = self._persistence.find_state()
        if checkpoint is None and (setup.folder / TENSORBOARD_FOLDER).exists():
            setup.reporter.note("Starting from step 0: the run ended before its first checkpoint")
            setup.reporter.event("resumed", step=_BEFORE_THE_FIRST_STEP)
        self._monitor = Monitor(setup)
        self._start_session(checkpoint, state)

    def _start_session(self, checkpoint: Path | None, state: TrainingState) -> None:
        self.session = start_session(self._setup, checkpoint, state)
        self._pauses = Pauses(self.session, self._monitor, self._persistence)

    def run(self) -> Path:
        """Trains to the last step; returns the best checkpoint's folder.

        Raises:
            LossNotFiniteError: Rollbacks did not help.
            RunStopped: With "save", the state is on disk.
        """
        self._monitor.describe(self.session)
        try:
            with self._monitor.stall_alarm, self._utilisation():
                self._train()
        finally:
            self._monitor.close()
        best = self.session.state.best
        assert best is not None, "the last step is always validated and saved"
        return self._persistence.path(best.step)

    def _train(self) -> None:
        while True:
            try:
                return self._train_to_last_step()
            except LossNotFiniteError as error:
                self._roll_back(error)

    def _train_to_last_step(self) -> None:
        with self.session.prefetch_batches() as feeder:
            self._pauses.pause(feeder)
            while not self.session.is_finished:
                self._step(feeder)
                self._pauses.pause(feeder)

    def _step(self, feeder: BatchPrefetcher) -> None:
        """Runs one step, or several in one execution."""
        session, meter = self.session, self.session.meter
        if not meter.running:
            self._monitor.report_progress(session, "compiling the training step")
        steps = session.schedule.steps_per_call(session.step)
        losses = session.backend.train_steps([feeder.next() for _ in range(steps)])
        session.advance(steps, losses)
        if not meter.running:
            session.wait()
            meter.start(feeder.waited_seconds)
        if session.schedule.is_log_due(session.step):
            self._monitor.log(session, feeder.waited_seconds)
        self._monitor.report_progress(session, "training")

    def _roll_back(self, error: LossNotFiniteError) -> None:
        """Returns to the newest checkpoint, and skips the batches since then."""
        broken = self.session.state
        if len(broken.skipped) >= _MOST_ROLLBACKS:
            problem = f"{error.texts['problem']}, after {_MOST_ROLLBACKS} rollbacks to a checkpoint"
            raise LossNotFiniteError.like(error, problem=problem) from error
        checkpoint, start = self._persistence.find_state()
        window = [start.step, start.next_batch, broken.next_batch]
        self._persistence.remember_skipped([*broken.skipped, window])
        self._setup.reporter.warn(
            f"{error.problem}: rolling back to step {start.step} and skipping the batches "
            f"{window[1]} to {window[2] - 1}",
            alert="rolled_back",
            step=broken.step,
        )
        self._monitor.stall_alarm.rest()
        # A device may not fit two models, and the error's frames hold the broken one.
        traceback.clear_frames(error.__traceback__)
        del self.session, self._pauses
        gc.collect()
        self._start_session(checkpoint, start.skipping(window))
        if not checkpoint:
            self._setup.reporter.event("resumed", step=_BEFORE_THE_FIRST_STEP)

    def _utilisation(self) -> AbstractContextManager[object]:
        if not self._setup.config.log_utilisation or not self._setup.devices.is_first:
            return nullcontext()
        return UtilisationLog(self._setup.reporter, lambda: self._monitor.step)
