"""Training loop: steps, logging, validation, checkpoints and export; resumes bit-exactly."""

from __future__ import annotations

import gc
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    Checkpoints,
    EvalResults,
    TrainingState,
    read_arrays,
    read_state,
    write_eval_results,
)
from core.backends.base import (
    Backend,
    BackendOptions,
    check_divisible,
    set_output_bias,
    variables_by_path,
)
from core.backends.compilation import enable_compilation_cache
from core.backends.creation import build_for_training, create_backend
from core.backends.devices import (
    Devices,
    is_multi_process,
    memory_per_device,
    reporting_lost_processes,
)
from core.backends.precision import choose_precision
from core.backends.processes import broadcast, broadcast_arrays
from core.backends.selection import select_backend
from core.config.options import settled
from core.config.train import TrainConfig
from core.config.word_marks import parse_word_marks
from core.errors import LossNotFiniteError, StudioError
from core.models import hf
from core.models.building import create_model
from core.models.registry import count_parameters
from core.records.events import Reporter, RunStopped, StopMode
from core.records.utilisation import UtilisationLog
from core.training import automatic, recipe
from core.training.alarms import LossAlarm, OverfittingAlarm, StallAlarm
from core.training.batches import (
    THREADS,
    BatchPrefetcher,
    EvalBatches,
    SequenceSource,
    TolerantSequences,
    TrainBatches,
)
from core.training.cooccurrence import (
    CooccurrenceCount,
    find_token_embeddings,
    set_token_embeddings,
)
from core.training.evaluation import Evaluation, ValidationSource
from core.training.export import (
    check_destination,
    check_room,
    evaluated_artifact,
    export_model,
    wanted_name,
)
from core.training.inputs import TrainingInputs, open_inputs, resolve_checkpoint
from core.training.interim import InterimEvaluation
from core.training.interim_options import check_used
from core.training.local_attention import local_attention_weights
from core.training.meter import ThroughputMeter
from core.training.mixture import BLOCK
from core.training.planner import flops_per_token
from core.training.resolved import resolved_settings
from core.training.resume import check_nothing_is_lost, check_same_run, resumed_plan
from core.training.samples import SamplePredictions, can_predict
from core.training.sources import check_epochs, check_unchanged, describe_epochs
from core.training.speeds import record_speed
from core.training.tensorboard import FOLDER as TENSORBOARD_FOLDER
from core.training.tensorboard import ScalarWriter
from core.training.uploads import Uploads
from core.training.words import find_word_rate, mean_word_rate, steps_of_marks
from core.workspace.manifests import Artifact, Manifest
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_BEFORE_THE_FIRST_STEP = -1
# Measured once: the data don't change.
_BASELINE = "frequency_baseline_loss"
_MOST_ROLLBACKS = 3
# Processes agree on the largest index.
_STOPS: tuple[StopMode | Literal["preempted"] | None, ...] = (None, "preempted", "save", "abort")


def train(config: TrainConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Trains a model, or resumes the reporter's run, and exports its best checkpoint.

    Returns:
        The model; with `evaluate_only` the checkpoint, its results as counts.

    Raises:
        ConfigError, DeviceError, CheckpointError, RunError: The run can't start.
        LossNotFiniteError: Rollbacks did not help.
        RunStopped: The reporter requested it.
    """
    reporter = reporter or Reporter()
    resumed = _is_resumed(reporter)
    if not resumed:
        check_used(config)
    config = automatic.resolve(config, workspace, reporter)
    inputs = open_inputs(
        config, workspace, reporter, resumed=resumed, own=_own_checkpoint(config, reporter)
    )
    check_unchanged(inputs.sources, workspace)
    config = resolve_checkpoint(config, workspace)
    with _run_folder(workspace, reporter) as folder:
        if config.evaluate_only:
            return _evaluate_only(config, inputs, folder, reporter)
        check_destination(config, workspace, folder.name)
        check_room(config, inputs.architecture, folder)
        interim = _interim_evaluation(config, reporter)
        with _cooccurrence_count(config, inputs, ahead=not resumed) as words:
            return _train(config, workspace, inputs, words, interim, folder, reporter)


def _train(
    config: TrainConfig,
    workspace: Workspace,
    inputs: TrainingInputs,
    words: CooccurrenceCount | None,
    interim: InterimEvaluation | None,
    folder: Path,
    reporter: Reporter,
) -> Artifact:
    devices = select_backend(config)
    if words and not devices.is_first:
        words.forget()  # Rank 0 broadcasts its own.
    enable_compilation_cache(devices, workspace.cache / "compiled")
    reporter.note(devices.describe())
    plan = recipe.plan(
        config,
        inputs.epoch_length,
        inputs.shards.row_length,
        replicas=devices.count,
        validation_rows=len(inputs.validation_rows),
    )
    with (
        reporting_lost_processes(devices),
        _uploads(config, workspace, inputs, folder, devices, reporter) as uploads,
    ):
        run = TrainingRun(config, inputs, plan, devices, folder, reporter, uploads, words, interim)
        best = run.finish()
        model = None
        if devices.is_first:
            run.record_speed(workspace)
            model = export_model(
                run.config,
                workspace,
                inputs,
                checkpoint=best,
                counts=run.summary(),
                run=folder.name,
            )
            if uploads:
                uploads.finish(model)
        return _artifact_of_all(model, devices)


class TrainingRun:
    """Trains from step 0 or the newest checkpoint."""

    def __init__(
        self,
        config: TrainConfig,
        inputs: TrainingInputs,
        plan: recipe.Plan,
        devices: Devices,
        folder: Path,
        reporter: Reporter,
        uploads: Uploads | None = None,
        words: CooccurrenceCount | None = None,
        interim: InterimEvaluation | None = None,
    ) -> None:
        self._has_configured_learning_rate = config.learning_rate is not None
        self._config = recipe.resolve_learning_rate(config, inputs.architecture)
        self._inputs = inputs
        self._devices = devices
        self._reporter = reporter
        self._uploads = uploads
        self._words = words
        self._interim = interim
        self._checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER)
        self._folder = folder
        self._first_plan = plan
        found, state = self._find_state()
        if found is None and (folder / TENSORBOARD_FOLDER).exists():
            reporter.note("Starting from step 0: the run ended before its first checkpoint")
            reporter.event("resumed", step=_BEFORE_THE_FIRST_STEP)
        self._scalars = ScalarWriter(folder / TENSORBOARD_FOLDER)
        self._loss_alarm = LossAlarm(reporter)
        self._overfitting_alarm = OverfittingAlarm(reporter)
        self._newest_loss: float | None = None
        self._stall_alarm = StallAlarm(reporter)
        self._resume_from(found, state)

    def _find_state(self) -> tuple[Path | None, TrainingState]:
        found, text = None, None
        if self._devices.is_first:
            found = self._checkpoints.newest_valid(self._reporter)
            if found:
                state = replace(read_state(found), best=self._checkpoints.best())
            else:
                check_nothing_is_lost(self._folder)
                state = self._first_state()
            text = [bool(found), self._checkpoints.skip_again(state).to_json()]
        resumed, values = broadcast(text, self._devices)
        place = self._checkpoints.path(values["step"]) if resumed else None
        return found or place, TrainingState.from_json(values)

    def _resume_from(self, found: Path | None, state: TrainingState) -> None:
        if found:
            self._keep_learning_rate(state)
            check_same_run(state, self._config, self._inputs.fingerprints)
            self._reporter.note(f"Resuming from step {state.step}", step=state.step)
            self._reporter.event("resumed", step=state.step)
        state = replace(state, engine=self._devices.engine)
        self._plan = resumed_plan(self._config, recipe.Plan(**state.plan), state.step)
        check_epochs(self._config, self._inputs.sources, self._plan.total_sequences)
        parts = recipe.accumulation_steps(
            self._config, self._plan.global_batch_size, self._devices.count, self._fits_in_memory
        )
        # Rank 0 decides for all hosts, whose memory may differ.
        self._parts = broadcast(parts, self._devices)
        check_divisible(self._plan.global_batch_size, self._devices.count, self._parts)
        if self._parts != self._config.gradient_accumulation_steps:
            self._reporter.note(
                f"A step of {self._plan.global_batch_size:,} sequences uses {self._parts} "
                f"gradient accumulation steps on {self._devices.count} devices"
            )
        self._state = replace(state, plan=asdict(self._plan))
        self._saved = state if found else None
        self._begun_at = state.step
        self._marks = self._steps_of_word_marks()
        self._batches = TrainBatches(
            _tolerant(self._inputs.train_rows, self._config, self._inputs, self._reporter),
            self._inputs.objective,
            self._plan.global_batch_size,
            self._config.seed,
            self._inputs.sources.order(self._config.seed),
        )
        self._engine = self._create_engine(found)
        self._evaluation = _evaluation(
            self._config, self._inputs, self._engine, self._devices, self._reporter
        )
        self._evaluation.resume(self._state.evaluated)
        self._samples = self._sample_predictions()
        self._meter = ThroughputMeter(self._plan.tokens_per_step)
        self._losses: list[Any] = []
        self._clock_started = time.perf_counter()
        self._seconds_before = self._state.seconds

    def _steps_of_word_marks(self) -> dict[int, list[int]]:
        if not self._config.checkpoint_words and self._interim is None:
            return {}
        tokenizer = self._inputs.tokenizer
        rate = mean_word_rate(
            [(one.share, find_word_rate(one.shards, tokenizer)) for one in self._inputs.sources.all]
        )
        self._words_per_step = rate.per_token * self._plan.tokens_per_step
        self._reporter.note(f"Words seen are derived from tokens seen: {rate.describe()}")
        marks = parse_word_marks(self._config.word_marks)
        return steps_of_marks(marks, self._words_per_step)

    def _sample_predictions(self) -> SamplePredictions | None:
        count = self._config.sample_predictions
        if not count or not can_predict(self._devices):
            return None
        return SamplePredictions(count, self._inputs, self._engine)

    def _keep_learning_rate(self, state: TrainingState) -> None:
        """Keeps the first start's default: another version may have another."""
        if not self._has_configured_learning_rate:
            rate = state.config["learning_rate"]
            self._config = self._config.model_copy(update={"learning_rate": rate})

    def _fits_in_memory(self, rows: int) -> bool:
        memory, found = memory_per_device(self._devices), self._inputs.architecture
        config = recipe.with_planned_precision(self._config, self._plan)
        config = config.model_copy(update={"per_replica_batch_size": rows})
        needed = recipe.estimate_memory_bytes(
            found, count_parameters(found), config, self._plan.row_length
        )
        return memory is None or needed <= memory

    @property
    def config(self) -> TrainConfig:
        """The settings, with the learning rate resolved."""
        return self._config

    def finish(self) -> Path:
        """Trains to the last step; returns the best checkpoint's folder.

        Raises:
            RunStopped: With "save", the state is on disk.
        """
        self._describe()
        try:
            with self._stall_alarm, self._utilisation():
                while not self._is_training_finished():
                    pass
        finally:
            self._scalars.close()
        assert self._state.best is not None, "the last step is always validated and saved"
        return self._checkpoints.path(self._state.best.step)

    def _utilisation(self) -> AbstractContextManager[object]:
        if not self._config.log_utilisation or not self._devices.is_first:
            return nullcontext()
        return UtilisationLog(self._reporter, lambda: self._state.step)

    def _is_training_finished(self) -> bool:
        """Returns False after a rollback."""
        left = self._plan.num_train_steps - self._state.step
        first = self._state.next_batch
        try:
            at_once = self._batches.at_once
            with BatchPrefetcher(self._prepare, first, first + left, at_once, THREADS) as feeder:
                while True:
                    self._visit(feeder)
                    if self._state.step >= self._plan.num_train_steps:
                        return True
                    self._step(feeder)
        except LossNotFiniteError as error:
            self._roll_back(error)
            return False

    def _roll_back(self, error: LossNotFiniteError) -> None:
        broken = self._state
        if len(broken.skipped) >= _MOST_ROLLBACKS:
            raise LossNotFiniteError(
                f"{error.problem}, after {_MOST_ROLLBACKS} rollbacks to a checkpoint",
                expected=error.expected,
                received=error.received,
                fix=error.fix,
            ) from error
        found, start = self._find_state()
        window = [start.step, start.next_batch, broken.next_batch]
        if self._devices.is_first:
            self._checkpoints.remember_skipped([*broken.skipped, window])
        self._reporter.warn(
            f"{error.problem}: rolling back to step {start.step} and skipping the batches "
            f"{window[1]} to {window[2] - 1}",
            alert="rolled_back",
            step=broken.step,
        )
        self._stall_alarm.rest()
        # A device may not fit two models.
        del self._engine, self._evaluation, self._samples
        gc.collect()
        self._resume_from(found, start.skipping(window))
        if not found:
            self._reporter.event("resumed", step=_BEFORE_THE_FIRST_STEP)

    def summary(self) -> dict[str, float]:
        """Returns the metrics of a finished run."""
        best = self._state.best
        assert best is not None
        return {
            **best.figures,
            "best_step": best.step,
            "num_train_steps": self._state.step,
            "tokens": self._state.step * self._plan.tokens_per_step,
            "parameters": count_parameters(self._inputs.architecture),
            "seconds": round(self._state.seconds, 1),
            "skipped_batches": sum(stop - first for _, first, stop in self._state.skipped),
            **self._cost_of_interim(),
            **self._source_shares(),
        }

    def record_speed(self, workspace: Workspace) -> None:
        """Remembers the speed of the steps since this start for later forecasts."""
        steps = self._state.step - self._begun_at
        seconds = time.perf_counter() - self._clock_started
        per_token = flops_per_token(self._config, self._inputs)
        record_speed(
            workspace,
            family=self._inputs.architecture.model_type,
            device=self._devices.kind,
            engine=self._devices.engine,
            flops=steps * self._plan.tokens_per_step * per_token / seconds,
            hidden_size=self._inputs.architecture.hidden_size,
            seconds=seconds,
        )

    def _source_shares(self) -> dict[str, float]:
        sources = self._inputs.sources
        shares = {f"share/{one.name}": one.share / BLOCK for one in sources.all}
        return {**shares, **self._source_epochs(self._state.step)} if sources.is_mixture else {}

    def _visit(self, feeder: BatchPrefetcher) -> None:
        if self._is_validation_due() and not self._is_evaluated():
            self._wait()
            with self._meter.pause("eval", feeder.waited_seconds):
                self._evaluate()
        if self._is_interim_due():
            self._wait()
            with self._meter.pause("interim", feeder.waited_seconds):
                self._evaluate_interim()
        if self._is_mark_due():
            self._wait()
            with self._meter.pause("mark", feeder.waited_seconds):
                self._save_at_marks()
        due = self._state.step > 0 and self._is_due(self._plan.save_steps)
        mode = self._agreed_stop()
        if mode == "abort":
            raise RunStopped("abort")
        if (due or mode == "save") and not self._is_saved():
            self._wait()
            with self._meter.pause("save", feeder.waited_seconds):
                self._save(must_succeed=mode == "save" or self._is_last())
        if mode == "save":
            raise RunStopped("save")

    def _wait(self) -> None:
        """Waits, so that steps in flight aren't counted as a pause."""
        if self._losses:
            self._engine.fetch(self._losses[-1:])

    def _step(self, feeder: BatchPrefetcher) -> None:
        if not self._meter.running:
            self._report_progress("compiling the training step")
        steps = self._steps_per_call()
        self._losses.append(self._engine.train_steps([feeder.next() for _ in range(steps)]))
        self._state = replace(
            self._state, step=self._state.step + steps, next_batch=self._state.next_batch + steps
        )
        self._meter.count_steps(steps)
        if not self._meter.running:
            self._engine.fetch(self._losses[-1:])
            self._meter.start(feeder.waited_seconds)
        if self._is_due(self._plan.logging_steps):
            self._log(feeder)
        self._report_progress("training")

    def _agreed_stop(self) -> StopMode | None:
        """Returns the most urgent stop request, at one step in all processes."""
        stop = self._reporter.stop_requested()
        asked = "preempted" if self._reporter.is_preempted() else stop
        agreed = _STOPS[self._engine.agree(_STOPS.index(asked))]
        if agreed == "preempted":
            # If one host is preempted, all are requeued.
            self._reporter.preempt()
            return "save"
        return agreed

    def _steps_per_call(self) -> int:
        step, wanted = self._state.step, self._config.steps_per_execution
        every = [self._plan.eval_steps, self._plan.save_steps, self._plan.logging_steps]
        if self._interim:
            every.append(self._evaluate_every)
        ends = [self._plan.num_train_steps, *(mark for mark in self._marks if mark > step)]
        room = min(*(one - step % one for one in every), *(end - step for end in ends))
        return wanted if wanted <= room else 1

    def _prepare(self, numbers: range) -> list[Any]:
        part = self._engine.part(self._plan.global_batch_size)
        batches = self._batches.several(numbers, part)
        return [self._engine.put(one, number) for number, one in zip(numbers, batches, strict=True)]

    def _log(self, feeder: BatchPrefetcher) -> None:
        loss = self._mean_loss()
        speed = self._meter.read_window(feeder.waited_seconds)
        self._report(
            {
                "loss": loss,
                "learning_rate": self._learning_rate(),
                **speed,
                "epoch": self._batches.epochs_after(self._state.next_batch),
                **self._source_epochs(self._state.next_batch),
            }
        )
        if not math.isfinite(loss):
            raise _not_finite("The training loss", self._state.step, loss)
        self._loss_alarm.observe(self._state.step, loss)
        self._newest_loss = loss
        self._losses = []
        self._state = replace(self._state, pending_losses=[])

    def _source_epochs(self, batches: int) -> dict[str, float]:
        sources = self._inputs.sources
        if not sources.is_mixture:
            return {}
        epochs = sources.epochs(batches * self._plan.global_batch_size)
        return {f"epoch/{name}": value for name, value in epochs.items()}

    def _evaluate(self) -> None:
        results = self._evaluation.run(
            self._state.step,
            lambda done, of: self._report_progress(f"validating, batch {done + 1} of {of}"),
        )
        if results is None:
            return
        values = results.figures
        if self._state.evaluated is not None:
            values = {name: values[name] for name in values if not name.startswith(_BASELINE)}
        self._report(values)
        if not math.isfinite(results.eval_loss):
            raise _not_finite("The validation loss", results.step, results.eval_loss)
        self._state = replace(self._state, evaluated=results)
        if self._newest_loss is not None:
            self._overfitting_alarm.observe(results.step, results.eval_loss, self._newest_loss)
        self._show_samples()
        if not self._devices.is_first:
            return
        with self._warning_if_disk_full("the validation results"):
            write_eval_results(self._checkpoints.folder, results)

    def _evaluate_interim(self) -> None:
        assert self._interim is not None
        self._report_progress("evaluating")
        started = time.perf_counter()
        values = self._engine.read_state()
        found = None
        if self._devices.is_first:
            found = self._interim.run(
                self._folder, self._model_writer(values), self._report_progress
            )
        if found is None:
            return
        seconds = time.perf_counter() - started
        spent = self._state.evaluation_seconds + seconds
        self._state = replace(self._state, evaluation_seconds=spent)
        self._report({**found, **self._seen(), "evaluation_seconds": seconds,
                      "evaluation_percent": 100 * spent / self._seconds_so_far()})  # fmt: skip

    def _seen(self) -> dict[str, int]:
        step = self._state.step
        tokens, words = step * self._plan.tokens_per_step, round(step * self._words_per_step)
        return {"tokens_seen": tokens, "words_seen": words}

    def _cost_of_interim(self) -> dict[str, float]:
        """Returns the time in evaluations, and its share of the run's."""
        if self._interim is None:
            return {}
        spent = self._state.evaluation_seconds
        percent = 100 * spent / max(self._state.seconds, spent, 1e-9)
        return {"evaluation_seconds": round(spent, 1), "evaluation_percent": round(percent, 2)}

    def _save_at_marks(self) -> None:
        values = self._engine.read_state()
        _check_finite(values, self._state.step)
        if not self._devices.is_first:
            return
        counts = {"step": self._state.step, **self._seen()}
        for words in self._marks[self._state.step]:
            self._report_progress("saving")
            with self._warning_if_disk_full(f"the checkpoint at {words:,} words"):
                path = self._checkpoints.write_words(
                    words, counts, self._inputs.fingerprints, self._model_writer(values)
                )
                self._reporter.event("kept", path=str(path), words=words, **counts)
                self._reporter.note(
                    f"Kept the model at {words:,} words seen: {path.name}", step=self._state.step
                )

    def _show_samples(self) -> None:
        if not self._samples:
            return
        self._report_progress("predicting samples")
        try:
            samples = self._samples.run()
        except Exception as error:  # noqa: BLE001 -- what is only shown must not end the run
            self._samples = None
            self._reporter.note(f"No sample predictions: {type(error).__name__}: {error}"[:500])
            return
        self._reporter.event("samples", step=self._state.step, samples=samples)

    def _save(self, *, must_succeed: bool) -> None:
        self._report_progress("saving")
        losses = [*self._state.pending_losses, *self._fetch_losses()]
        if not all(map(math.isfinite, losses)):
            raise _not_finite("The training loss", self._state.step, math.nan)
        best = _better(self._state.best, self._state.evaluated, self._state.step)
        state = replace(
            self._state, pending_losses=losses, best=best, seconds=self._seconds_so_far()
        )
        with nullcontext() if must_succeed else self._warning_if_disk_full("the checkpoint"):
            self._write(state)
            self._losses = []
            self._state = self._saved = state
            if self._devices.is_first:
                self._checkpoints.prune(self._config.save_total_limit, best.step if best else None)

    @contextmanager
    def _warning_if_disk_full(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._reporter.warn(
                f"Step {self._state.step}: {what} could not be saved ({error.strerror}). Training "
                "continues, and earlier files are intact",
                alert="save_failed",
            )

    def _write(self, state: TrainingState) -> None:
        values = self._engine.read_state()
        _check_finite(values, state.step)
        if not self._devices.is_first:
            return
        weights = {tie.path for tie in hf.weight_mappings(self._inputs.architecture)}
        rest = {path: array for path, array in values.items() if path not in weights}
        path = self._checkpoints.write(state, rest, self._model_writer(values))
        self._reporter.event("checkpoint", step=state.step, path=str(path))
        if self._uploads:
            self._uploads.offer(path)

    def _model_writer(self, values: dict[str, NDArray]) -> Callable[[Path], None]:
        """Returns a function that writes weights and tokenizer into a folder."""
        architecture = self._inputs.architecture

        def write_model(folder: Path) -> None:
            hf.write_weights(folder, values, architecture)
            goes_on = architecture.kind == "decoder"
            longest = architecture.max_seq_length if architecture.limits_length else None
            self._inputs.tokenizer.copy_to(folder, ends=not goes_on, longest=longest)

        return write_model

    def _first_state(self) -> TrainingState:
        self._first_plan = self._with_precision(self._first_plan)
        return TrainingState(
            step=0,
            next_batch=0,
            seconds=0.0,
            seed=self._config.seed,
            config=self._config.model_dump(mode="json"),
            plan=asdict(self._first_plan),
            fingerprints=self._inputs.fingerprints,
            engine=self._devices.engine,
        )

    def _with_precision(self, plan: recipe.Plan) -> recipe.Plan:
        if self._config.dtype_policy != "auto" or plan.dtype_policy:
            return plan
        # The background count would disturb the timing.
        quiet = self._words.wait if self._words else None
        policy, reason = choose_precision(self._devices, quiet=quiet)
        self._reporter.note(f"Computing in {reason}")
        return replace(plan, dtype_policy=policy)

    def _create_engine(self, found: Path | None) -> Backend:
        engine = create_backend(
            self._devices,
            lambda: self._build(found),
            BackendOptions(self._config.sharding, self._parts),
        )
        if found:
            mine = self._devices.is_first
            values = {**read_arrays(found), **_read_weights(self._inputs, found)} if mine else {}
            variables = variables_by_path(engine.model, engine.optimizer)
            engine.write_state(broadcast_arrays(values, variables, self._devices))
        return engine

    def _build(self, found: Path | None) -> Any:
        weights = None
        if self._inputs.checkpoint and not found:
            # Before the model is built: a checkpoint's config may claim any dimensions.
            weights = _read_weights(self._inputs, self._inputs.checkpoint)
        schedule = recipe.learning_rate_schedule(self._config, self._plan)
        config = recipe.with_planned_precision(self._config, self._plan)
        model, optimizer = build_for_training(config, self._inputs.architecture, schedule)
        if weights is not None:
            hf.assign_weights(model, weights)
        elif not found:
            self._initialise_weights(model)
        return model, optimizer

    def _initialise_weights(self, model: Any) -> None:
        if self._config.output_bias == "log_frequency":
            set_output_bias(model, self._inputs.token_counts)
        if self._words:
            table = find_token_embeddings(model)
            # Rounding differs between hosts, and replicas must start equal.
            mine = self._devices.is_first
            vectors = {table.path: self._words.vectors()} if mine else {}
            shared = broadcast_arrays(vectors, {table.path: table}, self._devices)
            set_token_embeddings(table, shared[table.path])
        if self._config.attention_kernels == "neighbours":
            weights = variables_by_path(model, None)
            heads = self._inputs.architecture.num_attention_heads
            found = local_attention_weights(model, heads, self._inputs.shards.row_length)
            for path, values in broadcast_arrays(found, found, self._devices).items():
                weights[path].assign(values)

    def _mean_loss(self) -> float:
        return float(np.mean([*self._state.pending_losses, *self._fetch_losses()]))

    def _fetch_losses(self) -> list[float]:
        losses: list[float] = []
        for some in self._losses:
            losses += map(float, self._engine.fetch([some])[0])
            if self._meter.running:
                # An asynchronous backend finishes the counted steps only now.
                self._stall_alarm.beat()
        return losses

    def _learning_rate(self) -> float:
        schedule = recipe.learning_rate_schedule(self._config, self._plan)
        return float(schedule.at(self._state.step - 1))

    def _is_due(self, every: int) -> bool:
        return self._state.step % every == 0 or self._is_last()

    def _is_validation_due(self) -> bool:
        if self._state.step > 0:
            return self._is_due(self._plan.eval_steps)
        wanted = self._config.eval_on_start
        return bool(self._inputs.checkpoint) if wanted is None else wanted

    @property
    def _evaluate_every(self) -> int:
        return self._config.evaluate_every or self._plan.num_train_steps

    def _is_interim_due(self) -> bool:
        if self._interim is None or self._state.step == self._begun_at:
            return False  # Before it was saved, the run was evaluated.
        return self._is_due(self._evaluate_every)

    def _is_mark_due(self) -> bool:
        return self._state.step in self._marks and self._state.step != self._begun_at

    def _is_last(self) -> bool:
        return self._state.step >= self._plan.num_train_steps

    def _is_saved(self) -> bool:
        saved = self._saved
        return (
            saved is not None
            and saved.step == self._state.step
            and saved.evaluated == self._state.evaluated
        )

    def _is_evaluated(self) -> bool:
        evaluated = self._state.evaluated
        return evaluated is not None and evaluated.step == self._state.step

    def _seconds_so_far(self) -> float:
        return self._seconds_before + time.perf_counter() - self._clock_started

    def _report(self, values: dict[str, float]) -> None:
        self._reporter.metrics(self._state.step, values)
        with self._warning_if_disk_full("a TensorBoard value"):
            self._scalars.write(self._state.step, values)

    def _report_progress(self, note: str) -> None:
        if self._meter.running:
            self._stall_alarm.beat()
        step, total = self._state.step, self._plan.num_train_steps
        pauses = {
            "eval": total // self._plan.eval_steps - step // self._plan.eval_steps,
            "save": total // self._plan.save_steps - step // self._plan.save_steps,
            "interim": total // self._evaluate_every - step // self._evaluate_every,
            "mark": sum(step < mark <= total for mark in self._marks),
        }
        eta = self._meter.eta_seconds(total - step, pauses)
        self._reporter.progress(step, total, "steps", note, eta)

    def _describe(self) -> None:
        plan, parameters = self._plan, count_parameters(self._inputs.architecture)
        self._reporter.note(
            f"{parameters:,} parameters; {plan.num_train_steps:,} steps of "
            f"{plan.global_batch_size:,} x {plan.row_length:,} tokens: {plan.total_tokens:,} "
            f"tokens, {plan.num_train_epochs:.3g} epochs, "
            f"{plan.tokens_per_parameter(parameters):.3g} tokens per parameter"
        )
        if self._inputs.sources.from_mixture:
            epochs = describe_epochs(self._inputs.sources.epochs(plan.total_sequences))
            self._reporter.note(f"The mixture reads {epochs}", mixture=True)
        if hint := recipe.dropout_hint(self._config, plan.num_train_epochs):
            self._reporter.note(hint)
        settings = resolved_settings(self._config, plan, self._inputs, self._devices, self._parts)
        self._reporter.event("resolved", settings=settings, tokens_per_step=plan.tokens_per_step)
        if plan.warmup_steps >= plan.num_train_steps:
            self._reporter.warn(
                f"The learning rate never reaches its peak: the warm-up takes {plan.warmup_steps} "
                f"steps, and the run has only {plan.num_train_steps}. Lower warmup_steps"
            )


def _evaluate_only(
    config: TrainConfig, inputs: TrainingInputs, folder: Path, reporter: Reporter
) -> Artifact:
    assert inputs.checkpoint is not None
    devices = select_backend(config)
    reporter.note(devices.describe())
    weights = _read_weights(inputs, inputs.checkpoint)

    def build() -> Any:
        policy = config.dtype_policy
        if policy == "auto":
            policy = broadcast(choose_precision(devices)[0], devices)
        model = create_model(inputs.architecture, seed=0, dtype_policy=policy)
        hf.assign_weights(model, weights)
        return model, None

    engine = create_backend(devices, build, BackendOptions.of(config))
    with reporting_lost_processes(devices):
        results = _evaluation(config, inputs, engine, devices, reporter).run(
            0, lambda done, of: reporter.progress(done, of, "batches", "validating")
        )
    if results is None:
        raise RunStopped(reporter.stop_requested() or "abort")
    reporter.metrics(0, results.figures)
    write_eval_results(folder, results)
    return evaluated_artifact(inputs.checkpoint, results.figures)


def _interim_evaluation(config: TrainConfig, reporter: Reporter) -> InterimEvaluation | None:
    """Reads the data before a backend is imported; rank 0 alone has the results."""
    if not config.evaluate_every:
        return None
    # Several processes could not all stop at the same sentence.
    return InterimEvaluation(config, Reporter() if is_multi_process(config) else reporter)


def _evaluation(
    config: TrainConfig,
    inputs: TrainingInputs,
    engine: Backend,
    devices: Devices,
    reporter: Reporter,
) -> Evaluation:
    parts = inputs.sources
    wanted = config.per_replica_eval_batch_size or settled(config.per_replica_batch_size)
    # The same for all sources, because each shape is compiled.
    longest = max(len(one.validation_rows) for one in parts.all)
    per_device = min(wanted, -(-longest // devices.count))
    sources = [
        ValidationSource(
            EvalBatches(
                _tolerant(one.validation_rows, config, inputs, reporter),
                inputs.eval_objective,
                per_device * devices.count,
            ),
            one.name if parts.is_mixture else "",
            one.share / BLOCK,
        )
        for one in parts.all
    ]
    # Several processes could not all stop at the same batch.
    listener = reporter if devices.processes == 1 else Reporter()
    return Evaluation(engine, sources, inputs.label_counts, listener)


@contextmanager
def _cooccurrence_count(
    config: TrainConfig, inputs: TrainingInputs, *, ahead: bool
) -> Iterator[CooccurrenceCount | None]:
    if config.word_embeddings != "cooccurrence" or inputs.checkpoint:
        yield None
        return
    found = inputs.architecture
    rows = _tolerant(inputs.sources.epoch_rows, config, inputs, Reporter())
    words = CooccurrenceCount(
        rows, (found.vocab_size, found.hidden_size), inputs.tokenizer.special_ids
    )
    if ahead and not config.process_id:
        words.begin()  # Importing the backend takes longer.
    try:
        yield words
    finally:
        words.forget()


def _tolerant(
    rows: SequenceSource, config: TrainConfig, inputs: TrainingInputs, reporter: Reporter
) -> SequenceSource:
    if config.damaged_records == "stop":
        return rows

    def report(count: int, problem: str) -> None:
        reporter.warn(f"Skipped a record, {count} so far: {problem}", alert="damaged_record")

    return TolerantSequences(rows, int(inputs.tokenizer.special_ids[0]), report)


def _artifact_of_all(model: Artifact | None, devices: Devices) -> Artifact:
    mine = [str(model.path), asdict(model.manifest)] if model else None
    path, manifest = broadcast(mine, devices)
    return model or Artifact(Path(path), Manifest(**manifest))


@contextmanager
def _uploads(
    config: TrainConfig,
    workspace: Workspace,
    inputs: TrainingInputs,
    folder: Path,
    devices: Devices,
    reporter: Reporter,
) -> Iterator[Uploads | None]:
    if not config.push_to_hub or not devices.is_first:
        yield None
        return
    uploads = Uploads(config, workspace, folder, wanted_name(config, inputs), reporter)
    try:
        yield uploads
    finally:
        uploads.close()


def _read_weights(inputs: TrainingInputs, folder: Path) -> dict[str, NDArray[np.float32]]:
    return hf.read_weights(folder, inputs.architecture)


def _better(
    best: EvalResults | None, evaluated: EvalResults | None, step: int
) -> EvalResults | None:
    if evaluated is None or evaluated.step != step:
        return best
    return evaluated if best is None or evaluated.eval_loss < best.eval_loss else best


def _check_finite(values: dict[str, NDArray], step: int) -> None:
    """Refuses non-finite weights: rolling back to them would not help."""
    for path, array in values.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _not_finite(f"The weight {path}", step, math.nan)


def _not_finite(what: str, step: int, value: float) -> LossNotFiniteError:
    return LossNotFiniteError(
        f"{what} is NaN or infinite at step {step}",
        expected="finite values",
        received=str(value),
        fix="lower learning_rate, raise warmup_steps or set max_grad_norm; earlier checkpoints "
        "are intact",
    )


def _is_resumed(reporter: Reporter) -> bool:
    return reporter.folder is not None and (reporter.folder / CHECKPOINTS_FOLDER).is_dir()


def _own_checkpoint(config: TrainConfig, reporter: Reporter) -> Path | None:
    """Rank 0 alone has checkpoints: with several processes, all must resume or none."""
    if is_multi_process(config) or not _is_resumed(reporter):
        return None
    assert reporter.folder is not None
    saved = Checkpoints(reporter.folder / CHECKPOINTS_FOLDER)
    for step in saved.steps():
        with suppress(StudioError):
            hf.read_architecture(saved.path(step))
            return saved.path(step)
    return None


@contextmanager
def _run_folder(workspace: Workspace, reporter: Reporter) -> Iterator[Path]:
    if reporter.folder is not None:
        yield reporter.folder
        return
    make_folder(workspace.cache)
    folder = Path(tempfile.mkdtemp(prefix="train-", dir=workspace.cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
