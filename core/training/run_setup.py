"""The settings and inputs of a run, constant from its start to its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from core.artifacts.checkpoint import TrainingState
from core.backends.devices import Devices
from core.backends.precision import choose_precision
from core.config.train import TrainConfig
from core.records.events import EVENTS_FILE, Reporter, read_resolved
from core.training.cooccurrence import CooccurrenceCount
from core.training.inputs import TrainingInputs
from core.training.interim import InterimEvaluation
from core.training.recipe import Plan, resolve_learning_rate
from core.training.uploads import Uploads


@dataclass(frozen=True)
class RunSetup:
    """Settings, inputs and helpers of a run; `plan` is that of a new run.

    Attributes:
        config: Its learning rate may be open.
        cooccurrences: Initial token embeddings, if wanted.
        interim: Evaluations on minimal pairs and text, if wanted.
    """

    config: TrainConfig
    inputs: TrainingInputs
    plan: Plan
    devices: Devices
    folder: Path
    reporter: Reporter
    uploads: Uploads | None = None
    cooccurrences: CooccurrenceCount | None = None
    interim: InterimEvaluation | None = None

    @cached_property
    def first_state(self) -> TrainingState:
        """The state before the first step; measures once which precision is the faster."""
        config = resolve_learning_rate(
            self.with_rate_of_first_attempt(), self.inputs.architecture,
            self.plan.global_batch_size,
        )  # fmt: skip
        return TrainingState(
            step=0,
            next_batch=0,
            seconds=0.0,
            seed=config.seed,
            config=config.model_dump(mode="json"),
            plan=asdict(self._plan_with_precision()),
            fingerprints=self.inputs.fingerprints,
            engine=self.devices.engine,
        )

    def with_rate_of_first_attempt(self) -> TrainConfig:
        """Keeps the automatic learning rate of an attempt that ended before its checkpoint."""
        rate = read_resolved(self.folder / EVENTS_FILE).get("learning_rate")
        if self.config.learning_rate is not None or not isinstance(rate, float) or not rate > 0:
            return self.config
        return self.config.model_copy(update={"learning_rate": rate})

    def _plan_with_precision(self) -> Plan:
        if self.config.dtype_policy != "auto":
            return self.plan
        # The background count would disturb the timing.
        quiet = self.cooccurrences.wait if self.cooccurrences else None
        policy, reason = choose_precision(self.devices, quiet=quiet)
        self.reporter.note(f"Computing in {reason}")
        return replace(self.plan, dtype_policy=policy)
