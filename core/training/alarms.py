"""Warnings of loss spikes, overfitting and stalled steps."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from core.records.events import Reporter

_REMEMBERED_LOSSES = 20
_LOSSES_TO_JUDGE_BY = 5
_SPIKE_NATS = 0.5
_SPIKE_DEVIATIONS = 6.0

_RISES_TO_WARN = 3
_RISE_NATS = 0.02
_RISE_SHARE = 0.01

STALLED_SECONDS = 120.0
_STALLED_STEPS = 20.0
_LOOK_SECONDS = 1.0


class LossAlarm:
    """Warns when the loss spikes above the median of the last 20 log lines."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._losses: deque[float] = deque(maxlen=_REMEMBERED_LOSSES)
        self._raised = False

    def observe(self, step: int, loss: float) -> None:
        """Records a log line's loss, in nats."""
        if len(self._losses) >= _LOSSES_TO_JUDGE_BY:
            self._judge(step, loss)
        self._losses.append(loss)

    def _judge(self, step: int, loss: float) -> None:
        usual = statistics.median(self._losses)
        deviation = statistics.median(abs(earlier - usual) for earlier in self._losses)
        jumped = loss - usual > max(_SPIKE_NATS, _SPIKE_DEVIATIONS * deviation)
        if jumped and not self._raised:
            self._reporter.warn(
                f"The loss jumped from about {usual:.2f} to {loss:.2f} at step {step}. It often "
                "recovers; if it doesn't, lower the learning rate or clip the gradients' norm",
                alert="loss_spike",
                step=step,
            )
        self._raised = jumped


class OverfittingAlarm:
    """Warns when validation loss rises for some validations while training loss falls."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._best: tuple[float, float, int] | None = None
        self._rises = 0
        self._raised = False

    def observe(self, step: int, eval_loss: float, loss: float) -> None:
        """Records a validation, and the training loss of that time, in nats."""
        if self._best is None or eval_loss < self._best[0]:
            self._best, self._rises, self._raised = (eval_loss, loss, step), 0, False
            return
        lowest, loss_then, step_then = self._best
        rose = eval_loss - lowest > max(_RISE_NATS, _RISE_SHARE * lowest)
        self._rises = self._rises + 1 if rose and loss < loss_then else 0
        if self._rises < _RISES_TO_WARN or self._raised:
            return
        self._raised = True
        self._reporter.warn(
            f"The validation loss has risen from {lowest:.2f} at step {step_then} to "
            f"{eval_loss:.2f}, while the training loss fell from {loss_then:.2f} to {loss:.2f}: "
            "the model learns its training text by heart. More text, dropout or fewer epochs "
            "help; the best checkpoint is kept",
            alert="overfitting",
            step=step,
        )


class StallAlarm:
    """Warns if no step ends within 20 usual steps, and `quiet_seconds`."""

    def __init__(
        self,
        reporter: Reporter,
        quiet_seconds: float = STALLED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._last: float | None = None
        self._usual_seconds = 0.0
        self._raised = self._raised_before = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="stall-alarm")

    def __enter__(self) -> StallAlarm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def beat(self) -> None:
        """Records the end of a step, batch or save."""
        now = self._clock()
        # Ignore a stalled step, unless the step before stalled too.
        if self._last is not None and (not self._raised or self._raised_before):
            self._usual_seconds += 0.1 * (now - self._last - self._usual_seconds)
        self._last = now
        self._raised_before, self._raised = self._raised, False

    def rest(self) -> None:
        """Suspends the alarm, for example during compilation."""
        self._last = None

    def look(self) -> None:
        """Warns if the last beat is too long ago."""
        if self._last is None or self._raised:
            return
        quiet = self._clock() - self._last
        if quiet > max(self._quiet_seconds, _STALLED_STEPS * self._usual_seconds):
            self._raised = True
            self._reporter.warn(
                f"No step has finished for {quiet:.0f} seconds. The device, the disk or the "
                "network may hang; if this continues, stop the run without saving and resume it",
                alert="stalled",
            )

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self.look()
