"""A run from a start, resume or rollback to the next: its plan, backend and state."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.artifacts.checkpoint import TrainingState
from core.backends.base import Backend, check_divisible
from core.backends.devices import memory_per_device
from core.backends.processes import broadcast
from core.config.train import TrainConfig
from core.config.word_marks import parse_word_marks
from core.models.registry import count_parameters
from core.processes.cores import OtherPrograms
from core.training import recipe
from core.training.batches import THREADS, BatchPrefetcher, TrainBatches
from core.training.inputs import tolerate_damage
from core.training.meter import ThroughputMeter
from core.training.pause_schedule import PauseSchedule
from core.training.resume import check_same_run, resumed_plan
from core.training.sources import check_epochs
from core.training.starting_model import start_backend
from core.training.words import find_word_rate, mean_word_rate, steps_of_marks

if TYPE_CHECKING:
    from core.training.run_setup import RunSetup


@dataclass
class Session:
    """The data that training steps read and change.

    Attributes:
        config: With its learning rate resolved.
        micro_batches: Number per step and device; a step accumulates their gradients.
        words_per_step: 0 if neither checkpoints nor evaluations need it.
        state: After the newest step.
        saved: The state of the newest checkpoint.
        losses: On the device, since the last log line or checkpoint.
        started: Time of `time.perf_counter`.
        others: Other programs, which take cores meanwhile.
    """

    setup: RunSetup
    config: TrainConfig
    plan: recipe.Plan
    micro_batches: int
    words_per_step: float
    schedule: PauseSchedule
    batches: TrainBatches
    backend: Backend
    meter: ThroughputMeter
    state: TrainingState
    saved: TrainingState | None
    seconds_before: float
    losses: list[Any] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    others: OtherPrograms = field(default_factory=OtherPrograms)

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def is_finished(self) -> bool:
        return self.schedule.is_last(self.step)

    @property
    def is_validated(self) -> bool:
        evaluated = self.state.evaluated
        return evaluated is not None and evaluated.step == self.step

    @property
    def is_saved(self) -> bool:
        saved = self.saved
        return (
            saved is not None
            and saved.step == self.step
            and saved.evaluated == self.state.evaluated
        )

    def prefetch_batches(self) -> BatchPrefetcher:
        """Starts to prepare the batches of all steps left, on the device."""
        first = self.state.next_batch
        stop = first + self.plan.num_train_steps - self.step
        return BatchPrefetcher(self._prepare, first, stop, self.batches.at_once, THREADS)

    def _prepare(self, numbers: range) -> list[Any]:
        own_rows = self.backend.part(self.plan.global_batch_size)
        batches = self.batches.several(numbers, own_rows)
        return [
            self.backend.put(batch, number) for number, batch in zip(numbers, batches, strict=True)
        ]

    def advance(self, steps: int, losses: Any) -> None:
        """Counts dispatched steps, whose losses are on the device."""
        self.losses.append(losses)
        self.state = replace(
            self.state, step=self.step + steps, next_batch=self.state.next_batch + steps
        )
        self.meter.count_steps(steps)

    def wait(self) -> None:
        """Waits for the dispatched steps."""
        if self.losses:
            self.backend.fetch(self.losses[-1:])

    def learning_rate(self) -> float:
        """Returns the learning rate of the newest step."""
        return float(recipe.learning_rate_schedule(self.config, self.plan).at(self.step - 1))

    def source_epochs(self, batches: int) -> dict[str, float]:
        """Returns how often each source of a mixture is read in a number of batches."""
        sources = self.setup.inputs.sources
        if not sources.is_mixture:
            return {}
        epochs = sources.epochs(batches * self.plan.global_batch_size)
        return {f"epoch/{name}": value for name, value in epochs.items()}

    def seen(self) -> dict[str, int]:
        """Returns the numbers of tokens and words seen."""
        words = round(self.step * self.words_per_step)
        return {"tokens_seen": self.step * self.plan.tokens_per_step, "words_seen": words}

    def seconds(self) -> float:
        """Returns the seconds so far, over all sessions."""
        return self.seconds_before + time.perf_counter() - self.started


def start_session(setup: RunSetup, checkpoint: Path | None, state: TrainingState) -> Session:
    """Starts a run's backend at a state.

    Args:
        checkpoint: Holds the state; None: the run starts at step 0.

    Raises:
        CheckpointError: The run began with other settings or inputs.
        ConfigError: The run would read a source of its mixture too often.
    """
    config, inputs, reporter = setup.config, setup.inputs, setup.reporter
    if config.learning_rate is None:
        # Keep the first start's default: another version may have another.
        config = config.model_copy(update={"learning_rate": state.config["learning_rate"]})
    if checkpoint:
        check_same_run(state, config, inputs.fingerprints)
        reporter.note(f"Resuming from step {state.step}", step=state.step)
        reporter.event("resumed", step=state.step)
    state = replace(state, engine=setup.devices.engine)
    saved = state if checkpoint else None
    plan = resumed_plan(config, recipe.Plan(**state.plan), state.step)
    check_epochs(config, inputs.sources, plan.total_sequences)
    micro_batches = _micro_batches(setup, config, plan)
    words_per_step = _words_per_step(setup, plan)
    marks = parse_word_marks(config.word_marks) if words_per_step else []
    starts_from_weights = inputs.checkpoint is not None
    schedule = PauseSchedule(
        plan,
        begun_at=state.step,
        validates_first=starts_from_weights
        if config.eval_on_start is None
        else config.eval_on_start,
        evaluate_every=config.evaluate_every if setup.interim else None,
        marks=steps_of_marks(marks, words_per_step),
        steps_per_execution=config.steps_per_execution,
    )
    batches = TrainBatches(
        tolerate_damage(inputs.train_rows, config, inputs, reporter),
        inputs.objective,
        plan.global_batch_size,
        config.seed,
        inputs.sources.order(config.seed),
    )
    return Session(
        setup,
        config,
        plan,
        micro_batches,
        words_per_step,
        schedule,
        batches,
        backend=start_backend(setup, config, plan, micro_batches, checkpoint),
        meter=ThroughputMeter(plan.tokens_per_step),
        state=replace(state, plan=asdict(plan)),
        saved=saved,
        seconds_before=state.seconds,
    )


def _micro_batches(setup: RunSetup, config: TrainConfig, plan: recipe.Plan) -> int:
    memory, architecture = memory_per_device(setup.devices), setup.inputs.architecture
    planned = recipe.with_planned_precision(config, plan)

    def fits_in_memory(sequences: int) -> bool:
        needed = recipe.estimate_memory_bytes(
            architecture,
            count_parameters(architecture),
            planned.model_copy(update={"per_replica_batch_size": sequences}),
            plan.row_length,
        )
        return memory is None or needed <= memory

    count = recipe.accumulation_steps(
        config, plan.global_batch_size, setup.devices.count, fits_in_memory
    )
    # Rank 0 decides for all hosts, whose memory may differ.
    count = broadcast(count, setup.devices)
    check_divisible(plan.global_batch_size, setup.devices.count, count)
    if count != config.gradient_accumulation_steps:
        setup.reporter.note(
            f"A step of {plan.global_batch_size:,} sequences uses {count} gradient accumulation "
            f"steps on {setup.devices.count} devices"
        )
    return count


def _words_per_step(setup: RunSetup, plan: recipe.Plan) -> float:
    if not setup.config.checkpoint_words and setup.interim is None:
        return 0.0
    tokenizer = setup.inputs.tokenizer
    rate = mean_word_rate(
        [
            (source.share, find_word_rate(source.shards, tokenizer))
            for source in setup.inputs.sources.all
        ]
    )
    setup.reporter.note(f"Words seen are derived from tokens seen: {rate.describe()}")
    return rate.per_token * plan.tokens_per_step
