"""Pauses between two steps: validation, evaluation, checkpoints and stop requests."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from core.artifacts.checkpoint import EvalResults
from core.records.events import RunStopped, StopMode
from core.training.batches import BatchPrefetcher
from core.training.evaluation import create_evaluation
from core.training.monitor import Monitor, not_finite, warning_if_disk_full
from core.training.persistence import Persistence, check_finite
from core.training.samples import SamplePredictions, can_predict

if TYPE_CHECKING:
    from core.training.session import Session

# Measured once: the data don't change.
_BASELINE = "frequency_baseline_loss"
# Processes agree on the largest index.
_STOPS: tuple[StopMode | Literal["preempted"] | None, ...] = (None, "preempted", "save", "abort")


class Pauses:
    """The pauses of a session.

    Raises:
        LossNotFiniteError: A loss or weight is NaN or infinite.
        RunStopped: The reporter requested it; with "save", the state is on disk.
    """

    def __init__(self, session: Session, monitor: Monitor, persistence: Persistence) -> None:
        setup = session.setup
        self._session = session
        self._setup = setup
        self._reporter = setup.reporter
        self._monitor = monitor
        self._persistence = persistence
        self._evaluation = create_evaluation(
            session.config, setup.inputs, session.backend, setup.devices, setup.reporter
        )
        self._evaluation.resume(session.state.evaluated)
        self._samples: SamplePredictions | None = None
        count = session.config.sample_predictions
        if count and can_predict(setup.devices):
            self._samples = SamplePredictions(count, setup.inputs, session.backend)

    def pause(self, feeder: BatchPrefetcher) -> None:
        """Does what is due before the next step; nothing at most steps."""
        session, schedule = self._session, self._session.schedule
        if schedule.is_validation_due(session.step) and not session.is_validated:
            with self._measured("eval", feeder):
                self._validate()
        if schedule.is_evaluation_due(session.step):
            with self._measured("interim", feeder):
                self._evaluate()
        if schedule.is_mark_due(session.step):
            with self._measured("mark", feeder):
                self._keep_models()
        stop = self._agreed_stop()
        if stop == "abort":
            raise RunStopped("abort")
        if (schedule.is_save_due(session.step) or stop == "save") and not session.is_saved:
            with self._measured("save", feeder):
                self._save(must_succeed=stop == "save" or session.is_finished)
        if stop == "save":
            raise RunStopped("save")

    @contextmanager
    def _measured(self, reason: str, feeder: BatchPrefetcher) -> Iterator[None]:
        """Waits, so that steps in flight aren't counted as a pause."""
        self._session.wait()
        with self._session.meter.pause(reason, feeder.waited_seconds):
            yield

    def _validate(self) -> None:
        session = self._session
        results = self._evaluation.run(
            session.step,
            lambda done, of: self._show(f"validating, batch {done + 1} of {of}"),
        )
        if results is None:
            return
        values = results.figures
        if session.state.evaluated is not None:
            values = {name: values[name] for name in values if not name.startswith(_BASELINE)}
        self._monitor.report(session.step, values)
        self._monitor.observe_validation(results)
        session.state = replace(session.state, evaluated=results)
        self._show_samples()
        with self._warning_if_disk_full("the validation results"):
            self._persistence.write_results(results)

    def _show_samples(self) -> None:
        if not self._samples:
            return
        self._show("predicting samples")
        try:
            samples = self._samples.run()
        except Exception as error:  # noqa: BLE001 -- what is only shown must not end the run
            self._samples = None
            self._reporter.note(f"No sample predictions: {type(error).__name__}: {error}"[:500])
            return
        self._reporter.event("samples", step=self._session.step, samples=samples)

    def _evaluate(self) -> None:
        """Evaluates on minimal pairs and text."""
        session, interim = self._session, self._setup.interim
        assert interim is not None
        self._show("evaluating")
        started = time.perf_counter()
        values = session.backend.read_state()
        if not self._setup.devices.is_first:
            return
        figures = interim.run(
            self._setup.folder, self._persistence.model_writer(values), self._show
        )
        if figures is None:
            return
        seconds = time.perf_counter() - started
        total_seconds = session.state.evaluation_seconds + seconds
        session.state = replace(session.state, evaluation_seconds=total_seconds)
        cost = {
            "evaluation_seconds": seconds,
            "evaluation_percent": 100 * total_seconds / session.seconds(),
        }
        self._monitor.report(session.step, {**figures, **session.seen(), **cost})

    def _keep_models(self) -> None:
        session = self._session
        values = session.backend.read_state()
        check_finite(values, session.step)
        if not self._setup.devices.is_first:
            return
        counts = {"step": session.step, **session.seen()}
        for words in session.schedule.marks[session.step]:
            self._show("saving")
            with self._warning_if_disk_full(f"the checkpoint at {words:,} words"):
                self._persistence.keep_model(words, counts, values)

    def _save(self, *, must_succeed: bool) -> None:
        session = self._session
        self._show("saving")
        losses = self._monitor.fetch_losses(session)
        if not all(map(math.isfinite, losses)):
            raise not_finite("The training loss", session.step, math.nan)
        state = replace(
            session.state, pending_losses=losses, best=self._best(), seconds=session.seconds()
        )
        with nullcontext() if must_succeed else self._warning_if_disk_full("the checkpoint"):
            values = session.backend.read_state()
            check_finite(values, state.step)
            self._persistence.save(state, values)
            session.losses = []
            session.state = session.saved = state
            self._persistence.prune(state.best)

    def _best(self) -> EvalResults | None:
        """Returns the better of the best checkpoint and the validated weights."""
        best, evaluated = self._session.state.best, self._session.state.evaluated
        if evaluated is None or not self._session.is_validated:
            return best
        return evaluated if best is None or evaluated.eval_loss < best.eval_loss else best

    def _agreed_stop(self) -> StopMode | None:
        """Returns the most urgent stop request, at one step in all processes."""
        stop = self._reporter.stop_requested()
        asked = "preempted" if self._reporter.is_preempted() else stop
        agreed = _STOPS[self._session.backend.agree(_STOPS.index(asked))]
        if agreed == "preempted":
            # If one host is preempted, all are requeued.
            self._reporter.preempt()
            return "save"
        return agreed

    def _show(self, note: str) -> None:
        self._monitor.report_progress(self._session, note)

    def _warning_if_disk_full(self, what: str) -> AbstractContextManager[None]:
        return warning_if_disk_full(self._reporter, self._session.step, what)
