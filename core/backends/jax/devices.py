"""Starts JAX on its devices, and joins processes."""

from __future__ import annotations

import ctypes
import os
import sys

from core.backends.devices import (
    Choice,
    Devices,
    cpu_name,
    describe_unused,
    first_line,
    host_memory_bytes,
    is_multi_process,
    not_started,
    number_to_use,
)
from core.config.train import TrainConfig
from core.errors import DeviceError

# M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD.
_MALLOC_SETTINGS = ((-8, 1), (-4, 0), (-1, -1))


_JOIN_SECONDS = 300


_HEARTBEAT_SECONDS = 30


def _keep_freed_memory() -> None:
    """Keeps freed memory for XLA: allocation takes a seventh of a step of `mini`."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    # Other C libraries lack it.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting in _MALLOC_SETTINGS:
            mallopt(*setting)


def start(choice: Choice, config: TrainConfig) -> Devices:
    import jax

    from core.backends.jax import splash

    try:
        if choice.kind == "cpu":
            _keep_freed_memory()
            jax.config.update("jax_platforms", "cpu")
            if config.num_devices and jax.config.jax_num_cpu_devices != config.num_devices:
                jax.config.update("jax_num_cpu_devices", config.num_devices)
        elif platforms := jax.config.jax_platforms:
            jax.config.update("jax_platforms", _with_cpu(platforms))
        _join_processes(choice, config)
        devices = jax.local_devices()
    except RuntimeError as error:
        raise not_started(choice, str(error)) from error
    kind = "gpu" if devices[0].platform in ("gpu", "cuda", "rocm") else devices[0].platform
    if kind != choice.kind:
        raise not_started(choice, f"JAX found {len(devices)} {kind.upper()}")
    statistics = {} if kind == "cpu" else devices[0].memory_stats() or {}
    used = number_to_use(choice, config, len(devices))
    reason = choice.reason + describe_unused(len(devices) - used)
    if kind == "tpu" and not splash.is_right():
        reason += "; its own attention kernel computes something else, and isn't used"
    return Devices(
        engine="jax",
        kind=choice.kind,
        count=used * jax.process_count(),
        name=cpu_name() if kind == "cpu" else devices[0].device_kind,
        memory_bytes=statistics.get("bytes_limit") or host_memory_bytes(kind),
        reason=reason,
        processes=jax.process_count(),
        process=jax.process_index(),
    )


def _with_cpu(platforms: str) -> str:
    """Weights for many devices are initialised on the CPU."""
    return platforms if "cpu" in platforms.split(",") else f"{platforms},cpu"


def join_processes_on_cpu(choice: Choice, config: TrainConfig) -> tuple[int, int]:
    """Joins the processes of another backend; returns their number and this one's rank.

    Raises DeviceError.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    _join_processes(choice, config)
    return jax.process_count(), jax.process_index()


def _join_processes(choice: Choice, config: TrainConfig) -> None:
    import jax

    if not is_multi_process(config) or jax.distributed.is_initialized():
        return
    # XLA's preemption notifier would take SIGTERM from Python: the run would not save.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=config.coordinator_address or None,
            num_processes=config.num_processes,
            process_id=config.process_id,
            cluster_detection_method="deactivate" if _says_all_of_processes(config) else None,
            initialization_timeout=_JOIN_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError, IndexError) as error:
        raise DeviceError(
            "The processes of this run couldn't connect to each other",
            expected=f"{config.num_processes or 'all'} processes within {_JOIN_SECONDS} seconds, "
            f"at {config.coordinator_address or 'the address from the TPU pod'}",
            received=first_line(error),
            fix="run the same command on every host, with a different ⟬process_id⟭ per host and "
            "the same ⟬coordinator_address⟭ and ⟬num_processes⟭"
            + ("" if choice.kind != "tpu" else "; on a TPU pod, ⟬num_processes⟭ is enough"),
            field="coordinator_address",
        ) from error


def _says_all_of_processes(config: TrainConfig) -> bool:
    """With Slurm or Open MPI, JAX would detect one GPU per host."""
    numbers = (config.num_processes, config.process_id)
    return bool(config.coordinator_address) and None not in numbers
