"""The preflight stage, from compilation to trial steps."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.backends.devices import Devices
from core.backends.selection import select_backend
from core.config.options import settled
from core.config.preflight import PreflightConfig
from core.config.topologies import UTILISATION, Topology, find_topology
from core.config.train import with_usual_values
from core.errors import ConfigError
from core.models.registry import count_parameters
from core.records.events import Reporter, RunStopped
from core.training import automatic, recipe
from core.training.batches import THREADS, BatchPrefetcher, TrainBatches
from core.training.export import checkpoint_disk_bytes
from core.training.preflight.report import (
    INSTALL_LIBTPU,
    SPREAD,
    Report,
    estimate_bytes_per_core,
    estimate_flops_per_core,
    step_seconds,
)
from core.training.preflight.subject import Subject, open_subject
from core.training.preflight.trial import try_steps
from core.workspace.atomic import write_atomically
from core.workspace.manifests import Artifact
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.backends.jax.tpu_compiler import Costs
    from core.training.preflight.compiler import Compiled, Lowered

REPORT_FILE = "preflight.json"

_PARTS = ("compiling", "largest batch", "input", "trial")
_POLL_SECONDS = 0.5
_MOST_PROBES = 4
_BATCHES_COME_IN = 8
# Shares of memory: free in a guess; filled, to be the largest.
_MARGIN = 0.01
_WELL_FILLED = 0.95
_INPUT_SECONDS = 2.0


def run(
    config: PreflightConfig, workspace: Workspace, reporter: Reporter | None = None
) -> Artifact:
    """Estimates a run's needs on a TPU or GPU, and tries it here.

    Returns:
        A `Report` as counts, with `input` and `trial`.

    Raises:
        LossNotFiniteError: The trial's loss is not finite.
        RunStopped: The reporter requested it.
    """
    reporter = reporter or Reporter()
    config = settled_for(config, workspace)
    if config.dtype_policy == "auto":
        # `auto` resolves to this on a TPU.
        config = config.model_copy(update={"dtype_policy": "mixed_bfloat16"})
    topology, subject = check(config, workspace, reporter)
    devices = select_backend(_on_this_machine(config))
    report = _Preflight(config, workspace, reporter, topology, subject, devices).carry_out()
    return _write(config, workspace, reporter, report)


def check(
    config: PreflightConfig, workspace: Workspace, reporter: Reporter | None = None
) -> tuple[Topology, Subject]:
    """Validates the settings; raises ConfigError."""
    topology = find_topology(config.topology)
    config = settled_for(config, workspace)
    if config.engine == "tensorflow":
        raise ConfigError(
            "TensorFlow can't compile a step for a TPU that isn't attached",
            fix="set ⟬engine⟭ to auto, which selects JAX on a TPU",
            field="engine",
        )
    subject = open_subject(config, workspace, reporter or Reporter())
    _plan(config, subject, topology)
    return topology, subject


def settled_for(config: PreflightConfig, workspace: Workspace) -> PreflightConfig:
    """Returns the config with the values that a training on this TPU would derive."""
    if not (config.shards or config.mixture):
        return with_usual_values(config)
    topology = find_topology(config.topology)
    chip = topology.chip
    flops = chip.flops_per_second * topology.chips * sum(UTILISATION) / len(UTILISATION)
    kind = "gpu" if topology.is_gpu else "tpu"
    device = automatic.Device(kind, flops, topology.cores, int(chip.memory_bytes_per_core))
    return automatic.explain(config, workspace, device)[0]


def _plan(config: PreflightConfig, subject: Subject, topology: Topology) -> recipe.Plan | None:
    if subject.train_rows is None:
        return None
    return recipe.plan(
        config,
        subject.train_rows,
        subject.rows.row_length,
        replicas=topology.cores,
        validation_rows=subject.validation_rows,
    )


def _on_this_machine(config: PreflightConfig) -> PreflightConfig:
    here = {
        "engine": "jax",
        "device": "cpu",
        "sharding": "data",
        "num_devices": None,
        "num_processes": None,
        "coordinator_address": "",
    }
    return config.model_copy(update=here)


class _Preflight:
    def __init__(
        self,
        config: PreflightConfig,
        workspace: Workspace,
        reporter: Reporter,
        topology: Topology,
        subject: Subject,
        devices: Devices,
    ) -> None:
        self._config = config
        self._cache = workspace.cache / "preflight"
        self._reporter = reporter
        self._topology = topology
        self._subject = subject
        self._devices = devices
        self._part = 0
        self._cached = True
        self._update: Costs | None = None

    def carry_out(self) -> dict[str, Any]:
        self._advance("reading the settings", 0)
        wanted, tried = self._compile_wanted()
        self._advance("finding the largest batch", 1)
        largest = self._find_largest(tried) if self._config.largest_batch and tried else None
        report = self._report(wanted, tried, largest)
        self._say(report)
        self._advance("timing the input", 2)
        values = {**report.to_json(), "input": self._time_input(report)}
        self._advance("running trial steps on this machine", 3)
        values["trial"] = self._try() if self._config.trial else None
        self._advance("done", len(_PARTS))
        return values

    def _compile_wanted(self) -> tuple[Compiled | None, dict[int, Compiled]]:
        """Compiles the configured batch; nothing for GPUs, or if libtpu isn't installed."""
        if self._topology.is_gpu:
            self._reporter.warn(
                "Nothing compiles for a GPU that isn't attached: memory and time are estimated by "
                "formulas, time for 20 to 55 % of the peak"
            )
            return None, {}
        from core.backends.jax.tpu_compiler import libtpu_version  # Imports JAX.

        if libtpu_version() is None:
            self._reporter.warn(
                "libtpu isn't installed, so memory and time are estimated by formulas. To get "
                f"the compiler's figures: {INSTALL_LIBTPU}"
            )
            return None, {}
        batch_size = settled(self._config.per_replica_batch_size)
        wanted = self._compile(batch_size)
        return wanted, {batch_size: wanted}

    def _compile(self, batch_size: int) -> Compiled:
        from core.training.preflight.compiler import Compiled, Lowered  # Imports JAX.

        what = f"{self._config.family} for {self._topology.name}, {batch_size} sequences per device"
        lowered = self._watch(
            lambda: Lowered(self._config, self._subject, self._topology, batch_size),
            f"tracing {what}",
        )
        self._state_bytes = lowered.state_bytes_per_core
        path = self._cache / f"{lowered.fingerprint}.json"
        if path.is_file():
            stored = Compiled(**json.loads(path.read_text("utf-8")))
            if stored.step_seconds or not stored.fits:  # Earlier versions have no time.
                return stored
        self._cached = False
        compiled: Compiled = self._watch(lowered.compile, f"compiling {what}")
        if compiled.fits:
            compiled = compiled.plus(lowered.uncounted)
            if lowered.micro_batches > 1:
                compiled = compiled.repeat_micro_batches(
                    lowered.micro_batches, self._compile_update(lowered)
                )
        make_folder(self._cache)
        write_atomically(path, json.dumps(compiled.to_json()) + "\n")
        return compiled

    def _compile_update(self, lowered: Lowered) -> Costs:
        if self._update is None:
            update: Costs = self._watch(lowered.compile_update, "compiling the optimizer update")
            self._update = update
        return self._update

    def _find_largest(self, tried: dict[int, Compiled]) -> int | None:
        for _ in range(_MOST_PROBES):
            guess = next_guess(
                {
                    size: (compiled.bytes_per_core, compiled.fits)
                    for size, compiled in tried.items()
                },
                self._state_bytes,
                next(iter(tried.values())).bytes_available_per_core,
            )
            if guess is None:
                break
            tried[guess] = self._compile(guess)
        return max((size for size, compiled in tried.items() if compiled.fits), default=None)

    def _report(
        self, wanted: Compiled | None, tried: dict[int, Compiled], largest: int | None
    ) -> Report:
        config, topology, subject = self._config, self._topology, self._subject
        architecture, length = subject.architecture, subject.rows.row_length
        predictions = subject.predictions
        parameters = count_parameters(architecture)
        cores = topology.cores
        if wanted:
            needed, available = wanted.bytes_per_core, wanted.bytes_available_per_core
            flops, accessed = (
                wanted.flops_per_step_per_core,
                wanted.bytes_accessed_per_step_per_core,
            )
        else:
            available, accessed = topology.chip.memory_bytes_per_core, None
            needed = estimate_bytes_per_core(architecture, config, length, cores)
            flops = estimate_flops_per_core(architecture, config, length, predictions)
        fits = wanted.fits if wanted else needed <= available
        rows = settled(config.per_replica_batch_size) * cores * config.gradient_accumulation_steps
        expected = wanted.step_seconds if wanted else None
        seconds = step_seconds(topology, flops, accessed)
        utilisation = list(UTILISATION)
        if flops and expected:
            seconds = [expected / SPREAD, expected * SPREAD]
            peak = topology.chip.flops_per_second / topology.chip.cores
            utilisation = [flops / (peak * limit) for limit in reversed(seconds)]
        steps, epochs = self._length(rows)
        hours = (
            [seconds_per_step * steps / 3600 for seconds_per_step in seconds]
            if seconds and steps
            else None
        )
        chip_hours = [run_hours * topology.chips for run_hours in hours] if hours else None
        price = config.price_per_chip_hour
        return Report(
            topology=topology.name,
            chips=topology.chips,
            cores=cores,
            estimated=wanted is None,
            advice=self._advice(fits, wanted is None and not topology.is_gpu, largest),
            fits=fits,
            bytes_per_core=needed,
            bytes_available_per_core=available,
            bytes_missing_per_core=max(0.0, needed - available),
            compiler_message=wanted.message if wanted else "",
            largest_per_replica_batch_size=largest,
            tried_batch_sizes=[
                {
                    "batch_size": size,
                    "fits": compiled.fits,
                    "bytes_per_core": compiled.bytes_per_core,
                }
                for size, compiled in sorted(tried.items())
            ],
            parameters=parameters,
            per_replica_batch_size=settled(config.per_replica_batch_size),
            global_batch_size=rows,
            tokens_per_step=rows * length,
            flops_per_step_per_core=flops,
            bytes_accessed_per_step_per_core=accessed,
            utilisation=utilisation,
            expected_step_seconds=expected,
            step_seconds=seconds,
            tokens_per_second=[
                rows * length / seconds_per_step for seconds_per_step in reversed(seconds)
            ]
            if seconds
            else None,
            num_train_steps=steps,
            num_train_epochs=epochs,
            tokens_per_parameter=steps * rows * length / parameters if steps else None,
            hours=hours,
            chip_hours=chip_hours,
            cost=[run_chip_hours * price for run_chip_hours in chip_hours]
            if chip_hours and price
            else None,
            price_per_chip_hour=price,
            checkpoint_disk_bytes=checkpoint_disk_bytes(config, parameters),
            compile_seconds=sum(compiled.compile_seconds for compiled in tried.values()),
            cached=bool(tried) and self._cached,
        )

    def _length(self, rows_per_step: int) -> tuple[int | None, float | None]:
        plan = _plan(self._config, self._subject, self._topology)
        if plan is None:
            return self._config.num_train_steps, None
        assert plan.global_batch_size == rows_per_step
        return plan.num_train_steps, plan.num_train_epochs

    def _advice(self, fits: bool, estimated: bool, largest: int | None) -> str:
        if estimated:
            return f"To get the compiler's figures: {INSTALL_LIBTPU}"
        if fits:
            return ""
        if largest:
            return f"Set per_replica_batch_size to {largest}, which fits, or set remat"
        spread = "" if self._config.sharding == "fsdp" else "set sharding to fsdp, "
        smaller = "" if self._config.largest_batch else "lower per_replica_batch_size, "
        verdict = "No batch size fits: " if self._config.largest_batch else ""
        advice = f"{verdict}{smaller}{spread}set remat, or choose a topology with more memory"
        return advice[0].upper() + advice[1:]

    def _say(self, report: Report) -> None:
        about = "by a rough estimate" if report.estimated else "according to the compiler"
        verdict = "It fits" if report.fits else "It does not fit"
        self._reporter.note(
            f"{verdict}, {about}: {report.bytes_per_core / 2**30:.2f} of "
            f"{report.bytes_available_per_core / 2**30:.2f} GiB per core on {report.topology}"
            + (f". {report.advice}" if report.advice else "")
            + _describe_step(report)
        )

    def _time_input(self, report: Report) -> dict[str, Any]:
        rows_per_host = report.global_batch_size // self._topology.hosts
        batches = TrainBatches(self._subject.rows, self._subject.objective, rows_per_host, 0)
        batches(0)
        done, started = 0, time.perf_counter()
        with BatchPrefetcher(batches.several, 0, sys.maxsize, batches.at_once, THREADS) as feeder:
            while not done or time.perf_counter() - started < _INPUT_SECONDS:
                for _ in range(batches.at_once):
                    feeder.next()
                done += batches.at_once
                self._check_stop()
        rows = done * rows_per_host / (time.perf_counter() - started)
        needed = [
            rows_per_host / seconds_per_step
            for seconds_per_step in reversed(report.step_seconds or [])
        ] or None
        return {
            "measured_on_shards": self._subject.train_rows is not None,
            "rows_per_second": rows,
            "needed_rows_per_second_per_host": needed,
            "keeps_up": rows >= needed[1] if needed else None,
        }

    def _try(self) -> dict[str, Any]:
        def report(note: str) -> None:
            self._check_stop()
            self._advance(note, 3)

        trial = try_steps(self._config, self._subject, self._devices, report)
        cut = "" if trial.layers == trial.of_layers else f" (of {trial.of_layers})"
        self._reporter.note(
            f"Trained {len(trial.losses)} steps with {trial.layers}{cut} layers on this machine: "
            f"loss {trial.losses[0]:.3f} to {trial.losses[-1]:.3f}. The saved model was read back "
            "bit for bit"
        )
        return trial.to_json()

    def _watch(self, work: Callable[[], Any], note: str) -> Any:
        """Runs slow work in a thread, which keeps running on RunStopped."""
        answers: list[Any] = []
        errors: list[BaseException] = []

        def do() -> None:
            try:
                answers.append(work())
            except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
                errors.append(error)

        thread = threading.Thread(target=do, daemon=True, name="preflight")
        started = time.monotonic()
        thread.start()
        while thread.is_alive():
            self._check_stop()
            self._advance(f"{note}, {time.monotonic() - started:.0f} s elapsed", self._part)
            thread.join(_POLL_SECONDS)
        if errors:
            raise errors[0]
        return answers[0]

    def _advance(self, note: str, phase: int) -> None:
        self._part = phase
        self._reporter.progress(phase, len(_PARTS), "parts", note)

    def _check_stop(self) -> None:
        if self._reporter.stop_requested():
            raise RunStopped("abort")


def _describe_step(report: Report) -> str:
    if report.step_seconds is None:
        return ""
    best, worst = report.step_seconds
    expected = report.expected_step_seconds
    about = f"{expected:.3g} s, and at least" if expected else "at least"
    return f". A step takes {about} {best:.3g}, at most {worst:.3g} s"


def next_guess(
    tried: dict[int, tuple[float, bool]], fixed_bytes: float, available_bytes: float
) -> int | None:
    """Returns the next batch size to compile, if any.

    Args:
        tried: Bytes, and True if it fits, by batch size.
        fixed_bytes: Bytes of weights and slots.
    """
    fitting = max((size for size, (_, fits) in tried.items() if fits), default=0)
    too_large = min((size for size, (_, fits) in tried.items() if not fits), default=None)
    step = 1 if fitting < _BATCHES_COME_IN else _BATCHES_COME_IN
    if too_large is not None and too_large - fitting <= step:
        return None
    if fitting and tried[fitting][0] >= _WELL_FILLED * available_bytes:
        return None
    nearest = max(tried) if too_large is None else too_large
    slope = max(1.0, (tried[nearest][0] - fixed_bytes) / nearest)
    guess = int((available_bytes * (1 - _MARGIN) - fixed_bytes) / slope)
    guess = max(
        1, guess if guess < _BATCHES_COME_IN else guess // _BATCHES_COME_IN * _BATCHES_COME_IN
    )
    if too_large is not None and guess >= too_large:
        guess = max(1, (fitting + too_large) // 2)
    return None if guess in tried or guess < fitting else guess


def _write(
    config: PreflightConfig, workspace: Workspace, reporter: Reporter, report: dict[str, Any]
) -> Artifact:
    model = "model" if config.model_config_path else config.size
    name = config.name or f"{config.family}-{model}-{report['topology']}"
    with workspace.new_artifact("preflight", name, exact=False) as draft:
        text = json.dumps(report, indent=2, ensure_ascii=False)
        (draft.folder / REPORT_FILE).write_text(text + "\n", "utf-8")
        draft.config = config.model_dump(mode="json")
        draft.counts = report
        draft.run = reporter.folder.name if reporter.folder else ""
    artifact = draft.artifact
    assert artifact is not None
    return artifact
