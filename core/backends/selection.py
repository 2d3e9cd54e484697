"""Selects a backend and starts it on its devices."""

from __future__ import annotations

import os
import sys
from typing import Any

from core.backends.devices import (
    BackendName,
    Choice,
    Devices,
    Hardware,
    choose,
    find_hardware,
)
from core.backends.imports import import_for
from core.backends.jax import devices as jax
from core.backends.tensorflow import devices as tensorflow
from core.config.train import TrainConfig
from core.errors import DeviceError

_KERAS_BACKEND = "KERAS_BACKEND"


def select_backend(config: TrainConfig) -> Devices:
    """Imports Keras with the chosen backend; raises DeviceError."""
    hardware = find_hardware()
    choice = choose(config, hardware)
    check_keras_backend(choice.engine)
    os.environ[_KERAS_BACKEND] = choice.engine
    devices = _start(choice, config, hardware)
    import_for(choice.engine, "keras")
    return devices


def count_devices(config: TrainConfig) -> int:
    """Counts devices; imports a backend only for accelerators."""
    processes = config.num_processes or 1
    if config.num_devices or processes > 1:
        return (config.num_devices or 1) * processes
    try:
        if choose(config, find_hardware()).kind != "cpu":
            return select_backend(config).count
    except DeviceError:
        pass
    return 1


def _start(choice: Choice, config: TrainConfig, hardware: Hardware) -> Devices:
    if choice.engine == "jax":
        return jax.start(choice, config)
    return tensorflow.start(choice, config, hardware)


def check_keras_backend(engine: BackendName) -> None:
    """Raises DeviceError if Keras already runs on another backend."""
    keras: Any = sys.modules.get("keras")
    running = keras.config.backend() if keras else engine
    if running != engine:
        raise DeviceError(
            f"This process already runs Keras on {running}",
            expected=f"{engine}, which the settings or the device require",
            received=f"{running}, with which Keras was imported earlier",
            fix=f"set ⟬engine⟭ to {running!r}, or start a new process, as the command line and the "
            "web app always do",
            field="engine",
        )
