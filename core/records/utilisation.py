"""Samples the utilisation of CPU, memory and GPUs by a run's process, in a thread."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil

from core.processes.cores import usable_cores
from core.records.events import Reporter

FIRST_INTERVAL_SECONDS = 5.0
MOST_INTERVAL_SECONDS = 60.0
# The interval grows with the run, so that a long one has about as many values as a short one.
_VALUES_WANTED = 720
_BYTES_PER_GIB = 1 << 30


class UtilisationLog:
    """Reports utilisation as metrics while it is open.

    Args:
        step: Returns the step that the stage has reached; see `seconds_as_steps`.
        interval_seconds: Seconds between values, at the beginning.
    """

    def __init__(
        self,
        reporter: Reporter,
        step: Callable[[], int],
        interval_seconds: float = FIRST_INTERVAL_SECONDS,
    ) -> None:
        self._reporter = reporter
        self._step = step
        self._shortest_interval = interval_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="utilisation")

    def __enter__(self) -> UtilisationLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        started = time.monotonic()
        meter = UtilisationMeter()
        while not self._closed.wait(self._interval_seconds(time.monotonic() - started)):
            # A full disk or a driver that fails must not end the stage.
            with suppress(OSError):
                self._reporter.event("metrics", step=self._step(), values=meter.read())

    def _interval_seconds(self, passed: float) -> float:
        return min(MOST_INTERVAL_SECONDS, max(self._shortest_interval, passed / _VALUES_WANTED))


def seconds_as_steps() -> Callable[[], int]:
    """Returns a function that counts the seconds from now on, for a stage without steps."""
    started = time.monotonic()
    return lambda: int(time.monotonic() - started)


class UtilisationMeter:
    """Reads the utilisation since the last reading."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = usable_cores()
        self._process.cpu_percent()  # The first reading has nothing to measure from.
        self._gpus = list(_find_gpus())

    def read(self) -> dict[str, float]:
        """Returns percent of the usable cores and of the GPUs, and memory in GiB."""
        # CPU time is counted in ticks of 10 ms, so a short interval can show more than all cores.
        used = min(100.0, self._process.cpu_percent() / self._cores)
        values = {
            "cpu_percent": round(used, 1),
            "memory_gib": round(self._process.memory_info().rss / _BYTES_PER_GIB, 3),
        }
        readings = [read_gpu() for read_gpu in self._gpus]
        if readings:
            values["gpu_percent"] = round(sum(busy for busy, _ in readings) / len(readings), 1)
            values["gpu_memory_gib"] = round(sum(held for _, held in readings) / _BYTES_PER_GIB, 3)
        return values


def _find_gpus() -> Iterator[Callable[[], tuple[float, float]]]:
    """Yields a reading, in percent and bytes, of each NVIDIA GPU that this process may use."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except Exception:  # noqa: BLE001 -- no package, no driver or no GPU, each with its own error
        return
    for index in _visible(count):
        yield _reading(nvml, nvml.nvmlDeviceGetHandleByIndex(index))


def _visible(count: int) -> list[int]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(range(count))
    named = [name.strip() for name in listed.split(",")]
    # Names that begin with GPU- or MIG- need no order here.
    if not all(name.isdecimal() for name in named if name):
        return list(range(count))
    return [int(name) for name in named if name and int(name) < count]


def _reading(nvml: Any, handle: Any) -> Callable[[], tuple[float, float]]:
    def read() -> tuple[float, float]:
        try:
            used = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            held = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except Exception as error:
            raise OSError(f"the GPU can't be read: {error}") from error
        return float(used), float(held)

    return read
