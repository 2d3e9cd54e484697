"""Loads models for inference, keeps them, and chooses the backend."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.options import Dtype
from core.backends.devices import AutomaticDevices, choose, find_hardware
from core.backends.imports import import_for
from core.errors import CheckpointError, ConfigError
from core.inference.precision import check_dtype
from core.models import hf

_MODELS_KEPT = 3
_ENDINGS = (".json", ".safetensors", ".h5", ".msgpack")
_TALENTS = {
    "encoder": "which fills masks (use fill-mask, in Python fill_mask)",
    "decoder": "which continues a text (use generate)",
    "encoder-decoder": "which fills in missing spans (use generate)",
}

_loaded: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_loading = threading.Lock()
_kept: OrderedDict[tuple[object, ...], Any] = OrderedDict()
_kept_lock = threading.Lock()


def force_cpu() -> None:
    """Restricts a process to the CPU; call it before a backend is imported.

    On the CPU, JAX starts faster and answers sooner.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("KERAS_BACKEND", "jax")


def keep(folder: Path, dtype: Dtype, load: Callable[[Path, Dtype], Any]) -> Any:
    """Returns `load(folder, dtype)`, cached until the folder's files change."""
    check_dtype(dtype)
    key = (load, *_identity(folder), dtype)
    with _kept_lock:
        if key not in _kept:
            _kept[key] = load(folder, dtype)
            for other in [loaded_key for loaded_key in _kept if _is_older(loaded_key, key)]:
                del _kept[other]
            while len(_kept) > _MODELS_KEPT:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return _kept[key]


def load_model(folder: Path, dtype: str) -> Any:
    """Loads a model, or returns the one in use."""
    key = (*_identity(folder), dtype)
    with _loading:
        model = _loaded.get(key)
        if model is None:
            model = _loaded[key] = hf.load_model(folder, dtype)
        return model


def read_compatible(folder: Path, kinds: tuple[str, ...], lack: str) -> Architecture:
    """Reads a model's architecture and checks its kind or family.

    Raises:
        CheckpointError: A missing or damaged checkpoint.
        ConfigError: Another kind of model, or a fine-tuned one.
    """
    hf.check_pretrained(folder)
    architecture = hf.read_architecture(folder)
    if not {architecture.kind, architecture.model_type} & set(kinds):
        raise ConfigError(
            f"The model in {folder} {lack}",
            expected=" or ".join(kinds),
            received=f"{architecture.model_type}, {_TALENTS[architecture.kind]}",
            fix="use another model, or the function for this type of model",
            field="model",
        )
    return architecture


def read_out(stream: Generator[Any, None, dict[str, Any]]) -> dict[str, Any]:
    """Exhausts a generator and returns its return value."""
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return dict(end.value)


def check_finite(numbers: NDArray[np.floating[Any]], folder: Path) -> None:
    """Raises CheckpointError if a model's output is infinite or NaN."""
    if not np.isfinite(numbers).all():
        raise CheckpointError(
            f"The output of the model in {folder} is NaN or infinite",
            fix="use an earlier checkpoint; training probably diverged",
        )


def choose_backend() -> None:
    """Selects training's backend, unless one is selected."""
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = choose(AutomaticDevices(), find_hardware()).engine
    if "keras" not in sys.modules:
        import_for(os.environ["KERAS_BACKEND"], "keras")


def _is_older(key: tuple[object, ...], newer: tuple[object, ...]) -> bool:
    return key != newer and (*key[:2], key[-1]) == (*newer[:2], newer[-1])


def _identity(folder: Path) -> tuple[object, ...]:
    # pathlib would take a tenth of a small model's answer.
    with os.scandir(folder) as entries:
        files = [(file.name, file.stat()) for file in entries if file.name.endswith(_ENDINGS)]
    return (
        os.path.realpath(folder),
        *sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in files),
    )
