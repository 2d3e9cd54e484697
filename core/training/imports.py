"""Imports a backend, or OpenVINO, quickly and quietly.

TensorFlow loads JAX for its converters, Keras loads pandas for data frames and pyplot for galleries
of images, each only if it is installed. Together that is a third of the time a backend takes to
import. OpenVINO loads telemetry. None of these is used here.

TensorFlow's libraries write to stderr while they are loaded, before they read the log level that
the environment sets. `core.training.stderr` applies that level to these lines.
"""

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

from core.cores import thread_settings
from core.training.stderr import filtered_stderr

_UNUSED = {
    "tensorflow": ("jax", "pandas", "matplotlib.pyplot"),
    "jax": ("pandas", "matplotlib.pyplot"),
    # It would tell Google Analytics of each import, from a process of its own.
    "openvino": ("openvino_telemetry",),
}
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# The C++ libraries of TensorFlow and JAX report errors only.
_LOG_SETTINGS = {_LOG_LEVEL: "2", "GRPC_VERBOSITY": "ERROR"}
# Made by the drivers of NVIDIA, WSL 2 and AMD. Without any of them, TensorFlow's messages about
# CUDA only say that this machine has none.
_GPU_DRIVERS = ("proc/driver/nvidia", "dev/nvidia*", "dev/dxg", "dev/kfd")
_TPU_DRIVERS = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")


def import_for(engine: str, module: str) -> ModuleType:
    """Imports a module of a backend, or Keras on it, without the packages that go unused.

    The hidden packages can be imported afterwards as usual. In a container a backend has as many
    threads as the container has cores. Variables that the environment sets already keep their
    values, the log level too.

    Args:
        engine: tensorflow, jax or openvino.
        module: The module's name.
    """
    for name, value in {**thread_settings(), **_LOG_SETTINGS}.items():
        os.environ.setdefault(name, value)
    loads_tensorflow = engine == "tensorflow" and "tensorflow" not in sys.modules
    has_driver = _exists(_GPU_DRIVERS)
    has_tpu = _exists(_TPU_DRIVERS)
    if not has_driver and not has_tpu and find_spec("libtpu"):
        # The TPU's library reports at length that there is no TPU. Preflight only compiles with it.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    quiet = filtered_stderr(_log_level(), cuda=has_driver) if loads_tensorflow else nullcontext()
    with quiet, _hidden(_UNUSED.get(engine, ())):
        found = import_module(module)
        if loads_tensorflow and not has_driver and not has_tpu:
            # The first look for devices reports that CUDA is missing. It initialises none of them.
            sys.modules["tensorflow"].config.list_physical_devices()
    return found


def _log_level() -> int:
    """Returns the severity below which messages are hidden; 0 shows all of them."""
    value = os.environ.get(_LOG_LEVEL, "")
    return int(value) if value.isdecimal() else 0


def _exists(patterns: tuple[str, ...]) -> bool:
    return any(next(Path("/").glob(pattern), None) for pattern in patterns)


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Makes packages look as if they weren't installed, unless they are loaded already."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    # For Python's import system None means: there is no such module.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name) is None:
                modules.pop(name, None)
