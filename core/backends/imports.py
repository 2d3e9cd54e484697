"""Imports a backend quietly, without unused packages, a third of its import time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from core.backends.stderr import filtered_stderr
from core.processes.cores import thread_settings

_UNUSED = {
    "tensorflow": ("jax", "matplotlib", "pandas", "sklearn"),
    "jax": ("matplotlib", "pandas", "sklearn"),
    # It would report each import to Google Analytics.
    "openvino": ("openvino_telemetry",),
}
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Logs errors only. oneDNN's kernels train 15 % faster (`benchmarks/throughput.py`), but are the
# default only on CPUs with AVX-512.
_SETTINGS = {_LOG_LEVEL: "2", "GRPC_VERBOSITY": "ERROR", "TF_ENABLE_ONEDNN_OPTS": "1"}
# Without a driver, TensorFlow's messages about CUDA say nothing else.
_GPU_DRIVERS = ("proc/driver/nvidia", "dev/nvidia*", "dev/dxg", "dev/kfd")
_TPU_DRIVERS = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")


def import_for(engine: str, module: str) -> ModuleType:
    """Imports a module of a backend, or Keras on it.

    Limits threads to the container's cores; environment variables already set stay.
    """
    for name, value in {**thread_settings(), **_SETTINGS}.items():
        os.environ.setdefault(name, value)
    loads_tensorflow = engine == "tensorflow" and "tensorflow" not in sys.modules
    has_driver = _exists(_GPU_DRIVERS)
    has_tpu = _exists(_TPU_DRIVERS)
    if not has_driver and not has_tpu and find_spec("libtpu"):
        # libtpu logs at length that there is no TPU.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    quiet = filtered_stderr(_log_level(), cuda=has_driver) if loads_tensorflow else nullcontext()
    with quiet, _hidden(_UNUSED.get(engine, ())):
        loaded_module = import_module(module)
        if loads_tensorflow and not has_driver and not has_tpu:
            # The first listing of devices logs that CUDA is missing.
            sys.modules["tensorflow"].config.list_physical_devices()
    return loaded_module


def _log_level() -> int:
    value = os.environ.get(_LOG_LEVEL, "")
    return int(value) if value.isdecimal() else 0


def _exists(patterns: tuple[str, ...]) -> bool:
    return any(next(Path("/").glob(pattern), None) for pattern in patterns)


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Makes packages look as if they weren't installed."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name) is None:
                modules.pop(name, None)
