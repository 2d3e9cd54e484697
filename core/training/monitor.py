"""Reports a run's metrics and progress, and raises its alarms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from core.artifacts.checkpoint import EvalResults
from core.errors import LossNotFiniteError
from core.models.registry import count_parameters
from core.records.events import Reporter
from core.training.alarms import LossAlarm, OverfittingAlarm, StallAlarm
from core.training.recipe import dropout_hint
from core.training.resolved import resolved_settings
from core.training.sources import describe_epochs
from core.training.tensorboard import FOLDER, ScalarWriter

if TYPE_CHECKING:
    from core.training.run_setup import RunSetup
    from core.training.session import Session


class Monitor:
    """The metrics, progress and alarms of all sessions of a run.

    Attributes:
        step: The newest that was reported.
    """

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._reporter = setup.reporter
        self._scalars = ScalarWriter(setup.folder / FOLDER)
        self._loss_alarm = LossAlarm(setup.reporter)
        self._overfitting_alarm = OverfittingAlarm(setup.reporter)
        self._newest_loss: float | None = None
        self.stall_alarm = StallAlarm(setup.reporter)
        self.step = 0

    def close(self) -> None:
        self._scalars.close()

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Reports metrics, also to TensorBoard."""
        self._reporter.metrics(step, dict(values))
        with warning_if_disk_full(self._reporter, step, "a TensorBoard value"):
            self._scalars.write(step, values)

    def report_progress(self, session: Session, note: str) -> None:
        """Shows the step, what the run does, and the time left."""
        if session.meter.running:
            self.stall_alarm.beat()
        self.step, total = session.step, session.plan.num_train_steps
        pauses_left = session.schedule.count_pauses_left(self.step)
        eta = session.meter.eta_seconds(total - self.step, pauses_left)
        self._reporter.progress(self.step, total, "steps", note, eta)

    def log(self, session: Session, waited_seconds: float) -> None:
        """Reports the mean loss since the last log line, and the speed.

        Raises:
            LossNotFiniteError: The loss is NaN or infinite.
        """
        loss = float(np.mean(self.fetch_losses(session)))
        speed = session.meter.read_window(waited_seconds)
        self.report(
            session.step,
            {
                "loss": loss,
                "learning_rate": session.learning_rate(),
                **speed,
                "epoch": session.batches.epochs_after(session.state.next_batch),
                **session.source_epochs(session.state.next_batch),
            },
        )
        if not math.isfinite(loss):
            raise not_finite("The training loss", session.step, loss)
        self._loss_alarm.observe(session.step, loss)
        self._newest_loss = loss
        session.losses = []
        session.state = replace(session.state, pending_losses=[])

    def fetch_losses(self, session: Session) -> list[float]:
        """Waits for the losses since the last log line."""
        losses = list(session.state.pending_losses)
        for of_call in session.losses:
            losses += map(float, session.backend.fetch([of_call])[0])
            if session.meter.running:
                # An asynchronous backend finishes the counted steps only now.
                self.stall_alarm.beat()
        return losses

    def observe_validation(self, results: EvalResults) -> None:
        """Raises LossNotFiniteError, or an alarm if the model overfits."""
        if not math.isfinite(results.eval_loss):
            raise not_finite("The validation loss", results.step, results.eval_loss)
        if self._newest_loss is not None:
            self._overfitting_alarm.observe(results.step, results.eval_loss, self._newest_loss)

    def describe(self, session: Session) -> None:
        """Reports the plan and the resolved settings."""
        plan, inputs = session.plan, self._setup.inputs
        parameters = count_parameters(inputs.architecture)
        self.step = session.step
        self._reporter.note(
            f"{parameters:,} parameters; {plan.num_train_steps:,} steps of "
            f"{plan.global_batch_size:,} x {plan.row_length:,} tokens: {plan.total_tokens:,} "
            f"tokens, {plan.num_train_epochs:.3g} epochs, "
            f"{plan.tokens_per_parameter(parameters):.3g} tokens per parameter"
        )
        if inputs.sources.from_mixture:
            epochs = describe_epochs(inputs.sources.epochs(plan.total_sequences))
            self._reporter.note(f"The mixture reads {epochs}", mixture=True)
        if hint := dropout_hint(session.config, plan, inputs.architecture):
            self._reporter.note(hint)
        settings = resolved_settings(
            session.config, plan, inputs, self._setup.devices, session.micro_batches
        )
        self._reporter.event("resolved", settings=settings, tokens_per_step=plan.tokens_per_step)
        if plan.warmup_steps >= plan.num_train_steps:
            self._reporter.warn(
                f"The learning rate never reaches its peak: the warm-up takes {plan.warmup_steps} "
                f"steps, and the run has only {plan.num_train_steps}. Lower warmup_steps"
            )


@contextmanager
def warning_if_disk_full(reporter: Reporter, step: int, what: str) -> Iterator[None]:
    """Turns an OSError into a warning that `what` could not be saved."""
    try:
        yield
    except OSError as error:
        reporter.warn(
            f"Step {step}: {what} could not be saved ({error.strerror}). Training "
            "continues, and earlier files are intact",
            alert="save_failed",
        )


def not_finite(what: str, step: int, value: float) -> LossNotFiniteError:
    return LossNotFiniteError(
        f"{what} is NaN or infinite at step {step}",
        expected="finite values",
        received=str(value),
        fix="lower ⟬learning_rate⟭, raise ⟬warmup_steps⟭ or set ⟬max_grad_norm⟭; earlier "
        "checkpoints are intact",
    )
