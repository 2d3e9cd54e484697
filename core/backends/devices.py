"""Chooses backend and device without importing a backend, which can't be undone.

A missing device that was requested is an error, never a fallback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from core.errors import DeviceError, ProcessLostError, StudioError
from core.messages.values import byte_count
from core.records.events import RunStopped, is_out_of_memory

BackendName = Literal["tensorflow", "jax"]
DeviceKind = Literal["cpu", "gpu", "tpu"]


_JAX_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
_AMD_GPUS = "/dev/kfd"
_WSL_GPU = "/dev/dxg"
_GPU_GLOBS = ("/proc/driver/nvidia/gpus/*", "/dev/nvidia[0-9]*", _AMD_GPUS, _WSL_GPU)
_TPU_GLOBS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")

_DESCRIPTION = re.compile(r"(TensorFlow|JAX) on \d+ (CPU|GPU|TPU)\b")
# The beginning of a message of XLA: the code of a status.
_STATUS = re.compile(r"(?:UNKNOWN|UNAVAILABLE|ABORTED|INTERNAL|DEADLINE_EXCEEDED): ")

LOCAL_TPU = "local"


class DeviceOptions(Protocol):
    """The training options that decide on backend and devices."""

    engine: Literal["auto", "tensorflow", "jax"] = "auto"
    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    num_devices: int | None = None
    sharding: Literal["data", "fsdp"] = "data"
    tpu_name: str = LOCAL_TPU
    num_processes: int | None = None
    coordinator_address: str = ""


class AutomaticDevices(DeviceOptions):
    """Defaults, as inference uses them."""


@dataclass(frozen=True)
class Devices:
    """The backend and devices of a run.

    Attributes:
        count: Over all processes.
        memory_bytes: Bytes of one device, or of a CPU's host.
    """

    engine: BackendName
    kind: DeviceKind
    count: int
    name: str
    memory_bytes: int | None
    reason: str
    processes: int = 1
    process: int = 0
    strategy: Any = field(default=None, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes the files."""
        return self.process == 0

    def part(self, batch_size: int) -> slice:
        """Returns this process's slice of a batch."""
        rows = batch_size // self.processes
        return slice(rows * self.process, rows * (self.process + 1))

    def describe(self) -> str:
        """Describes the devices in one line."""
        memory = f", {byte_count(self.memory_bytes)}" if self.memory_bytes else ""
        each = " each" if memory and self.count > 1 else ""
        label = {"tensorflow": "TensorFlow", "jax": "JAX"}[self.engine]
        hosts = f" of {self.processes} processes" if self.processes > 1 else ""
        return (
            f"{label} on {self.count} {self.kind.upper()}{hosts} ({self.name}{memory}{each}): "
            f"{self.reason}"
        )


@contextmanager
def reporting_lost_processes(devices: Devices) -> Iterator[None]:
    """Converts JAX's errors to ProcessLostError, except memory errors, which may be local."""
    try:
        yield
    except (StudioError, RunStopped):
        raise
    except Exception as error:
        # A collective that fails is a ValueError in some places.
        is_jax = "JaxRuntimeError" in type(error).__name__ or _STATUS.match(str(error))
        if devices.processes == 1 or not is_jax or is_out_of_memory(error):
            raise
        raise _process_lost(devices, error) from error


def _process_lost(devices: Devices, error: Exception) -> ProcessLostError:
    return ProcessLostError(
        "Another process of this run has ended or can't be reached",
        expected=f"{devices.processes} synchronised processes",
        received=str(error).splitlines()[0][:300],
        fix="check the logs of the other hosts, then start the run again on all hosts, or on "
        "another number of hosts; it resumes from its last checkpoint",
    )


@dataclass(frozen=True)
class Hardware:
    """Accelerators by driver path.

    Attributes:
        gpus: GPUs that CUDA_VISIBLE_DEVICES leaves.
        jax_on_cpu: JAX_PLATFORMS keeps JAX on the CPU.
    """

    gpus: tuple[str, ...]
    tpus: tuple[str, ...]
    jax_gpu: bool
    jax_tpu: bool
    jax_on_cpu: bool = False

    def describe(self) -> str:
        """Describes the hardware in one line."""
        memory = host_memory_bytes("cpu") or 0
        return (
            f"{os.cpu_count()} CPU cores, {byte_count(memory)} of memory, "
            f"{_how_many(self.gpus, 'GPU')}, {_how_many(self.tpus, 'TPU')}"
        )


@dataclass(frozen=True)
class Choice:
    """A backend and device kind."""

    engine: BackendName
    kind: DeviceKind
    reason: str


def find_hardware() -> Hardware:
    """Finds accelerators."""
    jax_gpu = any(find_spec(plugin) for plugin in _JAX_GPU_PLUGINS)
    return Hardware(
        gpus=_find_gpus(jax_gpu),
        tpus=_first_found(_TPU_GLOBS),
        jax_gpu=jax_gpu,
        jax_tpu=find_spec("libtpu") is not None,
        jax_on_cpu=os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu",
    )


def _find_gpus(jax_gpu: bool) -> tuple[str, ...]:
    gpus, visible = _first_found(_GPU_GLOBS), os.environ.get("CUDA_VISIBLE_DEVICES")
    # WSL 2 has this path for GPUs of all vendors.
    if visible in ("", "-1") or (gpus == (_WSL_GPU,) and not jax_gpu):
        return ()
    return gpus if visible is None else gpus[: len(visible.split(","))]


def choose(config: DeviceOptions, hardware: Hardware) -> Choice:
    """Chooses TensorFlow on CPU, JAX on GPU and TPU, unless set; raises DeviceError."""
    if config.device == "cpu":
        return Choice(_engine(config, "tensorflow"), "cpu", "requested")
    if config.device == "gpu":
        return _choose_gpu(config, hardware)
    if config.device == "tpu":
        return _choose_tpu(config, hardware)
    return _choose_any(config, hardware)


def is_description(note: str) -> bool:
    """Returns whether a note comes from `Devices.describe`."""
    return _DESCRIPTION.match(note) is not None


def estimate_devices(config: DeviceOptions, hardware: Hardware) -> int:
    """Estimates the devices that share a step; raises DeviceError."""
    here = config.num_devices
    if here is None:
        choice = choose(config, hardware)
        devices = {"gpu": hardware.gpus, "tpu": hardware.tpus}.get(choice.kind, ())
        unsure = choice.engine == "tensorflow" and config.device == "auto"
        here = 1 if unsure else len(devices)
    return max(1, here) * (config.num_processes or 1)


def memory_per_device(devices: Devices) -> int | None:
    """Returns one device's memory in bytes, if known."""
    if devices.memory_bytes is None or devices.kind != "cpu":
        return devices.memory_bytes
    return devices.memory_bytes * devices.processes // devices.count


def estimate_memory(config: DeviceOptions, hardware: Hardware) -> int | None:
    """Estimates a CPU device's memory in bytes."""
    try:
        memory = host_memory_bytes(choose(config, hardware).kind)
    except DeviceError:  # The run may execute on another machine.
        return None
    return None if memory is None else memory // (config.num_devices or 1)


def _engine(config: DeviceOptions, default: BackendName) -> BackendName:
    if config.engine != "auto":
        return config.engine
    return "jax" if _needs_jax(config) else default


def _needs_jax(config: DeviceOptions) -> bool:
    return config.sharding == "fsdp" or is_multi_process(config)


def is_multi_process(config: DeviceOptions) -> bool:
    """Returns whether several processes share the run."""
    return (config.num_processes or 1) > 1 or bool(config.coordinator_address)


def _choose_gpu(config: DeviceOptions, hardware: Hardware) -> Choice:
    engine = _engine(config, "jax")
    if not hardware.gpus:
        raise _no_gpu("no GPU driver on this machine", hardware)
    if engine == "jax" and not hardware.jax_gpu:
        received = f"a GPU ({hardware.gpus[0]}), but JAX's package for GPUs isn't installed"
        raise _no_gpu(received, hardware)
    return Choice(engine, "gpu", "requested")


def _choose_tpu(config: DeviceOptions, hardware: Hardware) -> Choice:
    if config.engine == "tensorflow" and is_multi_process(config):
        raise _no_shared_tpu(config)
    if config.engine == "tensorflow" and config.tpu_name != LOCAL_TPU:
        return Choice("tensorflow", "tpu", f"requested by the name {config.tpu_name}")
    if not hardware.tpus:
        raise _no_tpu("no TPU driver on this machine")
    if not hardware.jax_tpu:
        raise _no_tpu(f"a TPU ({hardware.tpus[0]}), but the package libtpu isn't installed")
    return Choice(_engine(config, "jax"), "tpu", "requested")


def _choose_any(config: DeviceOptions, hardware: Hardware) -> Choice:
    jax_may = config.engine != "tensorflow" and not hardware.jax_on_cpu
    if hardware.tpus and hardware.jax_tpu and jax_may:
        return Choice("jax", "tpu", "the fastest device of this machine is a TPU")
    if hardware.gpus and hardware.jax_gpu and jax_may:
        return Choice("jax", "gpu", "the fastest device of this machine is a GPU")
    if hardware.gpus and config.engine == "tensorflow":
        reason = "the fastest device of this machine is a GPU, if TensorFlow can use it"
        return Choice("tensorflow", "gpu", reason)
    return Choice(_engine(config, "tensorflow"), "cpu", why_cpu(config, hardware))


def why_cpu(config: DeviceOptions, hardware: Hardware) -> str:
    kind = "TPU" if hardware.tpus else "GPU" if hardware.gpus else ""
    if not kind:
        return "this machine has no TPU and no GPU"
    install = f"pip install {_package(kind, hardware.gpus)}"
    if config.engine == "tensorflow":
        installed = hardware.jax_tpu if kind == "TPU" else hardware.jax_gpu
        after = "" if installed else f", after {install}"
        return (
            f"this machine has a {kind}, but TensorFlow can't use it; JAX (engine jax) can{after}"
        )
    if hardware.jax_on_cpu:
        return f"this machine has a {kind}, but JAX_PLATFORMS restricts JAX to the CPU"
    return f"this machine has a {kind}, but JAX's package for it isn't installed ({install})"


def _package(kind: str, gpus: Sequence[str] = ()) -> str:
    if kind == "TPU":
        return '"jax[tpu]"'
    return '"jax[rocm7-local]"' if _AMD_GPUS in gpus else '"jax[cuda12]"'


def number_to_use(choice: Choice, config: DeviceOptions, available: int) -> int:
    wanted = config.num_devices or available
    if wanted > available:
        raise DeviceError(
            f"⟬num_devices⟭ exceeds the available {choice.kind.upper()}s",
            expected=f"{wanted} devices",
            received=f"{available} devices",
            fix="lower ⟬num_devices⟭, or leave it empty to use all",
            field="num_devices",
        )
    return wanted


def describe_unused(unused: int) -> str:
    return f"; {unused} more of them are unused" if unused else ""


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _first_found(globs: Sequence[str]) -> tuple[str, ...]:
    for pattern in globs:
        paths = sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))
        if paths:
            return tuple(paths)
    return ()


def _how_many(devices: Sequence[str], what: str) -> str:
    number = str(len(devices)) if devices else "no"
    return f"{number} {what}{'s' if len(devices) > 1 else ''}"


def cpu_name() -> str:
    return f"{os.cpu_count()} cores"


@cache
def has_avx512() -> bool:
    """Returns True if the CPU is known to have AVX-512."""
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:  # Not Linux.
        return False


def host_memory_bytes(kind: str) -> int | None:
    import psutil

    return int(psutil.virtual_memory().total) if kind == "cpu" else None


def _no_gpu(received: str, hardware: Hardware) -> DeviceError:
    return DeviceError(
        "No usable GPU was found",
        expected=f"a GPU: one of {', '.join(_GPU_GLOBS)}, and for engine jax one of the packages "
        + ", ".join(_JAX_GPU_PLUGINS),
        received=received,
        fix=f"install the driver and pip install {_package('GPU', hardware.gpus)}, or set device "
        "to auto",
        field="device",
    )


def _no_tpu(received: str) -> DeviceError:
    return DeviceError(
        "No usable TPU was found",
        expected=f"a TPU: one of {', '.join(_TPU_GLOBS)}, and the package libtpu",
        received=received,
        fix=f"run on a TPU VM after pip install {_package('TPU')}, or set ⟬device⟭ to auto",
        field="device",
    )


def _no_shared_tpu(config: DeviceOptions) -> DeviceError:
    return DeviceError(
        "TensorFlow can't share a TPU between processes",
        expected="engine jax, or one process",
        received=f"engine tensorflow with {config.num_processes or 'several'} processes on a TPU",
        fix="set ⟬engine⟭ to jax, or leave ⟬num_processes⟭ and ⟬coordinator_address⟭ empty",
        field="engine",
    )


def not_started(choice: Choice, received: str) -> DeviceError:
    return DeviceError(
        f"{choice.engine} could not be started on a {choice.kind.upper()}",
        expected=f"at least one {choice.kind.upper()} ({choice.reason})",
        received=received,
        fix="check the driver and the backend's package, set ⟬device⟭ to cpu, or start a new "
        "process",
        field="device",
    )
