"""Says at which steps a run pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.training.recipe import Plan


@dataclass(frozen=True)
class PauseSchedule:
    """The steps after which a run logs, validates, evaluates or saves.

    Attributes:
        begun_at: The step that this start or resume begins with.
        validates_first: Validate before the first step.
        evaluate_every: Steps between evaluations on minimal pairs and text; None: no evaluations.
        marks: Numbers of words by the step at which their checkpoint is due.
        steps_per_execution: Wanted steps per call of the backend.
    """

    plan: Plan
    begun_at: int
    validates_first: bool
    evaluate_every: int | None
    marks: Mapping[int, Sequence[int]]
    steps_per_execution: int

    def is_last(self, step: int) -> bool:
        return step >= self.plan.num_train_steps

    def is_log_due(self, step: int) -> bool:
        return self._is_due(step, self.plan.logging_steps)

    def is_validation_due(self, step: int) -> bool:
        return self._is_due(step, self.plan.eval_steps) if step else self.validates_first

    def is_evaluation_due(self, step: int) -> bool:
        """Returns False at the first step: before it was saved, the run was evaluated."""
        if self.evaluate_every is None or step == self.begun_at:
            return False
        return self._is_due(step, self.evaluate_every)

    def is_mark_due(self, step: int) -> bool:
        return step in self.marks and step != self.begun_at

    def is_save_due(self, step: int) -> bool:
        return step > 0 and self._is_due(step, self.plan.save_steps)

    def steps_per_call(self, step: int) -> int:
        """Returns how many steps to execute at once: one, if a pause is nearer than wanted."""
        every = [self.plan.eval_steps, self.plan.save_steps, self.plan.logging_steps]
        if self.evaluate_every is not None:
            every.append(self.evaluate_every)
        ends = [self.plan.num_train_steps, *(mark for mark in self.marks if mark > step)]
        room = min(*(steps - step % steps for steps in every), *(end - step for end in ends))
        return self.steps_per_execution if self.steps_per_execution <= room else 1

    def count_pauses_left(self, step: int) -> dict[str, int]:
        """Returns the number of later pauses, by reason."""
        total = self.plan.num_train_steps
        every = {"eval": self.plan.eval_steps, "save": self.plan.save_steps}
        if self.evaluate_every is not None:
            every["interim"] = self.evaluate_every
        return {
            **{reason: total // steps - step // steps for reason, steps in every.items()},
            "mark": sum(step < mark <= total for mark in self.marks),
        }

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or self.is_last(step)
